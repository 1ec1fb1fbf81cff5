"""From an image to its text: one call of the detector, then one of the recogniser per batch of lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.ocr import detect, recognise
from examples.ocr.layout import Box
from examples.ocr.recognise import Read
from examples.ocr.runners import Arrays, Runner

SURE_ENOUGH = 0.5  # a line read with less confidence is more likely a picture than text

Progress = Callable[[str, int, int], None]  # (stage, done, total)


class OutputError(Exception):
    """A model did not return the one output this program knows what to do with."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Every box found, in reading order, with what was read in it."""

    boxes: tuple[Box, ...]
    reads: tuple[Read, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The text, without lines that are blank or too unsure; `left_out` says how many those were."""
        return tuple(read.text for read in self.reads if _counts(read))

    @property
    def left_out(self) -> int:
        return len(self.reads) - len(self.lines)


def _counts(read: Read) -> bool:
    return read.confidence >= SURE_ENOUGH and bool(read.text.strip())


def read_page(
    image: Image.Image,
    detector: Runner,
    recogniser: Runner,
    characters: Sequence[str],
    *,
    side_limit: int = detect.SIDE_LIMIT,
    batch: int = recognise.BATCH,
    progress: Progress = lambda *_: None,
) -> Reading:
    """The text of `image`. `characters` is the recogniser's alphabet, one entry per class.

    Raises: OutputError or recognise.AlphabetError if a model's output is not of the expected form.
    """
    progress("find lines", 0, 1)
    found = detector.run({detect.INPUT: detect.prepare(image, side_limit)})
    boxes = detect.find_boxes(_sole(found, rank=4), image.size)
    progress("find lines", 1, 1)
    reads: dict[int, Read] = {}
    progress("read lines", 0, len(boxes))
    for lines in recognise.batches(image, boxes, batch):
        answer = recogniser.run({recognise.INPUT: lines.feed})
        decoded = recognise.decode(_sole(answer, rank=3), characters)
        reads.update(zip(lines.indices, decoded, strict=True))
        progress("read lines", len(reads), len(boxes))
    return Reading(tuple(boxes), tuple(reads[index] for index in range(len(boxes))))


def _sole(outputs: Arrays, rank: int) -> NDArray[np.float32]:
    shapes = {name: array.shape for name, array in outputs.items()}
    if len(outputs) != 1:
        raise OutputError(f"one output was expected, got {shapes}")
    (array,) = outputs.values()
    if array.ndim != rank or array.dtype != np.float32:
        raise OutputError(f"float32 of rank {rank} was expected, got {array.dtype} {shapes}")
    return array
