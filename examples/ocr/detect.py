"""Finding the lines of a page: the detector's input from an image, boxes from the map it returns.

The model is a Differentiable Binarization network (Liao et al., 2020): it gives for each pixel the chance
that it lies in the shrunken core of a line of text, so a box found in the map is grown back before use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.ocr.components import find_components
from examples.ocr.layout import Box, reading_order

INPUT = "x"
MULTIPLE = 32  # the network halves its input five times
SIDE_LIMIT = 960  # longest side given to the network, px


@dataclass(frozen=True, slots=True)
class Settings:
    """What the detector was tuned with: see the PP-OCRv6 settings in rapidocr 3.10.0."""

    pixel: float = 0.3  # a pixel is text above this probability
    score: float = 0.5  # a box is kept from this mean probability on
    grow: float = 1.6  # how far a box grows, as a share of its area over its perimeter
    smallest_px: int = 3  # boxes thinner than this in the map are noise
    most: int = 1000


DEFAULTS = Settings()


def network_size(width: int, height: int, side_limit: int = SIDE_LIMIT) -> tuple[int, int]:
    """(width, height) to give the network: no side above `side_limit`, both multiples of 32, at least 32."""
    scale = min(1.0, side_limit / max(width, height))
    return _to_multiple(width * scale), _to_multiple(height * scale)


def _to_multiple(side: float) -> int:
    return max(MULTIPLE, round(side / MULTIPLE) * MULTIPLE)


def prepare(image: Image.Image, side_limit: int = SIDE_LIMIT) -> NDArray[np.float32]:
    """The network's input, shape (1, 3, h, w), float32 in -1..1, channels blue, green, red as trained."""
    resized = image.convert("RGB").resize(network_size(*image.size, side_limit), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, dtype=np.float32)[:, :, ::-1] / 127.5 - 1.0
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def find_boxes(
    probability: NDArray[np.float32], page_size: tuple[int, int], settings: Settings = DEFAULTS
) -> list[Box]:
    """Boxes of the lines, in page pixels and reading order, from the map of shape (1, 1, h, w).

    `page_size` is (width, height) of the image the map was made from. Boxes are upright: a page that
    lies crooked must be straightened first.
    """
    chance = probability[0, 0]
    found = find_components(chance > settings.pixel)
    score = _box_means(chance, found.left, found.top, found.right, found.bottom)
    width, height = found.right - found.left, found.bottom - found.top
    keep = (np.minimum(width, height) >= settings.smallest_px) & (score >= settings.score)
    grow = width * height * settings.grow / (2 * (width + height))
    map_height, map_width = chance.shape
    x_scale, y_scale = page_size[0] / map_width, page_size[1] / map_height
    boxes = [
        Box(
            left=float(np.clip((found.left[i] - grow[i]) * x_scale, 0, page_size[0])),
            top=float(np.clip((found.top[i] - grow[i]) * y_scale, 0, page_size[1])),
            right=float(np.clip((found.right[i] + grow[i]) * x_scale, 0, page_size[0])),
            bottom=float(np.clip((found.bottom[i] + grow[i]) * y_scale, 0, page_size[1])),
            score=float(score[i]),
        )
        for i in np.flatnonzero(keep)[: settings.most]
    ]
    return reading_order(boxes)


def _box_means(
    chance: NDArray[np.float32],
    left: NDArray[np.int64],
    top: NDArray[np.int64],
    right: NDArray[np.int64],
    bottom: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Mean of the map inside each box, from one summed-area table however many boxes there are."""
    table = np.zeros((chance.shape[0] + 1, chance.shape[1] + 1))
    table[1:, 1:] = chance.astype(np.float64).cumsum(axis=0).cumsum(axis=1)
    total = table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left]
    mean: NDArray[np.float64] = total / ((right - left) * (bottom - top))
    return mean
