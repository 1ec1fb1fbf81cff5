"""ONNX's multi-device annotations, written: a plan's placement as a device configuration of the model."""

from __future__ import annotations

import os
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hetero.errors import PlanError
from hetero.model.functions import inline
from hetero.model.model import load_model
from hetero.model.source import library
from hetero.planner.plan import Plan

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
_TAG = "hetero.node"
_IR_VERSION = 11
"""The first that has device configurations."""


def annotate(plan: Plan, model: ModelSource, *, name: str = "hetero") -> onnx.ModelProto:
    """A copy of `model`, which the plan is of, with a device configuration `name` that says where the plan puts nodes.

    Its devices are the plan's providers. A node's outputs lie whole on the device that it runs on, and a node in a
    stage names that as its pipeline stage. A configuration of this name that is there already is replaced. Planning the
    copy with `stages="model"` over the same providers gives the same placement. External data stay where they are:
    save the copy in the folder of the original.

    Raises: PlanError where the plan is of another model, and for a call of a function that the plan runs on several
    devices, which one annotation cannot say; ModelError.
    """
    proto, folder = _copied(model)
    placed = _placed(plan, proto, folder)
    if (
        proto.ir_version < 4
    ):  # where every initializer was an input too, which from here on would let callers feed it
        initial = {tensor.name for tensor in proto.graph.initializer}
        for k in reversed(range(len(proto.graph.input))):
            if proto.graph.input[k].name in initial:
                del proto.graph.input[k]
    proto.ir_version = max(proto.ir_version, _IR_VERSION)
    for k in reversed(range(len(proto.configuration))):
        if proto.configuration[k].name == name:
            del proto.configuration[k]
    configuration = proto.configuration.add()
    configuration.name, configuration.num_devices = name, len(plan.providers)
    configuration.device.extend(config.name for config in plan.providers)
    for index, node in enumerate(proto.graph.node):
        _clear(node, name)
        if index not in placed:
            continue
        child, stage = placed[index]
        mark = node.device_configurations.add()
        mark.configuration_id = name
        if stage is not None:
            mark.pipeline_stage = stage
        for output in filter(None, node.output):
            spec = mark.sharding_spec.add()
            spec.tensor_name = output
            spec.device.append(child)
    return proto


def _clear(node: onnx.NodeProto, name: str) -> None:
    """Take the annotations for this configuration off a node and the nodes in its bodies."""
    for k in reversed(range(len(node.device_configurations))):
        if node.device_configurations[k].configuration_id == name:
            del node.device_configurations[k]
    for attribute in node.attribute:
        for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in body.node:
                _clear(inner, name)


def _copied(model: ModelSource) -> tuple[onnx.ModelProto, str | None]:
    """A copy of the model as it is written, and the folder of its external data."""
    copy = onnx.ModelProto()
    folder = None
    with library("the model cannot be read"):
        if isinstance(model, onnx.ModelProto):
            copy.CopyFrom(model)
        elif isinstance(model, ir.Model):
            copy = ir.to_proto(model)
        elif isinstance(model, bytes | bytearray | memoryview):
            copy.ParseFromString(bytes(model))
        else:
            path = os.path.abspath(os.fsdecode(model))
            folder = os.path.dirname(path)
            with open(path, "rb") as file:
                copy.ParseFromString(file.read())
    return copy, folder


def _placed(plan: Plan, proto: onnx.ModelProto, folder: str | None) -> dict[int, tuple[int, int | None]]:
    """Node of the file (its place in the graph) -> (child, stage) of what became of it.

    Loading renames nodes and planning inlines calls, so each node of the file is told apart by a mark in its metadata,
    which what it turns into inherits.
    """
    for index, node in enumerate(proto.graph.node):
        node.metadata_props.add(key=_TAG, value=str(index))
    try:
        loaded = load_model(proto, base_dir=folder)
    finally:
        for node in proto.graph.node:
            del node.metadata_props[-1]
    outer = {p.node: p for p in plan.placements if not p.path}
    names = {p.node for p in plan.placements}
    while any(node.name not in outer for node in loaded.ir.graph):
        if not inline(loaded, lambda node: node.name in names):
            stray = next(node for node in loaded.ir.graph if node.name not in outer)
            raise PlanError("the plan is of another model: it does not have this node", node=stray.name)
    if len(outer) != len(loaded.ir.graph):
        raise PlanError(f"the plan is of another model: {len(outer)} nodes, not {len(loaded.ir.graph)}")
    child_of = {config.name: child for child, config in enumerate(plan.providers)}
    found: dict[int, tuple[int, int | None]] = {}
    for node in loaded.ir.graph:
        tag = node.metadata_props.get(_TAG)
        if tag is None:  # made by loading, out of no one node
            continue
        placement = outer[node.name or ""]
        where = (child_of[placement.provider], placement.stage)
        if found.setdefault(int(tag), where) != where:
            call = proto.graph.node[int(tag)]
            raise PlanError(
                f"the plan runs this call of function {call.op_type!r} on several devices or in several stages, and"
                " ONNX has one annotation for it; inline the function first",
                node=call.name or None,
                op=call.op_type,
            )
    return found
