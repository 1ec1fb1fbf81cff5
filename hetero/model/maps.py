"""Map types, which onnx-ir does not know: kept aside while it reads a model, and written where a model is handed on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from hetero.errors import ModelError

KEYS = frozenset(
    {onnx.TensorProto.STRING}
    | {getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}
)


class MapIrType(ir.TypeProtocol):
    """A map from `key` to scalars of `dtype`, as the type of an onnx_ir.Value."""

    def __init__(self, key: ir.DataType, dtype: ir.DataType) -> None:
        self.key = key
        self.dtype = self.elem_type = dtype
        self.denotation = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapIrType) and (self.key, self.dtype) == (other.key, other.dtype)

    def __hash__(self) -> int:
        return hash((self.key, self.dtype))

    def __repr__(self) -> str:
        return f"Map({self.key}, {self.dtype})"


def check_map(type_: onnx.TypeProto.Map, name: str) -> None:
    """Raises: ModelError unless it maps integers or texts to scalars of a known dtype."""
    if type_.key_type not in KEYS:
        raise ModelError(f"value {name!r} is a map with keys of dtype {type_.key_type}", operand=name)
    held = type_.value_type.tensor_type.elem_type
    if (
        type_.value_type.WhichOneof("value") != "tensor_type"
        or held not in onnx.TensorProto.DataType.values()
    ):
        raise ModelError(f"value {name!r} is a map of something other than scalars", operand=name)


def is_map(type_: ir.TypeProtocol | ir.DataType | None) -> bool:
    """Whether it is a map, or a sequence or optional of maps."""
    while isinstance(type_, ir.SequenceType | ir.OptionalType):
        type_ = type_.elem_type
    return isinstance(type_, MapIrType)


def _holds_map(proto: onnx.TypeProto) -> bool:
    while (kind := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        proto = getattr(proto, kind).elem_type
    return bool(kind == "map_type")


def read_type(proto: onnx.TypeProto) -> ir.TypeProtocol | None:
    """A type proto as onnx-ir's type, or MapIrType where it is one."""
    if not _holds_map(proto):
        return ir.serde.deserialize_type_proto_for_type(proto)
    kind = proto.WhichOneof("value")
    if kind == "map_type":
        key, value = proto.map_type.key_type, proto.map_type.value_type.tensor_type.elem_type
        return MapIrType(ir.DataType(key), ir.DataType(value))
    element = read_type(getattr(proto, kind).elem_type)
    assert element is not None, "it holds a map"
    return ir.SequenceType(element) if kind == "sequence_type" else ir.OptionalType(element)


def write_value(info: onnx.ValueInfoProto, value: ir.Value) -> None:
    """The value's name, type and shape into `info`."""
    if is_map(value.type):
        info.name = value.name or ""
        _write_type(info.type, value.type)
    else:
        ir.serde.serialize_value_into(info, value)


def _write_type(proto: onnx.TypeProto, type_: object) -> None:
    if isinstance(type_, MapIrType):
        proto.map_type.key_type = int(type_.key)
        proto.map_type.value_type.tensor_type.elem_type = int(type_.dtype)
        proto.map_type.value_type.tensor_type.shape.SetInParent()
    elif isinstance(type_, ir.SequenceType):
        _write_type(proto.sequence_type.elem_type, type_.elem_type)
    elif isinstance(type_, ir.OptionalType):
        _write_type(proto.optional_type.elem_type, type_.elem_type)


def lift_maps(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, ir.TypeProtocol]]:
    """`proto`, or a copy without its map types where it has any, and the types of the main graph's values by name."""
    if not any(_holds_map(info.type) for info in _infos(proto)):
        return proto, {}
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    main = copy.graph
    found: dict[str, ir.TypeProtocol] = {}
    for info in (*main.input, *main.output, *main.value_info):
        type_ = read_type(info.type) if _holds_map(info.type) else None
        if type_ is not None:
            found[info.name] = type_
    for info in _infos(copy):
        if _holds_map(info.type):
            info.ClearField("type")
    return copy, found


def restore_maps(model: ir.Model, types: dict[str, ir.TypeProtocol]) -> None:
    """Give the values of the main graph the types that `lift_maps` found."""
    if types:
        for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
            if value.name in types:
                value.type = types[value.name]


def _infos(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """What the model says of its values: those of the main graph and of every body."""
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        yield from function.value_info
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.ValueInfoProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _of_graph(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for graph in attribute.graphs:
                    yield from _of_graph(graph)
