"""ImageDecoder: the bytes of an image file as pixels, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import HeteroError, KernelError
from hetero.kernels.base import Compiled, dynamic, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail, text_of
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec

UINT8 = np.dtype(np.uint8)
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
"""What the operator's text lists; Pillow's other readers stay out of an untrusted file's reach."""


@kernel("ImageDecoder", versions=(20,), portable=False)
def image_decoder(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """encoded_stream (n,) uint8 -> (height, width, channels) uint8; 3 channels for RGB and BGR, 1 for Grayscale.

    Raises when called: KernelError for bytes that are no image, MemoryLimitError for one that is too large.
    """
    stream = tensor(op, specs, 0)
    if stream.dtype != UINT8 or len(stream.shape) != 1:
        fail(op, f"must be a vector of uint8, is {stream}", "encoded_stream")
    layout = text_of(op, "pixel_format", "RGB")
    if layout not in _MODES:
        fail(op, f"{layout!r} is none of {list(_MODES)}", "pixel_format")

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        from PIL import Image  # here: few models have images inside

        try:
            with Image.open(io.BytesIO(inputs[0].tobytes()), formats=_FORMATS) as image:
                bounded(op, UINT8, (image.height, image.width, 3))
                pixels = np.array(image.convert(_MODES[layout]))
        except HeteroError:
            raise
        except Exception as error:  # Pillow raises whatever its readers stumble over
            raise KernelError(
                f"no image: {error}", op=op.id, node=op.name, operand="encoded_stream"
            ) from error
        if layout == "Grayscale":
            return (pixels[:, :, np.newaxis],)
        return (np.ascontiguousarray(pixels[:, :, ::-1]) if layout == "BGR" else pixels,)

    return dynamic(run)
