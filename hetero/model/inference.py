"""Types and symbolic shapes of every value, through onnx.shape_inference; what the model says wrongly is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.foreign import wrap
from hetero.model.maps import MapIrType, is_map, read_type, write_value
from hetero.model.preflight import check_trusted
from hetero.model.source import bodies, library
from hetero.model.stand_ins import stand_in
from hetero.model.tensors import HostStrings, HostTensor
from hetero.types import DataType, Dim, MapType, OptionalType, SequenceType, Shape, TensorType, ValueType

SMALL_BYTES = 1024
"""Constants up to this size go to inference with their data (shapes, axes, repeats…); larger ones only as types.
Protobuf messages end at 2 GiB, and inference copies the message."""


def infer(model: ir.Model) -> None:
    """Set the type and shape of every value of the main graph and its bodies, as far as they follow from the inputs.

    `model` must be in normal form. A value that onnx cannot infer keeps what the model declares, or stays None. A
    declared shape that disagrees with the inferred one is dropped: real models are careless there.
    Raises: ModelError where a declared dtype contradicts the operator and onnx rejects the graph for it; for values
    that are sparse tensors.
    """
    values = {v.name: v for v in _values(model.graph) if v.name}
    for value in model.graph.inputs:
        value_type(value)
    computed = [v for v in values.values() if v.producer() is not None]
    declared = {v: (v.type, v.shape) for v in computed}
    known = [v for v in computed if _is_known(v.producer(), model)]
    try:
        _forget(known)
        _merge(_infer(model), values)
        gaps = _reconcile(declared)
        if gaps:  # what only the model knows (say, the shape after a Reshape) lets onnx go on from there
            _forget(v for v in known if v not in gaps)
            _merge(_infer(model), values)
            _reconcile(declared)
    except _ContradictionError as found:
        for value, (type_, shape) in declared.items():
            value.type, value.shape = type_, shape
        reason = _rejected(model)
        if reason is not None:
            producer = found.value.producer()
            raise ModelError(
                f"value {found.value.name!r} is declared {found.value.dtype} but its operator gives {found.inferred}",
                node=None if producer is None else producer.name,
                op=None if producer is None else producer.op_type,
                operand=found.value.name,
            ) from reason
        _forget(known)
        _merge(_infer(model), values)
        _reconcile(declared, lenient=True)
    for value in values.values():
        value_type(value)


def value_type(value: ir.Value) -> ValueType | None:
    """The value's type in this package's terms; None where unknown.

    Raises: ModelError for a sparse tensor.
    """
    if value.type is None:
        return TensorType(None, _shape(value.shape)) if value.shape is not None else None
    return to_value_type(value.type, value.shape, value.name)


def to_value_type(type_: ir.TypeProtocol, shape: ir.Shape | None, name: str | None = None) -> ValueType:
    """`type_`, with `shape` that of the tensors inside. Raises: ModelError for a sparse tensor."""
    if isinstance(type_, ir.SequenceType):
        return SequenceType(to_value_type(type_.elem_type, shape, name))
    if isinstance(type_, ir.OptionalType):
        return OptionalType(to_value_type(type_.elem_type, shape, name))
    if isinstance(type_, ir.TensorType):
        return TensorType(
            None if type_.dtype == ir.DataType.UNDEFINED else DataType(type_.dtype), _shape(shape)
        )
    if isinstance(type_, MapIrType):
        return MapType(DataType(type_.key), TensorType(DataType(type_.dtype), ()))
    raise ModelError(f"value {name!r} is a {type(type_).__name__}, which cannot be run", operand=name)


def _shape(shape: ir.Shape | None) -> Shape | None:
    return None if shape is None else tuple(_dim(d) for d in shape.dims)


def _dim(dim: int | ir.SymbolicDim) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else None  # exporters write -1 for an unknown extent
    # "?" and "-1" are how exporters spell an unknown extent; as symbols they would tie unrelated extents together
    return dim.value if dim.value and any(c.isalpha() for c in dim.value) else None


class _ContradictionError(Exception):
    def __init__(self, value: ir.Value, inferred: ir.TypeProtocol) -> None:
        super().__init__(value.name)
        self.value = value
        self.inferred = inferred


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for body in bodies(node):
            yield from _values(body)


def _forget(values: Iterable[ir.Value]) -> None:
    for value in values:
        value.type = value.shape = None


def _is_known(node: ir.Node | None, model: ir.Model) -> bool:
    """Whether onnx itself, or a function of the model, says what the node gives."""
    if node is None:
        return False
    version = model.opset_imports.get(node.domain)
    if node.op_identifier() in model.functions:
        return True
    return version is not None and bool(onnx.defs.has(node.op_type, version, node.domain))


def _infer(model: ir.Model) -> onnx.ModelProto | None:
    """`model` with what onnx infers, without its large constants. None where onnx gives up on it."""
    proto = _light_proto(model)
    for data_prop in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(
                proto, check_type=False, strict_mode=False, data_prop=data_prop
            )
        except Exception:  # a model that onnx cannot digest simply stays without types
            continue
    return None


def _rejected(model: ir.Model) -> Exception | None:
    """onnx's own error for the declared types, if it has one."""
    try:
        onnx.shape_inference.infer_shapes(
            _light_proto(model), check_type=False, strict_mode=True, data_prop=True
        )
    except Exception as error:
        return error if "type" in str(error).lower() else None
    return None


def _light_proto(model: ir.Model) -> onnx.ModelProto:
    """The model's protobuf in which large constants are inputs and operators onnx does not know have stand-ins.

    The model is not touched.
    """
    graph = model.graph
    proto = onnx.ModelProto(ir_version=max(model.ir_version or 0, 8))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    with library("the model cannot be handed to shape inference"):
        proto.graph.name = graph.name or "graph"
        for value in graph.inputs:
            write_value(proto.graph.input.add(), value)
        for value in graph.outputs:
            write_value(proto.graph.output.add(), value)
        for name, value in graph.initializers.items():
            tensor = value.const_value
            assert isinstance(tensor, HostTensor | HostStrings)
            if (
                tensor.dtype != ir.DataType.STRING
                and tensor.nbytes <= SMALL_BYTES
                and not value.is_graph_input()
            ):
                ir.serde.serialize_tensor_into(proto.graph.initializer.add(), tensor)
            elif not value.is_graph_input():
                info = proto.graph.input.add(name=name)
                info.type.tensor_type.elem_type = int(tensor.dtype)
                for extent in tensor.shape.numpy():
                    info.type.tensor_type.shape.dim.add(dim_value=extent)
        for node in graph:
            ir.serde.serialize_node_into(proto.graph.node.add(), node)
            for output in node.outputs:
                if output.name and output.type is not None and not output.is_graph_output():
                    write_value(proto.graph.value_info.add(), output)
        for function in model.functions.values():
            ir.serde.serialize_function_into(proto.functions.add(), function)
    versions = {n.name: n.version for n in graph.all_nodes() if n.version is not None and n.name}
    check_trusted(proto, versions)
    stand_in(proto, {(domain, name) for domain, name, _ in model.functions})
    wrap(proto, versions)
    return proto


def _merge(inferred: onnx.ModelProto | None, values: dict[str, ir.Value]) -> None:
    stack = [] if inferred is None else [inferred.graph]
    with library("the inferred types cannot be read"):
        while stack:
            graph = stack.pop()
            for info in (*graph.value_info, *graph.output):
                value = values.get(info.name)
                # Inputs and constants of the model say themselves what they are.
                if value is None or (
                    value.producer() is None and inferred is not None and graph is inferred.graph
                ):
                    continue
                type_ = read_type(info.type)
                if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
                    continue
                if is_map(type_):
                    if (
                        inferred is not None and graph is inferred.graph
                    ):  # onnx-ir writes no body that has one
                        value.type = type_
                    continue
                value.type = type_
                shape = ir.serde.deserialize_type_proto_for_shape(info.type)
                if shape is not None:
                    value.shape = shape
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        stack.append(attribute.g)
                    elif attribute.type == onnx.AttributeProto.GRAPHS:
                        stack.extend(attribute.graphs)


def _reconcile(
    declared: dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]], lenient: bool = False
) -> set[ir.Value]:
    """Fill what inference left open from what the model declares. Returns the values that this told more of."""
    gaps: set[ir.Value] = set()
    for value, (type_, shape) in declared.items():
        if type_ is not None and type_.dtype != ir.DataType.UNDEFINED:
            if value.type is None:
                value.type = type_
                gaps.add(value)
            elif value.type != type_:
                if not lenient:
                    raise _ContradictionError(value, value.type)
                continue
        if shape is None:
            continue
        if value.shape is None:
            value.shape = shape
            gaps.add(value)
        elif len(value.shape) == len(shape):
            known = [_dim(d) for d in value.shape.dims]
            told = [_dim(d) for d in shape.dims]
            if any(
                isinstance(k, int) and isinstance(t, int) and k != t for k, t in zip(known, told, strict=True)
            ):
                continue
            better = [t if _tells_more(t, k) else k for k, t in zip(known, told, strict=True)]
            if better != known:
                value.shape = ir.Shape(better, frozen=True)
                gaps.add(value)
    return gaps


def _tells_more(told: Dim, known: Dim) -> bool:
    if isinstance(known, int) or told is None:
        return False
    return (
        known is None or isinstance(told, int) or (known.startswith("unk__") and not told.startswith("unk__"))
    )
