"""Makers of valid model inputs: a maker gives one input of either case, from a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Maker = Callable[[np.random.Generator, int], Array]
"""(generator, case 0 or 1) -> the input. Case 1 has another batch or length where the model has a second size."""
Size = Sequence[int]

SAMPLE_RATE_HZ = 16_000


def normal(first: Size, second: Size | None = None, *, scale: float = 1.0) -> Maker:
    """float32 of this shape, normally distributed around 0."""
    return lambda rng, case: (rng.standard_normal(_size(case, first, second)) * scale).astype(np.float32)


def uniform(first: Size, second: Size | None = None, *, low: float = 0.0, high: float = 1.0) -> Maker:
    """float32 of this shape between two bounds."""
    return lambda rng, case: rng.uniform(low, high, _size(case, first, second)).astype(np.float32)


def tokens(
    first: Size, second: Size | None = None, *, low: int = 1, high: int, dtype: type = np.int64
) -> Maker:
    """Integers of this shape, low <= token < high."""
    return lambda rng, case: rng.integers(low, high, _size(case, first, second)).astype(dtype)


def sparse(first: Size, second: Size | None = None) -> Maker:
    """float32 zeros of this shape with a one in about every tenth place."""
    return lambda rng, case: (rng.random(_size(case, first, second)) < 0.1).astype(np.float32)


def audio(
    first: Size, second: Size | None = None, *, scale: float = 1.0, channels: int | None = None
) -> Maker:
    """Two tones and some noise, float32 of this shape (…, samples), and channels after that where given."""

    def make(rng: np.random.Generator, case: int) -> Array:
        size = _size(case, first, second)
        time_s = np.arange(size[-1]) / SAMPLE_RATE_HZ
        tones = 0.4 * np.sin(2 * np.pi * 196 * time_s) + 0.15 * np.sin(2 * np.pi * 1480 * time_s)
        wave = ((tones + 0.05 * rng.standard_normal(size)) * scale).astype(np.float32)
        return wave if channels is None else np.repeat(wave[..., None], channels, axis=-1)

    return make


def zeros(first: Size, second: Size | None = None) -> Maker:
    """float32 zeros of this shape: the state that a recurrent model starts from."""
    return lambda rng, case: np.zeros(_size(case, first, second), np.float32)


def fixed(first: object, second: object | None = None, dtype: type = np.int64) -> Maker:
    """These very values."""
    return lambda rng, case: np.array(second if case and second is not None else first, dtype)


def mask(first: Size, second: Size | None = None, *, dtype: type = np.int64) -> Maker:
    """Ones of this shape (batch, length); where there are several rows, the second ends with padding."""

    def make(rng: np.random.Generator, case: int) -> Array:
        size = _size(case, first, second)
        made: Array = np.ones(size, dtype)
        if size[0] > 1:
            made[1, 2 * size[1] // 3 :] = 0
        return made

    return make


def categories(first: int, second: int, *columns: Sequence[str]) -> Maker:
    """Strings of shape (rows, columns), each one of its column's categories."""

    def make(rng: np.random.Generator, case: int) -> Array:
        rows = second if case else first
        drawn = [[column[int(rng.integers(len(column)))] for column in columns] for _ in range(rows)]
        return np.array(drawn, dtype=object)

    return make


def _size(case: int, first: Size, second: Size | None) -> tuple[int, ...]:
    return tuple(second if case and second is not None else first)
