"""ImageDecoder; the formats themselves are cases of the conformance suite."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hetero.errors import KernelError, MemoryLimitError
from hetero.kernels.limits import limited
from tests.kernels.harness import run_op

PIXELS = np.random.default_rng(6).integers(0, 256, (5, 7, 3), np.uint8)


def encoded(kind: str, pixels: Any = PIXELS) -> Any:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_pixels_come_in_the_order_that_is_asked_for(kind: str) -> None:
    (rgb,) = run_op("ImageDecoder", [encoded(kind)], opset=20)
    (bgr,) = run_op("ImageDecoder", [encoded(kind)], opset=20, pixel_format="BGR")
    np.testing.assert_array_equal(rgb, PIXELS)
    np.testing.assert_array_equal(bgr, PIXELS[:, :, ::-1])


def test_grey_pixels_have_one_channel() -> None:
    (grey,) = run_op("ImageDecoder", [encoded("PNG", PIXELS[:, :, 0])], opset=20, pixel_format="Grayscale")
    np.testing.assert_array_equal(grey, PIXELS[:, :, :1])


def test_bytes_that_are_no_image_are_an_error() -> None:
    for data in (encoded("PNG")[:60], np.zeros(20, np.uint8), np.zeros(0, np.uint8), encoded("GIF")):
        with pytest.raises(KernelError, match="no image"):
            run_op("ImageDecoder", [data], opset=20)


def test_an_image_beyond_the_bound_is_refused_before_it_is_decoded() -> None:
    with limited(100), pytest.raises(MemoryLimitError):
        run_op("ImageDecoder", [encoded("PNG")], opset=20)
