"""The official cases of one node, in the other dtypes and schema versions that the standard allows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.defs import OpSchema

from hetero.types import STRING, DataType, numpy_dtype, onnx_dtype

FIRST_OPSET = 7
MOST_ELEMENTS = 20_000
"""Cases with larger inputs are left out."""
LAST = 1.0 * 2**62
"""As far as numbers go that become 64-bit integers."""
ATTRIBUTE_OF = {"constant_value": "value", "K": "k"}
"""Inputs that had another name as the attribute they once were."""
DTYPES = {f"tensor({t.name.lower()})": t for t in DataType if t != DataType.UNDEFINED}
_FLOAT8_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_MINUTE = ("int4", "int2")


@dataclass(frozen=True)
class Variant:
    """A node of one version with a value for each of its inputs, None where it has none."""

    case: str
    node: onnx.NodeProto
    version: int
    inputs: tuple[Any, ...]
    dtypes: Mapping[str, DataType]
    """The dtype of each type variable of the schema that an input decides."""

    def model(self) -> onnx.ModelProto:
        """The model of this node alone; its outputs are not declared."""
        infos = [
            helper.make_tensor_value_info(name, int(onnx_dtype(x.dtype)), list(x.shape))
            for name, x in zip(self.node.input, self.inputs, strict=True)
            if name
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.node.output if name]
        opsets = [helper.make_opsetid(self.node.domain, self.version)]
        return helper.make_model(
            helper.make_graph([self.node], "variant", infos, outputs), opset_imports=opsets, ir_version=10
        )

    def feeds(self) -> dict[str, Any]:
        """Its inputs by name."""
        return {name: x for name, x in zip(self.node.input, self.inputs, strict=True) if name}

    def __str__(self) -> str:
        chosen = " ".join(f"{name}={dtype.name.lower()}" for name, dtype in sorted(self.dtypes.items()))
        return f"{self.node.op_type}-{self.version} {chosen} ({self.case})"


def integer_bounds(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """The least and greatest integer of a dtype, None for what is no integer dtype."""
    if dtype.kind in "iu":
        found: Any = np.iinfo(dtype)
    elif dtype.name.removeprefix("u") in _MINUTE:
        found = ml_dtypes.iinfo(dtype)
    else:
        return None
    return int(found.min), int(found.max)


def _numbers(array: Any) -> Any:
    """The array in float64; of texts that are no numbers a number made of their letters."""
    if array.dtype == STRING:
        texts = [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1)]
        values = [
            float(t) if t.lstrip("-").replace(".", "", 1).isdigit() else sum(map(ord, t)) % 23 for t in texts
        ]
        return np.array(values, np.float64).reshape(array.shape)
    return array.real.astype(np.float64) if array.dtype.kind == "c" else array.astype(np.float64)


def converted(array: Any, dtype: np.dtype[Any]) -> Any:
    """About the same numbers in `dtype`: inside its range; fractions times ten where it holds none."""
    if array.dtype == dtype:
        return array
    whole = array.dtype.kind in "iub" or integer_bounds(array.dtype) is not None
    numbers = _numbers(array)
    bounds = integer_bounds(dtype)
    if dtype == STRING:
        texts = [f"{v:.3g}" for v in numbers.reshape(-1)]
        return np.array(texts, STRING).reshape(array.shape)
    if dtype == np.bool_:
        return numbers % 2 != 0 if whole else numbers > 0
    if bounds is not None:
        if not whole:
            numbers = np.nan_to_num(numbers, nan=3, posinf=100, neginf=-100)
            numbers = numbers if np.all(numbers == np.rint(numbers)) else np.rint(numbers * 10)
        numbers = np.abs(numbers) if bounds[0] == 0 else numbers
        return numbers.clip(bounds[0], min(bounds[1], LAST)).astype(np.int64).astype(dtype)
    if dtype.kind == "c":
        return (numbers + 1j * (numbers[..., ::-1] if numbers.ndim else 0.5 * numbers)).astype(dtype)
    if dtype == _FLOAT8_E8M0:
        return np.exp2(np.rint(np.abs(numbers)).clip(0, 20)).astype(np.float32).astype(dtype)
    if dtype.itemsize > 1:
        return numbers.astype(dtype)
    largest = float(ml_dtypes.finfo(dtype).max)
    return numbers.clip(-largest, largest).astype(np.float32).astype(dtype)


def formal(parameters: Sequence[Any], index: int) -> Any:
    """The formal parameter of operand `index`, the last of a schema may stand for many; None past the end."""
    if index < len(parameters):
        return parameters[index]
    variadic = bool(parameters) and parameters[-1].option == OpSchema.FormalParameterOption.Variadic
    return parameters[-1] if variadic else None


@cache
def schemas() -> dict[tuple[str, str], dict[int, OpSchema]]:
    """(domain, operator) -> its schemas by version, from those that FIRST_OPSET imports on."""
    found: dict[tuple[str, str], dict[int, OpSchema]] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
        versions = found.setdefault((schema.domain, schema.name), {})
        if not schema.domain and schema.since_version <= FIRST_OPSET:
            versions.clear()
        if not schema.deprecated:
            versions[schema.since_version] = schema
    return found


def _as_attribute(name: str, value: Any, kind: int) -> onnx.AttributeProto | None:
    flat = value.reshape(-1).tolist()
    match kind:
        case AttributeProto.INT | AttributeProto.FLOAT if len(flat) == 1:
            number = int(flat[0]) if kind == AttributeProto.INT else float(flat[0])
            return helper.make_attribute(name, number)
        case AttributeProto.INTS | AttributeProto.FLOATS if flat:
            return helper.make_attribute(name, flat)
    return None


def downgraded(
    node: onnx.NodeProto, inputs: Sequence[Any], newer: OpSchema, older: OpSchema
) -> tuple[onnx.NodeProto, list[Any]] | None:
    """The node and its inputs in the form that `older` has for them (inputs may be attributes there), if it has one."""
    found = onnx.NodeProto()
    found.CopyFrom(node)
    del found.input[:]
    kept: list[Any] = []
    for index, (name, value) in enumerate(zip(node.input, inputs, strict=True)):
        parameter = formal(newer.inputs, index).name
        keys = (parameter, parameter.lower(), ATTRIBUTE_OF.get(parameter, ""))
        key = next((k for k in keys if k in older.attributes), None)
        there = formal(older.inputs, index)
        if not name or (there is not None and (key is None or there.name.lower() == parameter.lower())):
            found.input.append(name)
            kept.append(value)
            continue
        kind: Any = older.attributes[key].type if key is not None else None
        attribute = None if key is None else _as_attribute(key, value, kind.value)
        if attribute is None:
            return None
        found.attribute.append(attribute)
    while found.input and not found.input[-1]:
        found.input.pop()
        kept.pop()
    fits = older.min_input <= len(found.input) <= older.max_input and len(found.output) <= older.max_output
    return (found, kept) if fits and all(a.name in older.attributes for a in found.attribute) else None


def _array(value: Any) -> Any:
    """A case's value as an array, where it is a tensor."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _single_nodes() -> Iterator[tuple[str, onnx.NodeProto, int, list[Any]]]:
    """(case, its node, the opset of the node's domain, inputs) of the cases of one node over tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes the expected infinities while it is imported
        cases = load_model_tests(kind="node")
    for case in cases:
        model = case.model
        if model is None or len(model.graph.node) != 1 or model.functions or model.graph.initializer:
            continue
        node = model.graph.node[0]
        bodies = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        if "expanded" in case.name or any(a.type in bodies for a in node.attribute):
            continue
        values = map(_array, case.data_sets[0][0])
        inputs = [next(values, None) if name else None for name in node.input]
        present = [x for x, name in zip(inputs, node.input, strict=True) if name]
        if all(isinstance(x, np.ndarray) and x.size <= MOST_ELEMENTS for x in present):
            opset = next(o.version for o in model.opset_import if o.domain == node.domain)
            yield case.name, node, opset, inputs


def _types(schema: OpSchema, inputs: Sequence[Any]) -> tuple[dict[str, list[int]], dict[str, list[DataType]]]:
    """Type variable -> the inputs whose dtype it is, and -> the tensor dtypes that it may be."""
    places: dict[str, list[int]] = {}
    for index, value in enumerate(inputs):
        if value is not None:
            places.setdefault(formal(schema.inputs, index).type_str, []).append(index)
    allowed = {
        c.type_param_str: [DTYPES[t] for t in c.allowed_type_strs if t in DTYPES]
        for c in schema.type_constraints
        if c.type_param_str in places
    }
    return {name: places[name] for name in allowed}, allowed


def _of_schema(
    case: str, node: onnx.NodeProto, inputs: Sequence[Any], schema: OpSchema, *, every: bool
) -> Iterator[Variant]:
    """The node as it is (or in a dtype that this version has), and with `every` one variable at a time in another."""
    places, allowed = _types(schema, inputs)
    if not all(allowed.values()):
        return  # this version takes sequences or optionals alone
    base = {}
    for name, indices in places.items():
        own = onnx_dtype(inputs[indices[0]].dtype)
        preferred = (own, DataType.FLOAT, DataType.INT64, *allowed[name])
        base[name] = next(t for t in preferred if t in allowed[name])
    choices = [base]
    if every:
        choices += [{**base, name: t} for name in places for t in allowed[name] if t != base[name]]
    for chosen in choices:
        values = list(inputs)
        for name, indices in places.items():
            for index in indices:
                with np.errstate(over="ignore"):
                    values[index] = np.asarray(converted(inputs[index], numpy_dtype(chosen[name])))
        yield Variant(case, node, schema.since_version, tuple(values), chosen)


@cache
def variants() -> dict[tuple[str, str], list[Variant]]:
    """(domain, operator) -> its variants, of each set of dtypes the one with the smallest inputs.

    The newest version comes in every dtype; older ones, whose kernels are the same, in one.
    """
    found: dict[tuple[str, str], dict[Any, Variant]] = {}
    for case, node, opset, inputs in _single_nodes():
        key = (node.domain, node.op_type)
        versions = schemas()[key]
        own = onnx.defs.get_schema(node.op_type, opset, node.domain)
        for version, schema in versions.items():
            form: tuple[onnx.NodeProto, Sequence[Any]] | None = (node, inputs)
            if version < own.since_version:
                form = downgraded(node, inputs, own, schema)
            elif any(a.name not in schema.attributes for a in node.attribute):
                form = None
            if form is None:
                continue
            for variant in _of_schema(case, *form, schema, every=version == max(versions)):
                mark = (version, tuple(sorted(variant.dtypes.items())))
                best = found.setdefault(key, {}).get(mark)
                if best is None or _size(variant) < _size(best):
                    found[key][mark] = variant
    return {key: list(chosen.values()) for key, chosen in sorted(found.items())}


def _size(variant: Variant) -> tuple[int, str]:
    return sum(x.size for x in variant.inputs if x is not None), variant.case
