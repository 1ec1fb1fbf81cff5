"""The last resort on the host: any operator of one node through onnx.reference, with what it returns put right.

Not in the registry: a host provider asks `reference_supports` for what no kernel serves, then `reference_compile`s.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Compiled, dynamic
from hetero.program.operation import Operation
from hetero.program.program import Program
from hetero.types import (
    STRING,
    AbsentSpec,
    DataType,
    MapType,
    OptionalType,
    SequenceSpec,
    SequenceType,
    SequenceValue,
    Spec,
    TensorSpec,
    TensorType,
    ValueType,
    numpy_dtype,
    onnx_dtype,
)

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

CAPTURE = "runs through onnx.reference"


def _evaluator(
    op: Operation, node: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto]
) -> ReferenceEvaluator:
    # Imported here: loading some 300 operators takes a while, and most models need none.
    from onnx.reference import ReferenceEvaluator

    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "one_node", inputs, outputs)
    return ReferenceEvaluator(graph, opsets={"": onnx.defs.onnx_opset_version()} | {op.domain: op.version})


def reference_supports(op: Operation) -> str | None:
    """None where onnx.reference has this operator, or the reason why it will not do."""
    from onnx.reference.op_run import RuntimeContextError

    values = [v[0] if isinstance(v, tuple) and v else v for v in op.attributes.values()]
    if any(isinstance(v, Program) for v in values):
        return "onnx.reference is not used for operators with bodies"
    try:
        _evaluator(op, node_proto(op), [])
    except RuntimeContextError:
        return None  # A function whose body depends on the input types: known once they are.
    except UnsupportedError as error:
        return error.message
    except Exception as error:
        return f"onnx.reference does not run it: {next(iter(str(error).splitlines()), type(error).__name__)}"
    return None


def type_proto(type_: ValueType) -> onnx.TypeProto:
    """The ONNX form of a value type."""
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_proto(type_.element))
    if isinstance(type_, MapType):
        return helper.make_map_type_proto(int(type_.key), type_proto(type_.value))
    return helper.make_tensor_type_proto(int(type_.dtype or DataType.UNDEFINED), type_.shape)


def _spec_proto(spec: Spec) -> onnx.TypeProto | None:
    if isinstance(spec, TensorSpec):
        return helper.make_tensor_type_proto(int(onnx_dtype(spec.dtype)), spec.shape)
    if isinstance(spec, SequenceSpec) and spec.dtype is not None:
        element = helper.make_tensor_type_proto(int(onnx_dtype(spec.dtype)), None)
        return helper.make_sequence_type_proto(element)
    return None


def _schema(op: Operation) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op.op_type, op.version, op.domain)
    except onnx.defs.SchemaError:
        return None


def node_proto(op: Operation) -> onnx.NodeProto:
    """The operation as an ONNX node with inputs i0, i1… and outputs o0, o1….

    Raises: UnsupportedError for an attribute that has no ONNX form here (a body).
    """
    node = helper.make_node(
        op.op_type,
        [f"i{i}" if present else "" for i, present in enumerate(op.present_inputs)],
        [f"o{i}" if present else "" for i, present in enumerate(op.present_outputs)],
        name=op.name or "node",
        domain=op.domain,
    )
    schema = _schema(op)
    for name, value in op.attributes.items():
        declared = None
        if schema is not None and name in schema.attributes:
            kind: Any = schema.attributes[name].type
            declared = kind.value
        proto: Any = value
        if isinstance(value, np.ndarray):
            proto = numpy_helper.from_array(value)
        elif isinstance(value, TensorType | SequenceType | OptionalType):
            proto = type_proto(value)
        elif isinstance(value, tuple):
            proto = list(value)
        elif isinstance(value, int) and declared == onnx.AttributeProto.FLOAT:
            proto = float(value)
        try:
            node.attribute.append(helper.make_attribute(name, proto, attr_type=declared))
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                f"{type(value).__name__} is no attribute for onnx.reference",
                op=op.id,
                node=op.name,
                operand=name,
            ) from error
    return node


def _output_types(op: Operation, node: onnx.NodeProto, specs: Sequence[Spec]) -> dict[str, onnx.TypeProto]:
    """What ONNX says of the outputs' types; an output is missing where it says nothing."""
    schema = _schema(op)
    types = {f"i{i}": _spec_proto(spec) for i, spec in enumerate(specs)}
    known = {name: proto for name, proto in types.items() if proto is not None and name in node.input}
    if schema is None or any(name and name not in known for name in node.input):
        return {}
    opsets = [helper.make_opsetid(op.domain, op.opset or op.version)]
    try:
        return onnx.shape_inference.infer_node_outputs(schema, node, known, opset_imports=opsets)
    except Exception:  # Inference may want values that are not there; then results keep their dtypes.
        return {}


def as_tensor(value: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """`value` (an array, a NumPy or Python scalar, a list) as an array of `dtype` (None: its own).

    Text becomes an object array of str.
    """
    array = np.asarray(value)
    if array.dtype.kind in "USOT" or dtype == STRING:
        text = [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
        found = np.empty(len(text), STRING)
        found[:] = text
        return found.reshape(array.shape)
    if dtype is None or array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _coerced(value: Any, type_: onnx.TypeProto | None, inputs: Sequence[Any]) -> Any:
    kind = None if type_ is None else type_.WhichOneof("value")
    if type_ is not None and kind == "optional_type":
        if isinstance(value, list) and type_.optional_type.elem_type.WhichOneof("value") == "tensor_type":
            value = value[0] if value else None
        return None if value is None else _coerced(value, type_.optional_type.elem_type, inputs)
    if type_ is not None and kind == "sequence_type":
        element = type_.sequence_type.elem_type
        return SequenceValue([_coerced(v, element, inputs) for v in value or ()], _dtype(element))
    if kind is None and (value is None or isinstance(value, dict)):
        return value
    if kind is None and isinstance(value, list) and not all(np.isscalar(v) for v in value):
        return SequenceValue([_coerced(v, None, inputs) for v in value])
    array = as_tensor(value, None if type_ is None else _dtype(type_))
    shared = any(isinstance(x, np.ndarray) and np.may_share_memory(array, x) for x in inputs)
    return array.copy() if shared or not array.flags.owndata else array


def _dtype(type_: onnx.TypeProto) -> np.dtype[Any] | None:
    code = type_.tensor_type.elem_type if type_.HasField("tensor_type") else 0
    return numpy_dtype(DataType(code)) if code else None


def _lent(value: Any, copies: bool) -> Any:
    if isinstance(value, SequenceValue):
        return [_lent(v, copies) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if copies:
        return value.copy()
    view = value.view()
    view.flags.writeable = False
    return view


def reference_compile(op: Operation, specs: Sequence[Spec]) -> Compiled:
    """The operation through onnx.reference: fresh outputs with the dtypes that ONNX gives them.

    Raises: UnsupportedError where onnx.reference cannot take it. Running raises: KernelError, with the cause.
    """
    reason = reference_supports(op)
    if reason is not None:
        raise UnsupportedError(reason, op=op.id, node=op.name)
    node = node_proto(op)
    types = _output_types(op, node, specs)
    inputs = [
        helper.make_value_info(
            name, (None if isinstance(s, AbsentSpec) else _spec_proto(s)) or onnx.TypeProto()
        )
        for name, s in zip(node.input, specs, strict=False)
        if name
    ]
    try:
        evaluator = _evaluator(op, node, inputs)
    except Exception as error:
        raise UnsupportedError(f"onnx.reference cannot take it: {error}", op=op.id, node=op.name) from error
    names = [name for name in node.output if name]

    def evaluate(values: Sequence[Any], copies: bool) -> list[Any]:
        feeds = {f"i{i}": _lent(v, copies) for i, v in enumerate(values) if f"i{i}" in node.input}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(evaluator.run(names, feeds))

    def run(values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            try:
                found = evaluate(values, copies=False)
            except ValueError as error:
                if "read-only" not in str(error):
                    raise
                found = evaluate(values, copies=True)  # An operator that works in its input's memory.
            by_name = dict(zip(names, found, strict=True))
            return tuple(
                _coerced(by_name[name], types.get(name), values) if name else None for name in node.output
            )
        except Exception as error:
            raise KernelError(
                f"onnx.reference failed: {type(error).__name__}: {error}", op=op.id, node=op.name
            ) from error

    return dynamic(run, capture=CAPTURE)
