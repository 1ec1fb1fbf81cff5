"""ConvInteger and QLinearConv: integers must be exact, so the peer is exact arithmetic or onnxruntime, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import check_op, compile_op, run_op
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(11)
RNG, integers = Q.rng, Q.integers


def exact(x: Any, w: Any, pads: int) -> Any:
    """The convolution of int64 arrays, dense, stride 1."""
    x = np.pad(x, ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    view = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,mcij->nmhw", view, w)


@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("x_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [3, 40], ids=["sums in float32", "sums in float64"])
def test_conv_integer_is_exact(x_dtype: Any, w_dtype: Any, channels: int) -> None:
    x, w = integers(x_dtype, 2, channels, 6, 5), integers(w_dtype, 4, channels, 3, 3)
    x_zero, w_zero = integers(x_dtype), integers(w_dtype, 4)
    wide = x.astype(np.int64) - int(x_zero), w.astype(np.int64) - w_zero.astype(np.int64)[:, None, None, None]
    (y,) = run_op("ConvInteger", [x, w, x_zero, w_zero], opset=10, pads=[1, 1, 1, 1])
    assert y.dtype == np.int32
    assert (y == exact(*wide, 1)).all()
    (y,) = run_op("ConvInteger", [x, w], opset=10)
    assert (y == exact(x.astype(np.int64), w.astype(np.int64), 0)).all()


@pytest.mark.parametrize("per_map", [False, True], ids=["one scale", "scale per map"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 6, 6), (4, 3, 1, 1), {}),
        ((2, 4, 6, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((1, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "strides": [2, 1]}),
        ((1, 40, 6, 6), (8, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    ],
    ids=["pointwise", "depthwise", "grouped", "dense"],
)
def test_qlinear_conv_agrees_with_onnxruntime_bit_for_bit(
    x: Any, w: Any, attributes: dict[str, Any], bias: bool, per_map: bool
) -> None:
    maps = w[0]
    scale = np.float32(0.01) + RNG.random(maps if per_map else ()).astype(np.float32) / 50
    inputs = [
        integers(np.uint8, *x),
        np.float32(0.02),
        np.uint8(120),
        integers(np.int8, *w),
        scale,
        np.zeros(np.shape(scale), np.int8),
        np.float32(0.3),
        np.uint8(100),
    ]
    inputs = [np.asarray(a) for a in inputs]
    if bias:
        inputs.append(RNG.integers(-4000, 4000, maps).astype(np.int32))
    check_op("QLinearConv", inputs, opset=10, **attributes)


@pytest.mark.parametrize(
    ("dtype", "w_dtype"),
    [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    ids=["uu", "us", "ss"],
)
@pytest.mark.parametrize(
    ("last", "x", "w", "attributes"),
    [
        (0, (2, 4, 6, 5), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        (1, (2, 6, 5, 4), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        (1, (2, 6, 5, 4), (8, 4, 1, 1), {}),
        (1, (1, 7, 6, 40), (40, 1, 3, 3), {"group": 40, "strides": [2, 2]}),
        (1, (1, 7, 40), (8, 40, 3), {}),
    ],
    ids=["channels first", "grouped", "pointwise", "depthwise", "one axis"],
)
def test_the_contributed_operator_takes_channels_last(
    last: int, x: Any, w: Any, attributes: dict[str, Any], dtype: Any, w_dtype: Any
) -> None:
    for n in ((), (w[0],)):
        zero = np.zeros(n, w_dtype) if w_dtype == np.int8 else np.full(n, 100, w_dtype)
        inputs = [
            integers(dtype, *x), np.float32(0.02), integers(dtype), integers(w_dtype, *w),
            RNG.uniform(0.01, 0.05, n).astype(np.float32) if n else np.float32(0.03), zero,
            np.float32(1), integers(dtype), RNG.integers(-4000, 4000, w[0]).astype(np.int32),
        ]  # fmt: skip
        inputs = [np.asarray(a) for a in inputs][: 9 if n else 8]
        keywords: dict[str, Any] = {"channels_last": last, **attributes}
        (y,) = run_op("QLinearConv", inputs, opset=1, domain="com.microsoft", **keywords)
        for optimised in (False, True):
            (expected,) = onnxruntime("QLinearConv", inputs, optimised=optimised, **keywords)
            assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
            assert (y == expected).all()


def test_results_saturate() -> None:
    one = np.ones((1, 1, 1, 1), np.uint8)
    scalars = [np.float32(1), np.uint8(0)]
    for y_zero, expected in ((np.int8(-100), -90), (np.uint8(250), 255)):
        inputs = [one, *scalars, one, *scalars, np.float32(0.1), y_zero]
        (y,) = run_op("QLinearConv", [np.asarray(a) for a in inputs], opset=10)
        assert y.dtype == np.asarray(y_zero).dtype
        assert y.item() == expected


def test_other_dtypes_and_shapes_are_refused() -> None:
    x, w = integers(np.uint8, 1, 2, 3, 3), integers(np.uint8, 2, 2, 1, 1)
    with pytest.raises(UnsupportedError, match="int16"):
        compile_op("ConvInteger", [x.astype(np.int16), w], opset=10)
    with pytest.raises(KernelError, match="one number or 2"):
        compile_op("ConvInteger", [x, w, np.uint8(0).reshape(()), integers(np.uint8, 3)], opset=10)
