"""Nodes that keep another opset version than their model's, as onnx can read them: calls of functions of their own."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

DOMAIN = "hetero.foreign"


def wrap(proto: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    """Replace each node that `versions` names (with the opset version of its domain) by a call of a function that
    imports this version and holds the node. Nodes with bodies stay: a function does not see what they capture."""
    if not versions:
        return
    proto.opset_import.add(domain=DOMAIN, version=1)
    stack = [proto.graph]
    while stack:
        graph = stack.pop()
        for node in graph.node:
            inner = [g for a in node.attribute for g in (a.g, *a.graphs) if a.HasField("g") or a.graphs]
            if inner:
                stack.extend(inner)
            elif node.name in versions:
                _wrap(proto, node, versions[node.name])


def _wrap(proto: onnx.ModelProto, node: onnx.NodeProto, version: int) -> None:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    inputs = [f"i{k}" if name else "" for k, name in enumerate(node.input)]
    outputs = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
    del copy.input[:], copy.output[:]
    copy.input.extend(inputs)
    copy.output.extend(outputs)
    name = f"{node.op_type}_{len(proto.functions)}"
    imports = [helper.make_opsetid(node.domain, version)]
    given, made = [n for n in inputs if n], [n for n in outputs if n]
    proto.functions.append(helper.make_function(DOMAIN, name, given, made, [copy], imports))
    kept_inputs, kept_outputs = [n for n in node.input if n], [n for n in node.output if n]
    node.Clear()
    node.CopyFrom(helper.make_node(name, kept_inputs, kept_outputs, domain=DOMAIN))
