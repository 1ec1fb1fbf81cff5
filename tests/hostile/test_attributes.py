"""Attributes of any size or sign are refused by name, without memory or time, and integer arithmetic never faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import HeteroError, KernelError, MemoryLimitError, ModelError
from tests.hostile.harness import PROVIDERS, bounded, executor
from tests.hostile.seeds import f32, i64, node_model, scalar, tensor_input

HIGHEST, LOWEST = 2**63 - 1, -(2**63)
SIZES = (2**40, HIGHEST)
IMAGE = f32(1, 1, 4, 4)
ROI = [IMAGE, np.array([[0, 0, 3, 3]], np.float32), i64(0)]

REFUSED: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[
        (op, [IMAGE], {"kernel_shape": [v, 2]})
        for op in ("MaxPool", "AveragePool", "LpPool")
        for v in (*SIZES, 0, -1)
    ],
    *[("MaxPool", [IMAGE], {"kernel_shape": [v, v], "pads": [v] * 4}) for v in SIZES],
    *[("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "pads": [v] * 4}) for v in SIZES],
    *[("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "strides": [v, 1]}) for v in (0, -1, LOWEST)],
    *[("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [v, 1]}) for v in (*SIZES, 0, LOWEST)],
    *[("Conv", [IMAGE, f32(1, 1, 3, 3)], {"pads": [v] * 4}) for v in SIZES],
    *[("Conv", [IMAGE, f32(1, 1, 3, 3)], {"dilations": [v, v]}) for v in (*SIZES, 0)],
    *[("Conv", [IMAGE, f32(1, 1, 3, 3)], {"group": v}) for v in (*SIZES, 0, -1)],
    ("Conv", [IMAGE, f32(1, 1, 3, 3)], {"kernel_shape": [2**40, 2**40]}),
    *[("ConvTranspose", [IMAGE, f32(1, 1, 3, 3)], {"strides": [v, v]}) for v in (*SIZES, 0, -1)],
    *[("ConvTranspose", [IMAGE, f32(1, 1, 3, 3)], {"output_shape": [v, v]}) for v in (*SIZES, -1)],
    *[("ConvTranspose", [IMAGE, f32(1, 1, 3, 3)], {"output_padding": [v, v]}) for v in SIZES],
    *[("RoiAlign", ROI, {"output_height": v, "output_width": v}) for v in (*SIZES, 0, -1)],
    *[("DepthToSpace", [f32(1, 4, 2, 2)], {"blocksize": v}) for v in (*SIZES, 0, -2)],
    *[("SpaceToDepth", [IMAGE], {"blocksize": v}) for v in (*SIZES, 0, -2)],
    *[("GroupNormalization", [f32(1, 4, 3), f32(4), f32(4)], {"num_groups": v}) for v in (*SIZES, 0, -1)],
    *[("LRN", [f32(1, 4, 3)], {"size": v}) for v in (0, -1)],
    *[("RandomNormal", [], {"shape": s}) for s in ([2**60], [2**40, 2**40], [-1])],
    *[("Multinomial", [f32(1, 3)], {"sample_size": v}) for v in (*SIZES, -1)],
    *[("Concat", [IMAGE], {"axis": v}) for v in (4, -5, HIGHEST, LOWEST)],
    *[("Softmax", [IMAGE], {"axis": v}) for v in (4, -5, HIGHEST, LOWEST)],
    *[("Flatten", [IMAGE], {"axis": v}) for v in (5, -5, HIGHEST)],
    *[("Gather", [IMAGE, i64(0)], {"axis": v}) for v in (4, -5, LOWEST)],
    *[("Transpose", [IMAGE], {"perm": p}) for p in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4], [0, 1, 2, -1])],
    *[("Cast", [IMAGE], {"to": v}) for v in (99, -1, HIGHEST)],
    *[("EyeLike", [f32(2, 2)], {"dtype": v}) for v in (99, -1, HIGHEST)],
    *[("ArgMax", [IMAGE], {"axis": v}) for v in (4, LOWEST)],
    ("LSTM", [f32(3, 2, 2), f32(1, 12, 2), f32(1, 12, 3)], {"hidden_size": 2**40}),
    ("LSTM", [f32(3, 2, 2), f32(1, 12, 2), f32(1, 12, 3)], {"hidden_size": 3, "direction": "sideways"}),
    ("Einsum", [f32(2, 2)], {"equation": "ij->" + "j" * 70}),
    ("Resize", [IMAGE, None, None, i64(1, 1, 2, 2)], {"mode": "sideways"}),
    ("ConstantOfShape", [i64(3)], {"value": numpy_helper.from_array(np.zeros(2, np.float32))}),
]


def _name(case: tuple[str, list[Any], dict[str, Any]]) -> str:
    return f"{case[0]}-{'-'.join(f'{k}={str(v)[:30]}' for k, v in case[2].items())}"


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_an_attribute_that_cannot_be_is_refused_by_name(case: tuple[str, list[Any], dict[str, Any]]) -> None:
    op_type, inputs, attributes = case
    model, feeds = node_model(op_type, inputs, **attributes)
    with bounded(), pytest.raises(HeteroError) as caught, executor(model, PROVIDERS[0]) as ex:
        ex.run(feeds)
    assert isinstance(caught.value, KernelError | MemoryLimitError | ModelError), repr(caught.value)
    assert caught.value.node == "bad"
    assert not isinstance(caught.value.__cause__, IndexError | TypeError | OverflowError | MemoryError)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("stride", [2**31, 2**40])
def test_a_stride_beyond_the_input_takes_the_first_window(op_type: str, stride: int) -> None:
    """Such a stride is lawful, and must not overflow positions."""
    model, feeds = node_model(op_type, [IMAGE], kernel_shape=[2, 2], strides=[stride, stride])
    with bounded(), executor(model, PROVIDERS[0]) as ex:
        (y,) = ex.run(feeds).values()
    window = IMAGE[0, 0, :2, :2]
    expected = window.max() if op_type == "MaxPool" else window.mean()
    np.testing.assert_allclose(y, np.full((1, 1, 1, 1), expected), rtol=1e-6)


SIGNED = (np.int8, np.int16, np.int32, np.int64)


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("op_type", ["Div", "Mod"])
@pytest.mark.parametrize("providers", PROVIDERS, ids=lambda p: p[0])
def test_integers_divided_by_zero_or_out_of_their_range_neither_warn_nor_fault(
    op_type: str, dtype: Any, providers: list[str]
) -> None:
    """ONNX leaves both open; what is defined beside them stays right."""
    low = np.iinfo(dtype).min
    x, y = np.array([7, low, low, 6, 0], dtype), np.array([0, -1, 0, 3, 0], dtype)
    model, feeds = node_model(op_type, [x, y])
    with bounded(), executor(model, providers) as ex:
        first, second = ex.run(feeds)["o0"], ex.run(feeds)["o0"]
    assert first.dtype == dtype
    assert first.tobytes() == second.tobytes()
    assert first[3] == (2 if op_type == "Div" else 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_a_shift_by_the_width_or_more_leaves_nothing(dtype: Any, direction: str) -> None:
    bits = np.iinfo(dtype).bits
    x = np.full(4, np.iinfo(dtype).max, dtype)
    by = np.array([0, bits - 1, bits, min(np.iinfo(dtype).max, 200)], dtype)
    model, feeds = node_model("BitShift", [x, by], direction=direction)
    with bounded(), executor(model, PROVIDERS[0]) as ex:
        y = ex.run(feeds)["o0"]
    most = int(x[0])
    once = most << (bits - 1) & most if direction == "LEFT" else most >> (bits - 1)
    assert y.tolist() == [most, once, 0, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_a_float_that_no_integer_holds_is_cast_without_a_word(value: float) -> None:
    model, feeds = node_model("Cast", [np.array([value, 2.5], np.float32)], to=TensorProto.INT32)
    with bounded(), executor(model, PROVIDERS[0]) as ex:
        first, second = ex.run(feeds)["o0"], ex.run(feeds)["o0"]
    assert first[1] == 2
    assert first.tobytes() == second.tobytes()


def test_extents_whose_product_overflows_are_caught_in_shape_arithmetic() -> None:
    """2^40 * 2^40 wraps to 0 in int64, which must not pass for the extent of nothing."""
    rows = [
        helper.make_node("Mul", ["n", "n"], ["total"], name="wraps"),
        helper.make_node("Reshape", ["x", "total"], ["y"], name="reshape"),
    ]
    x, n = f32(2, 3), i64(2**40)
    graph = helper.make_graph(
        rows, "g", [tensor_input("x", x), tensor_input("n", n)], [helper.make_tensor_value_info("y", 1, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with bounded(), executor(model, PROVIDERS[0]) as ex:
        with pytest.raises(HeteroError, match="reshape"):
            ex.run({"x": x, "n": n})
        assert ex.run({"x": x[:1, :1], "n": i64(1)})["y"].shape == (1,)


@pytest.mark.parametrize("delta", [0.0, np.nan])
def test_a_range_that_never_ends_is_refused(delta: float) -> None:
    model, feeds = node_model("Range", [scalar(v, np.float32) for v in (0.0, 5.0, delta)])
    with bounded(), executor(model, PROVIDERS[0]) as ex, pytest.raises(KernelError, match=r"count|delta"):
        ex.run(feeds)
