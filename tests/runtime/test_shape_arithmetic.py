"""Shape arithmetic without kernels gives what the kernels give, to the bit and the dtype, or leaves it to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from hetero.program.operation import Operation
from hetero.providers.registry import resolve
from hetero.runtime.operands import run_once
from hetero.runtime.shape_arithmetic import MOST_ELEMENTS, MOST_POSITIONS, OPERATORS, evaluated
from hetero.types import TensorSpec
from tests.runtime.harness import rig_of

(CPU,) = resolve(["cpu"])
EDGES = (0, 1, -1, 2, -2, 3, 7, 1 << 31, -(1 << 31), (1 << 31) - 1, (1 << 63) - 1, -(1 << 63))
DTYPES = st.sampled_from([np.int64, np.int32])


def numbers(dtype: Any) -> st.SearchStrategy[int]:
    info = np.iinfo(dtype)
    edges = [e for e in EDGES if info.min <= e <= info.max]
    return st.one_of(st.sampled_from(edges), st.integers(-5, 70))


@st.composite
def vectors(
    draw: Any, dtype: Any = None, shapes: Any = ((), (0,), (1,), (2,), (3,), (70,), (2, 2), (2, 1, 3))
) -> Any:
    dtype = draw(DTYPES) if dtype is None else dtype
    shape = draw(st.sampled_from(shapes))
    elements = st.booleans() if dtype is np.bool_ else numbers(dtype)
    size = int(np.prod(shape))
    return np.array(draw(st.lists(elements, min_size=size, max_size=size)), dtype).reshape(shape)


@st.composite
def cases(draw: Any) -> tuple[Operation, list[Any]]:
    op_type = draw(st.sampled_from(sorted(OPERATORS)))
    attributes: dict[str, Any] = {}
    version = 13
    scalar = ((), (1,), (2,))
    axis = st.sampled_from([0, -1, 1])
    match op_type:
        case "Shape" | "Size":
            values = [draw(vectors())]
            version = draw(st.sampled_from([13, 15])) if op_type == "Shape" else 13
            if version == 15:
                attributes = {n: draw(st.integers(-3, 3)) for n in ("start", "end") if draw(st.booleans())}
        case "Where":
            dtype = draw(DTYPES)
            values, version = [draw(vectors(np.bool_)), draw(vectors(dtype)), draw(vectors(dtype))], 16
        case "Gather":
            values = [draw(vectors()), draw(vectors(np.int64, scalar))]
            attributes = {"axis": draw(axis)} if draw(st.booleans()) else {}
        case "Not":
            values, version = [draw(vectors(np.bool_))], 1
        case "And" | "Or" | "Xor":
            values, version = [draw(vectors(np.bool_)), draw(vectors(np.bool_))], 7
        case "Expand":
            target = draw(st.lists(st.sampled_from([1, 2, 3, 70]), max_size=3))
            values = [draw(vectors(draw(st.sampled_from([np.int64, np.bool_])))), np.array(target, np.int64)]
        case "Reshape":
            target = draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 6, 35]), max_size=3))
            values, version = [draw(vectors()), np.array(target, np.int64)], 14
        case "Unsqueeze" | "Squeeze":
            values = [draw(vectors(shapes=(*scalar, (2, 1), (1, 2, 1))))]
            axes = draw(st.sampled_from([[0], [-1], [1], [0, 1], [0, 2], [-1, 0], [0, 0]]))
            version = draw(st.sampled_from([11, 13]))
            if version == 13:
                values.append(np.array(axes))
            else:
                attributes = {"axes": tuple(axes)}
            if op_type == "Squeeze" and draw(st.booleans()):
                values, attributes = values[:1], {}
        case "Concat":
            dtype = draw(DTYPES)
            values = draw(st.lists(vectors(dtype, ((0,), (1,), (3,))), min_size=1, max_size=4))
            attributes = {"axis": draw(axis)}
        case "Slice":
            bound = vectors(draw(DTYPES), ((1,),))
            values = [draw(vectors()), draw(bound), draw(bound)]
            values += [np.array([draw(axis)])] if draw(st.booleans()) else []
            values += [draw(bound)] if len(values) == 4 and draw(st.booleans()) else []
        case "Cast":
            values = [draw(vectors(draw(st.sampled_from([np.int64, np.int32, np.bool_]))))]
            attributes = {"to": draw(st.sampled_from([6, 7, 9, 1]))}
        case "Range":
            dtype, version = draw(DTYPES), 11
            values = [draw(vectors(dtype, ((), (1,)))) for _ in range(3)]
        case _:
            dtype = draw(DTYPES)
            values = [draw(vectors(dtype)), draw(vectors(dtype if draw(st.booleans()) else None))]
            version = {"Equal": 13, "LessOrEqual": 16, "GreaterOrEqual": 16, "Max": 13, "Min": 13}.get(
                op_type, 14 if op_type in ("Add", "Sub", "Mul", "Div") else 13
            )
    present = (True,) * len(values)
    return Operation("", op_type, version, attributes, present, (True,), opset=21), values


def of_kernel(op: Operation, values: list[Any]) -> Any:
    compiled = CPU.compile(op, [TensorSpec(v.dtype, v.shape, v) for v in values])
    views = CPU.view(compiled, values) if compiled.view is not None else None
    with np.errstate(all="ignore"):
        (result,) = views or run_once(CPU, compiled, list(values))
    return result


@settings(max_examples=800, deadline=None)
@given(case=cases())
def test_what_is_computed_without_a_kernel_is_what_the_kernel_computes(
    case: tuple[Operation, list[Any]],
) -> None:
    op, values = case
    given_ = [v.copy() for v in values]
    got = evaluated(op, [TensorSpec(v.dtype, v.shape) for v in values], values)
    assert all(np.array_equal(a, b) for a, b in zip(values, given_, strict=True)), "operands are only read"
    if got is None:
        return
    want = of_kernel(op, values)
    assert isinstance(got, np.ndarray)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


I64 = np.int64
ORDINARY = {
    "Shape": ({}, [np.zeros((3, 4), np.float32)]),
    "Size": ({}, [np.zeros((3, 4), np.float32)]),
    "Add": ({}, [np.array(511), np.array(1)]),
    "Sub": ({}, [np.array([3, 4]), np.array([1])]),
    "Mul": ({}, [np.array([3, 4]), np.array(2)]),
    "Div": ({}, [np.array([-7, 7]), np.array(2)]),
    "Max": ({}, [np.array([3, 4]), np.array([4, 3])]),
    "Min": ({}, [np.array([3, 4]), np.array([4, 3])]),
    "Equal": ({}, [np.array([3, -1]), np.array([-1])]),
    "Less": ({}, [np.array(3), np.array(4)]),
    "LessOrEqual": ({}, [np.array(3), np.array(4)]),
    "Greater": ({}, [np.arange(600).reshape(600, 1), np.array([3, 4])]),
    "GreaterOrEqual": ({}, [np.array(3), np.array(4)]),
    "Where": ({}, [np.array([True, False]), np.array([1, 1]), np.array([5, 6])]),
    "Gather": ({"axis": 0}, [np.array([1, 2, 3]), np.array(-1)]),
    "Not": ({}, [np.array([[True], [False]])]),
    "And": ({}, [np.array([[True], [False]]), np.array([True, False])]),
    "Or": ({}, [np.array([[True], [False]]), np.array([True, False])]),
    "Xor": ({}, [np.array([[True], [False]]), np.array([True, False])]),
    "Expand": ({}, [np.array([[True], [False]]), np.array([1, 2, 600])]),
    "Reshape": ({}, [np.arange(600), np.array([2, -1])]),
    "Unsqueeze": ({}, [np.arange(600).reshape(2, 300), np.array([0, -1])]),
    "Squeeze": ({}, [np.arange(600).reshape(1, 600), np.array([0])]),
    "Concat": ({"axis": 0}, [np.array([5]), np.array([6, 7])]),
    "Slice": ({}, [np.array([5, 6, 7]), np.array([-2]), np.array([1 << 40])]),
    "Cast": ({"to": 7}, [np.array([5], np.int32)]),
    "Range": ({}, [np.array(3), np.array(2000), np.array(2)]),
}


@pytest.mark.parametrize("op_type", sorted(OPERATORS))
def test_ordinary_shape_arithmetic_needs_no_kernel(op_type: str) -> None:
    attributes, values = ORDINARY[op_type]
    version = {"Shape": 15, "Range": 11, "Where": 16, "LessOrEqual": 16, "GreaterOrEqual": 16, "Not": 1}.get(
        op_type, 7 if op_type in ("And", "Or", "Xor") else 14 if op_type == "Reshape" else 13
    )
    version = 14 if op_type in ("Add", "Sub", "Mul", "Div") else version
    op = Operation("", op_type, version, attributes, (True,) * len(values), (True,), opset=21)
    got = evaluated(op, [TensorSpec(v.dtype, v.shape) for v in values], values)
    assert got is not None
    want = of_kernel(op, values)
    assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


def test_large_values_and_other_domains_are_left_to_kernels() -> None:
    many, more = np.zeros(MOST_ELEMENTS + 1, np.int64), np.zeros(MOST_POSITIONS + 1, np.int64)
    for op_type, values in (("Add", [more, more]), ("Add", [more, more[0]]), ("Gather", [many, many[:1]])):
        op = Operation("", op_type, 14, {}, (True, True), (True,), opset=21)
        assert evaluated(op, [TensorSpec(v.dtype, v.shape) for v in values], values) is None
    wide = Operation("", "Add", 14, {}, (True, True), (True,), opset=21)
    columns = [many[:, None], many]
    assert evaluated(wide, [TensorSpec(v.dtype, v.shape) for v in columns], columns) is None
    other = Operation("com.example", "Add", 1, {}, (True, True), (True,), opset=1)
    one = np.array(1)
    assert evaluated(other, [TensorSpec(one.dtype, ())] * 2, [one, one]) is None


def test_an_index_out_of_range_is_the_kernels_error() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "k"], ["y"], name="extent"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
        [onnx.numpy_helper.from_array(np.array(4), "k")],
    )
    r = rig_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    with pytest.raises(Exception, match="out of range") as caught:
        r(np.zeros(3, np.float32))
    assert caught.value.node == "extent"  # type: ignore[attr-defined]
