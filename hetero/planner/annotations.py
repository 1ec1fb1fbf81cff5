"""ONNX's multi-device annotations, read: which device and pipeline stage each node of a configuration is given.

A model has configurations (a name, and devices), and each of its nodes may say for each of these which pipeline stage
it belongs to, and on which devices its tensors lie, whole or in shards (onnx.proto: DeviceConfigurationProto,
NodeDeviceConfigurationProto; IR version 11). We run each node on one device and keep tensors whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from hetero.errors import PlanError
from hetero.model.model import Model
from hetero.model.normalise import nodes_of
from hetero.model.source import bodies, op_id


@dataclass(frozen=True, slots=True)
class Mark:
    """What a node is annotated with: a device, by its place in the configuration, and a pipeline stage, if any."""

    device: int
    stage: int | None = None


def configuration_of(model: Model, name: str | None) -> ir.ModelConfiguration:
    """The configuration of this name; with None the only one. Raises: PlanError listing what there is."""
    there = model.ir.device_configurations
    names = [c.name for c in there]
    if not there:
        raise PlanError("the model has no device configurations")
    if len(set(names)) < len(names):
        raise PlanError(f"two of the model's device configurations have one name: {names}")
    if name is None and len(there) > 1:
        raise PlanError(f"the model has several device configurations, choose one of {names}")
    found = there[0] if name is None else next((c for c in there if c.name == name), None)
    if found is None:
        raise PlanError(f"the model has no device configuration {name!r}; it has {names}", operand=name)
    if found.device_names and len(found.device_names) != found.num_devices:
        raise PlanError(
            f"configuration {found.name!r} has {found.num_devices} devices and names {len(found.device_names)}"
        )
    return found


def marks_of(model: Model, configuration: ir.ModelConfiguration) -> dict[str, Mark]:
    """What the nodes of the main graph are annotated with, by name; those that are not are left out.

    A node runs where all tensors that it has a spec for lie: on one device, or replicated on several, of which it takes
    the one of its stage's number, or else the first. Without specs it runs on the device of its stage's number.
    Raises: PlanError for a tensor in shards, and for annotations that contradict each other: they name node and tensor.
    """
    for function in model.ir.functions.values():
        for node in nodes_of(function):
            if _mark(node, configuration) is not None:
                raise _refused(
                    "it is in a function: annotate the calls of it, which may differ", node, configuration
                )
    found: dict[str, Mark] = {}
    for node in model.ir.graph:
        mark = _mark(node, configuration)
        _check_bodies(node, mark, configuration)
        if mark is not None:
            found[node.name or ""] = mark
    return found


def children_of(configuration: ir.ModelConfiguration, providers: Sequence[str]) -> list[int]:
    """The provider that each device of the configuration is: by name ("CUDA:1" is cuda:1, "cuda" is cuda:0), or by its
    place where devices have no names. Raises: PlanError for a device that is none of the providers."""
    if not configuration.device_names:
        if configuration.num_devices > len(providers):
            raise PlanError(
                f"configuration {configuration.name!r} has {configuration.num_devices} devices without names, and "
                f"there are {len(providers)} providers: {', '.join(providers)}"
            )
        return list(range(configuration.num_devices))
    places = {name.lower(): index for index, name in reversed(list(enumerate(providers)))}
    children = []
    for device in configuration.device_names:
        spelt = device.lower()
        child = places.get(spelt, places.get(f"{spelt}:0"))
        if child is None:
            raise PlanError(
                f"configuration {configuration.name!r} has a device {device!r}, which is no provider here; there are: "
                f"{', '.join(providers)}",
                device=device,
            )
        children.append(child)
    return children


def _check_bodies(node: ir.Node, outer: Mark | None, configuration: ir.ModelConfiguration) -> None:
    for body in bodies(node):
        for inner in nodes_of(body):
            mark = _mark(inner, configuration)
            if mark not in (None, outer):
                raise _refused(
                    f"it is in a body of {node.name!r}, which runs as a whole, and is annotated otherwise",
                    inner,
                    configuration,
                )


def _mark(node: ir.Node, configuration: ir.ModelConfiguration) -> Mark | None:
    mine = [
        c
        for c in node.device_configurations
        if c.configuration is not None and c.configuration.name == configuration.name
    ]
    if not mine:
        return None
    if len(mine) > 1:
        raise _refused("the node is annotated twice", node, configuration)
    stage = mine[0].pipeline_stage
    if stage is not None and stage < 0:
        raise _refused(f"pipeline stage {stage} is negative", node, configuration)
    places: list[int] | None = None
    for spec in mine[0].sharding_specs:
        devices = _devices(node, spec, configuration)
        if devices:
            places = devices if places is None else [d for d in places if d in devices]
    if places is None:
        if stage is None:
            return None
        if stage >= configuration.num_devices:
            raise _refused(
                f"pipeline stage {stage} has no device: there are {configuration.num_devices}, and no sharding spec"
                " says which",
                node,
                configuration,
            )
        return Mark(stage, stage)
    if not places:
        raise _refused("its tensors lie on different devices, and a node runs on one", node, configuration)
    return Mark(stage if stage is not None and stage in places else places[0], stage)


def _devices(node: ir.Node, spec: ir.ShardingSpec, configuration: ir.ModelConfiguration) -> list[int]:
    """The devices that a whole tensor lies on. Raises: PlanError for one that is in shards."""
    tensor = None if spec.value is None else spec.value.name
    for dim in spec.sharded_dims:
        shards = [s.num_shards for s in dim.simple_shardings]
        if any(n < 1 for n in shards):
            raise _refused(
                f"axis {dim.axis} of {tensor!r} has {min(shards)} shards", node, configuration, tensor
            )
        if any(n > 1 for n in shards):
            raise _refused(
                f"axis {dim.axis} of {tensor!r} is split into {' x '.join(map(str, shards))} shards; tensors are kept"
                " whole here, on one device or replicated on several",
                node,
                configuration,
                tensor,
            )
    groups = {entry.key: entry.value for entry in spec.index_to_device_group_map}
    devices = [d for key in spec.device for d in groups.get(key, (key,))]
    beyond = next((d for d in devices if not 0 <= d < configuration.num_devices), None)
    if beyond is not None:
        raise _refused(
            f"{tensor!r} lies on device {beyond}, and there are {configuration.num_devices}",
            node,
            configuration,
            tensor,
        )
    return list(dict.fromkeys(devices))


def _refused(
    reason: str, node: ir.Node, configuration: ir.ModelConfiguration, tensor: str | None = None
) -> PlanError:
    return PlanError(
        f"device configuration {configuration.name!r} cannot be honoured: {reason}",
        node=node.name,
        op=op_id(node),
        operand=tensor,
    )
