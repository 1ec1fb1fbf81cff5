"""Tensors without elements through every kernel family: the shapes and values that ONNX's text gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import HeteroError
from tests.hostile.harness import PROVIDERS, bounded, executor
from tests.hostile.seeds import f32, i64, node_model, scalar

INF, NAN = np.inf, np.nan


def none(*shape: int, dtype: Any = np.float32) -> Any:
    """An array that must be empty, or the expected empty result."""
    return np.zeros(shape, dtype)


def full(value: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return np.full(shape, value, dtype)


LENGTHS = np.zeros(0, np.int32)
CASES: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("Add", [none(0, 3), f32(3)], {}, [none(0, 3)]),
    ("Add", [none(0, 1), f32(1, 4)], {}, [none(0, 4)]),
    ("Relu", [none(2, 0)], {}, [none(2, 0)]),
    ("Erf", [none(0)], {}, [none(0)]),
    ("Cast", [none(0, 2)], {"to": 7}, [none(0, 2, dtype=np.int64)]),
    ("Where", [none(0, dtype=np.bool_), f32(1), f32(1)], {}, [none(0)]),
    ("MatMul", [none(2, 0), none(0, 3)], {}, [full(0, 2, 3)]),
    ("MatMul", [none(0, 2), f32(2, 3)], {}, [none(0, 3)]),
    ("MatMul", [none(0, 4, 2), f32(2, 3)], {}, [none(0, 4, 3)]),
    ("MatMul", [none(0), none(0)], {}, [full(0)]),
    ("Gemm", [none(2, 0), none(0, 3), full(2, 3)], {"beta": 0.5}, [full(1, 2, 3)]),
    (
        "MatMulInteger",
        [none(2, 0, dtype=np.uint8), none(0, 3, dtype=np.uint8)],
        {},
        [full(0, 2, 3, dtype=np.int32)],
    ),
    ("Einsum", [none(2, 0), none(0, 3)], {"equation": "ij,jk->ik"}, [full(0, 2, 3)]),
    ("Conv", [none(0, 2, 5, 5), f32(4, 2, 3, 3)], {}, [none(0, 4, 3, 3)]),
    ("Conv", [none(0, 2, 5, 5), f32(4, 1, 3, 3)], {"group": 2, "pads": [1, 1, 1, 1]}, [none(0, 4, 5, 5)]),
    ("ConvTranspose", [none(0, 2, 3, 3), f32(2, 1, 2, 2)], {}, [none(0, 1, 4, 4)]),
    (
        "MaxPool",
        [none(0, 2, 4, 4)],
        {"kernel_shape": [2, 2], "n_outputs": 2},
        [none(0, 2, 3, 3), none(0, 2, 3, 3, dtype=np.int64)],
    ),
    ("AveragePool", [none(2, 0, 4)], {"kernel_shape": [2]}, [none(2, 0, 3)]),
    ("LpPool", [none(0, 1, 4)], {"kernel_shape": [2]}, [none(0, 1, 3)]),
    ("GlobalAveragePool", [none(0, 2, 3, 3)], {}, [none(0, 2, 1, 1)]),
    ("GlobalMaxPool", [none(0, 2, 3, 3)], {}, [none(0, 2, 1, 1)]),
    (
        "BatchNormalization",
        [none(0, 2, 3), full(1, 2), full(0, 2), full(0, 2), full(1, 2)],
        {},
        [none(0, 2, 3)],
    ),
    ("InstanceNormalization", [none(0, 2, 3), full(1, 2), full(0, 2)], {}, [none(0, 2, 3)]),
    ("LayerNormalization", [none(0, 3), full(1, 3), full(0, 3)], {}, [none(0, 3)]),
    ("LRN", [none(0, 3, 2)], {"size": 3}, [none(0, 3, 2)]),
    ("Softmax", [none(0, 3)], {}, [none(0, 3)]),
    ("Softmax", [none(3, 0)], {}, [none(3, 0)]),
    ("LogSoftmax", [none(3, 0)], {}, [none(3, 0)]),
    ("Hardmax", [none(0, 3)], {}, [none(0, 3)]),
    ("CumSum", [none(2, 0), scalar(1)], {}, [none(2, 0)]),
    ("TopK", [none(0, 3), i64(2)], {"n_outputs": 2}, [none(0, 2), none(0, 2, dtype=np.int64)]),
    ("TopK", [f32(2, 3), i64(0)], {"n_outputs": 2}, [none(2, 0), none(2, 0, dtype=np.int64)]),
    ("Unique", [none(0)], {"n_outputs": 4}, [none(0), *[none(0, dtype=np.int64)] * 3]),
    ("NonZero", [none(2, 0)], {}, [none(2, 0, dtype=np.int64)]),
    ("Compress", [none(0, 2), none(0, dtype=np.bool_)], {"axis": 0}, [none(0, 2)]),
    ("Gather", [f32(3, 2), none(0, 2, dtype=np.int64)], {}, [none(0, 2, 2)]),
    ("Gather", [none(3, 0), i64(2, 0)], {}, [none(2, 0)]),
    ("GatherElements", [f32(3), none(0, dtype=np.int64)], {}, [none(0)]),
    ("GatherND", [f32(3, 2), none(0, 1, dtype=np.int64)], {}, [none(0, 2)]),
    ("ScatterElements", [full(1, 3), none(0, dtype=np.int64), none(0)], {}, [full(1, 3)]),
    ("ScatterND", [full(1, 3), none(0, 1, dtype=np.int64), none(0)], {}, [full(1, 3)]),
    ("OneHot", [none(0, dtype=np.int64), scalar(3), f32(2)], {}, [none(0, 3)]),
    ("OneHot", [i64(1, 2), scalar(0), f32(2)], {}, [none(2, 0)]),
    ("Concat", [none(0, 3), full(1, 2, 3)], {"axis": 0}, [full(1, 2, 3)]),
    ("Concat", [none(0), none(0)], {"axis": 0}, [none(0)]),
    ("Split", [none(0, 2)], {"axis": 0, "num_outputs": 2, "n_outputs": 2}, [none(0, 2), none(0, 2)]),
    ("Split", [full(1, 2), i64(0, 2)], {"n_outputs": 2}, [none(0), full(1, 2)]),
    ("Tile", [f32(2, 3), i64(0, 2)], {}, [none(0, 6)]),
    ("Tile", [none(0, 3), i64(2**40, 1)], {}, [none(0, 3)]),
    ("Expand", [none(0, 1), i64(0, 4)], {}, [none(0, 4)]),
    ("Expand", [f32(1), i64(0)], {}, [none(0)]),
    ("Pad", [none(0, 2), i64(1, 0, 1, 0), scalar(7, np.float32)], {}, [full(7, 2, 2)]),
    ("Transpose", [none(2, 0, 3)], {}, [none(3, 0, 2)]),
    ("Range", [scalar(5), scalar(5), scalar(1)], {}, [none(0, dtype=np.int64)]),
    ("Range", [scalar(5), scalar(9), scalar(-1)], {}, [none(0, dtype=np.int64)]),
    ("ConstantOfShape", [i64(0, 3)], {}, [none(0, 3)]),
    ("ConstantOfShape", [none(0, dtype=np.int64)], {}, [full(0)]),
    ("EyeLike", [none(0, 3)], {}, [none(0, 3)]),
    ("Trilu", [none(2, 0, 3)], {}, [none(2, 0, 3)]),
    ("DepthToSpace", [none(0, 4, 2, 2)], {"blocksize": 2}, [none(0, 1, 4, 4)]),
    ("ReverseSequence", [none(3, 0), none(0, dtype=np.int64)], {}, [none(3, 0)]),
    ("Resize", [none(0, 1, 3, 3), None, None, i64(0, 1, 6, 6)], {}, [none(0, 1, 6, 6)]),
    ("Resize", [f32(1, 1, 3, 3), None, None, i64(1, 1, 0, 6)], {"mode": "linear"}, [none(1, 1, 0, 6)]),
    ("GridSample", [none(0, 1, 3, 3), none(0, 2, 2, 2)], {}, [none(0, 1, 2, 2)]),
    (
        "RoiAlign",
        [f32(1, 2, 4, 4), none(0, 4), none(0, dtype=np.int64)],
        {"output_height": 2, "output_width": 2},
        [none(0, 2, 2, 2)],
    ),
    ("NonMaxSuppression", [none(1, 0, 4), none(1, 1, 0), i64(3)], {}, [none(0, 3, dtype=np.int64)]),
    ("NonMaxSuppression", [f32(1, 2, 4), f32(1, 1, 2), i64(0)], {}, [none(0, 3, dtype=np.int64)]),
    (
        "LSTM",
        [none(0, 2, 2), f32(1, 12, 2), f32(1, 12, 3)],
        {"hidden_size": 3, "n_outputs": 3},
        [none(0, 1, 2, 3), full(0, 1, 2, 3), full(0, 1, 2, 3)],
    ),
    (
        "LSTM",
        [none(4, 0, 2), f32(1, 12, 2), f32(1, 12, 3)],
        {"hidden_size": 3, "n_outputs": 3},
        [none(4, 1, 0, 3), none(1, 0, 3), none(1, 0, 3)],
    ),
    (
        "GRU",
        [none(0, 2, 2), f32(1, 9, 2), f32(1, 9, 3), None, None, full(1, 1, 2, 3)],
        {"hidden_size": 3, "n_outputs": 2},
        [none(0, 1, 2, 3), full(1, 1, 2, 3)],
    ),
    (
        "GRU",
        [none(4, 0, 2), f32(1, 9, 2), f32(1, 9, 3), None, LENGTHS],
        {"hidden_size": 3, "n_outputs": 2},
        [none(4, 1, 0, 3), none(1, 0, 3)],
    ),
    (
        "RNN",
        [full(1, 2, 2, 2), f32(1, 3, 2), f32(1, 3, 3), None, np.zeros(2, np.int32)],
        {"hidden_size": 3, "n_outputs": 2},
        [full(0, 2, 1, 2, 3), full(0, 1, 2, 3)],
    ),
    ("QuantizeLinear", [none(0, 3), scalar(0.1, np.float32)], {}, [none(0, 3, dtype=np.uint8)]),
    ("DequantizeLinear", [none(0, dtype=np.uint8), scalar(0.1, np.float32)], {}, [none(0)]),
    ("Dropout", [none(0, 3)], {"n_outputs": 2}, [none(0, 3), none(0, 3, dtype=np.bool_)]),
    ("StringConcat", [none(0, dtype=object), np.array(["x"], object)], {}, [none(0, dtype=object)]),
    ("SpaceToDepth", [none(0, 1, 2, 2)], {"blocksize": 2}, [none(0, 4, 1, 1)]),
    ("HannWindow", [scalar(0)], {}, [none(0)]),
]


def _name(case: tuple[str, list[Any], dict[str, Any], list[Any]]) -> str:
    return f"{case[0]}-{','.join('x'.join(map(str, getattr(x, 'shape', ()))) for x in case[1])}"


def _run(op_type: str, inputs: list[Any], attributes: dict[str, Any], providers: list[str]) -> list[Any]:
    keywords = dict(attributes)
    model, feeds = node_model(op_type, inputs, keywords.pop("n_outputs", 1), **keywords)
    with bounded(), executor(model, providers) as ex:
        first, second = (list(ex.run(feeds).values()) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    return first


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_nothing_goes_through(case: tuple[str, list[Any], dict[str, Any], list[Any]]) -> None:
    op_type, inputs, attributes, expected = case
    for providers in PROVIDERS:
        found = _run(op_type, inputs, attributes, providers)
        assert len(found) == len(expected)
        for have, want in zip(found, expected, strict=True):
            assert (have.dtype, have.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(have, want)


IDENTITIES = {
    "Sum": 0.0,
    "SumSquare": 0.0,
    "L1": 0.0,
    "L2": 0.0,
    "LogSum": -INF,
    "LogSumExp": -INF,
    "Prod": 1.0,
    "Max": -INF,
    "Min": INF,
    "Mean": NAN,
}
"""A reduction of nothing, as the operators' texts give it; the mean of nothing is 0/0."""


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize(
    ("shape", "axis", "keepdims", "result"),
    [
        ((1, 0), 1, 0, (1,)),
        ((0, 0), 0, 1, (1, 0)),
        ((3, 0, 4), 1, 0, (3, 4)),
        ((3, 0), None, 0, ()),
        ((0,), -1, 1, (1,)),
    ],
)
def test_a_reduction_of_an_empty_axis_is_its_identity(
    name: str, shape: tuple[int, ...], axis: int | None, keepdims: int, result: tuple[int, ...]
) -> None:
    axes = [] if axis is None else [i64(axis)]
    (found,) = _run(f"Reduce{name}", [none(*shape), *axes], {"keepdims": keepdims}, PROVIDERS[0])
    assert found.shape == result
    np.testing.assert_array_equal(found, full(IDENTITIES[name], *result))


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("axes", [None, []], ids=["omitted", "empty"])
def test_no_axes_are_all_of_them_or_none_as_the_attribute_says(name: str, axes: list[int] | None) -> None:
    """With noop_with_empty_axes a reduction of several steps still takes the others (the square, the logarithm)."""
    x = np.array([[1, 2], [3, 4]], np.float32)
    inputs = [x] if axes is None else [x, i64(*axes)]
    every = {"Sum": 10, "SumSquare": 30, "L1": 10, "L2": np.sqrt(30), "LogSum": np.log(10), "Prod": 24}
    every |= {"LogSumExp": np.log(np.exp(x.astype(float)).sum()), "Max": 4, "Min": 1, "Mean": 2.5}
    (whole,) = _run(f"Reduce{name}", inputs, {"noop_with_empty_axes": 0}, PROVIDERS[0])
    assert whole.shape == (1, 1)
    np.testing.assert_allclose(whole, every[name], rtol=1e-6)
    (kept,) = _run(f"Reduce{name}", inputs, {"noop_with_empty_axes": 1}, PROVIDERS[0])
    each = {"SumSquare": x * x, "LogSum": np.log(x)}.get(name, x)
    np.testing.assert_allclose(kept, each, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_an_empty_axis_has_no_greatest_element(op_type: str) -> None:
    for shape, axis in (((1, 0), 1), ((3, 0, 4), 1), ((0,), 0)):
        with pytest.raises(HeteroError, match=f"axis {axis} of .* has no elements.*'bad'"):
            _run(op_type, [none(*shape)], {"axis": axis}, PROVIDERS[0])
    (found,) = _run(op_type, [none(3, 0, 4)], {"axis": 0}, PROVIDERS[0])
    assert (found.shape, found.dtype) == ((1, 0, 4), np.int64)
