"""DeformConv against onnxruntime or onnx.reference, and against Conv where nothing is moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

RNG = np.random.default_rng(4)


def case(
    channels: int, maps: int, size: tuple[int, int], out: tuple[int, int], *, group: int = 1, offsets: int = 1,
    kernel: tuple[int, int] = (3, 3), dtype: Any = np.float32,
) -> list[Any]:  # fmt: skip
    """X, W, offset, B and mask."""
    taps = kernel[0] * kernel[1] * offsets
    x, w, b = (
        RNG.normal(size=s) for s in ((2, channels, *size), (maps, channels // group, *kernel), (maps,))
    )
    offset = 2 * RNG.normal(size=(2, 2 * taps, *out))
    mask = RNG.random((2, taps, *out))
    return [a.astype(dtype) for a in (x, w, offset, b, mask)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("given", [3, 4, 5], ids=["bare", "bias", "mask"])
@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        (case(2, 3, (7, 6), (5, 4)), {}),
        (
            case(4, 6, (7, 6), (4, 3), group=2, offsets=2),
            {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]},
        ),
        (case(2, 2, (8, 8), (6, 4), kernel=(2, 3)), {"dilations": [2, 2]}),
    ],
    ids=["plain", "groups", "dilated"],
)  # fmt: skip
def test_taps_are_moved_and_interpolated(
    sizes: list[Any], attributes: dict[str, Any], given: int, dtype: Any
) -> None:
    inputs = [a.astype(dtype) for a in sizes[:given]]
    check_op("DeformConv", inputs, opset=19, rtol=1e-4, atol=1e-4, **attributes)


def test_half_precision_is_computed_in_single() -> None:
    inputs = case(2, 3, (7, 6), (5, 4), dtype=np.float16)
    (found,) = run_op("DeformConv", inputs, opset=22)
    (wide,) = run_op("DeformConv", [a.astype(np.float32) for a in inputs], opset=22)
    np.testing.assert_array_equal(found, wide.astype(np.float16))


def test_offsets_of_nothing_make_a_convolution() -> None:
    x, w, offset, b, _ = case(2, 3, (7, 6), (7, 6))
    (found,) = run_op("DeformConv", [x, w, 0 * offset, b], opset=19, pads=[1, 1, 1, 1])
    (plain,) = run_op("Conv", [x, w, b], opset=11, pads=[1, 1, 1, 1])
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("far", [1e9, np.inf, np.nan, -1e30])
def test_taps_that_are_moved_out_of_sight_read_nothing(far: float) -> None:
    x, w, offset, b, _ = case(2, 3, (7, 6), (5, 4))
    (found,) = run_op("DeformConv", [x, w, np.full_like(offset, far), b], opset=19)
    np.testing.assert_array_equal(found, np.broadcast_to(b[:, None, None], found.shape))


def test_no_pixels_leave_the_bias() -> None:
    x, w, offset, b, _ = case(2, 3, (7, 6), (5, 4))
    (found,) = run_op("DeformConv", [x[:, :0], w[:, :0], offset, b], opset=19)
    np.testing.assert_array_equal(found, np.broadcast_to(b[:, None, None], found.shape))


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [(2, (2, 17, 5, 4), "must be \\[2, 18, 5, 4\\]"), (4, (2, 9, 5, 5), "mask"), (3, (4,), "for 3 maps")],
)
def test_operands_that_do_not_fit_are_an_error(index: int, shape: tuple[int, ...], message: str) -> None:
    inputs = case(2, 3, (7, 6), (5, 4))
    inputs[index] = np.zeros(shape, np.float32)
    with pytest.raises(KernelError, match=message):
        run_op("DeformConv", inputs, opset=19)
