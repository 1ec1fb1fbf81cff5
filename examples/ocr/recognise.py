"""Reading lines: crops of one height in batches of like width, and the text in the network's answer (CTC)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from examples.ocr.layout import Box

INPUT = "x"
HEIGHT = 48  # px, fixed by the model
NARROWEST, WIDEST = 320, 3200  # px; the model was trained on lines padded to 320
# Widths are rounded up to this many px: few distinct shapes, so a runtime that prepares itself per shape
# (kernels, memory plans, captured graphs) does so a few times only. Padding costs at most this much.
WIDTH_STEP = 160
BATCH = 4
BLANK = 0  # the class that CTC puts between characters


class AlphabetError(Exception):
    """The recognition model does not say which characters its classes are."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines to be read together: `feed` of shape (n, 3, 48, w), and which of the page's boxes they are."""

    indices: tuple[int, ...]
    feed: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Read:
    """Text of one line and the mean probability, 0..1, of its characters; 0 for no text."""

    text: str
    confidence: float


def alphabet(model: Path) -> tuple[str, ...]:
    """The character of each class, from the model's own metadata: the blank, the listed ones, the space.

    Raises: AlphabetError if the model carries no list.
    """
    loaded = onnx.load(model, load_external_data=False)
    listed = [entry.value for entry in loaded.metadata_props if entry.key == "character"]
    if len(listed) != 1 or not listed[0]:
        raise AlphabetError(f"{model} has no metadata entry 'character'")
    # split, not splitlines: the list may hold characters that splitlines takes for line ends.
    return ("", *listed[0].split("\n"), " ")


def padded_width(box: Box) -> int:
    """How wide, in px at the network's height, the batch must be for the line in `box`."""
    return min(WIDEST, max(NARROWEST, math.ceil(_scaled_width(box) / WIDTH_STEP) * WIDTH_STEP))


def _scaled_width(box: Box) -> int:
    return max(1, math.ceil(HEIGHT * box.width / box.height))


def batches(image: Image.Image, boxes: Sequence[Box], size: int = BATCH) -> Iterator[Batch]:
    """The boxes' crops in batches of at most `size`, narrowest first, so that little is padding."""
    order = sorted(range(len(boxes)), key=lambda index: _scaled_width(boxes[index]))
    for low in range(0, len(order), size):
        indices = tuple(order[low : low + size])
        width = max(padded_width(boxes[index]) for index in indices)
        feed = np.zeros((len(indices), 3, HEIGHT, width), np.float32)
        for place, index in enumerate(indices):
            line = crop(image, boxes[index], width)
            feed[place, :, :, : line.shape[2]] = line
        yield Batch(indices, feed)


def crop(image: Image.Image, box: Box, most: int) -> NDArray[np.float32]:
    """The line in `box`, shape (3, 48, at most `most`), float32 in -1..1, channels blue, green, red."""
    edges = (
        math.floor(box.left),
        math.floor(box.top),
        max(math.ceil(box.right), math.floor(box.left) + 1),
        max(math.ceil(box.bottom), math.floor(box.top) + 1),
    )
    width = min(most, _scaled_width(box))
    line = image.crop(edges).convert("RGB").resize((width, HEIGHT), Image.Resampling.BICUBIC)
    pixels = np.asarray(line, dtype=np.float32)[:, :, ::-1] / 127.5 - 1.0
    return pixels.transpose(2, 0, 1)


def decode(probabilities: NDArray[np.float32], characters: Sequence[str]) -> list[Read]:
    """The likeliest class at each step, repeats merged, blanks dropped (Graves et al., 2006, best path).

    `probabilities` has shape (lines, steps, classes). A doubled letter has a blank between its two runs.

    Raises: AlphabetError unless there is one character per class.
    """
    if probabilities.shape[2] != len(characters):
        raise AlphabetError(f"{probabilities.shape[2]} classes, but {len(characters)} characters")
    best = probabilities.argmax(axis=2)
    sure = np.take_along_axis(probabilities, best[:, :, None], axis=2)[:, :, 0]
    fresh = np.ones(best.shape, np.bool_)
    fresh[:, 1:] = best[:, 1:] != best[:, :-1]
    fresh &= best != BLANK
    reads: list[Read] = []
    for classes, chances, kept in zip(best, sure, fresh, strict=True):
        text = "".join(characters[index] for index in classes[kept])
        reads.append(Read(text, float(chances[kept].mean()) if kept.any() else 0.0))
    return reads
