"""Planes laid out so that every tap of a window reads one contiguous run, whatever the stride.

A padded plane is split into sh*sw phases: phase (a, b) holds the elements at rows a, a+sh… and columns b, b+sw… Tap
(i, j) of output (r, q) then lies at row r + i*dh // sh, column q + j*dw // sw of phase (i*dh % sh, j*dw % sw): at a
fixed distance from r * pitch + q. Whole blocks of output rows are one run, with `pitch - columns` unused results a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.kernels.jit import inline
from hetero.kernels.window import Window
from hetero.types import HostArray

LANES = 16
"""Runs are rounded up to this many elements: a vector loop's scalar tail would cost more."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The layout for one window over two axes. `size` elements a plane, then `slack` after the last."""

    window: Window
    rows: int
    pitch: int

    @classmethod
    def of(cls, window: Window) -> Phases:
        """The smallest layout that holds every window."""
        (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
        return cls(
            window,
            window.outputs[0] + (kh - 1) * dh // sh,
            window.outputs[1] + (kw - 1) * dw // sw,
        )

    @property
    def size(self) -> int:
        """Elements of all phases of one plane."""
        sh, sw = self.window.strides
        return sh * sw * self.rows * self.pitch

    @property
    def slack(self) -> int:
        """Elements behind the last plane that a run may touch (its results are not used)."""
        return self.pitch + LANES

    @property
    def offsets(self) -> HostArray:
        """Distance of each tap from the output it serves, in the order of the kernel's elements."""
        (kh, kw), (sh, sw), (dh, dw) = self.window.kernel, self.window.strides, self.window.dilations
        i, j = np.arange(kh)[:, None] * dh, np.arange(kw) * dw
        phase = i % sh * sw + j % sw
        return (phase * self.rows * self.pitch + i // sh * self.pitch + j // sw).reshape(-1).astype(np.int64)

    def block(self, elements: int) -> int:
        """Output rows per block of about so many elements."""
        return max(1, min(self.window.outputs[0], elements // max(self.pitch, 1)))


@inline
def _spread_pairs(plane: Any, target: Any, sh: int, top: int, left: int, rows: int, pitch: int) -> None:
    """`spread` for two columns a step: elements 2k and 2k + 1 of a row go to place k of two phases, a pass for both."""
    height, width = plane.shape
    even, odd = left % 2, 1 - left % 2
    skip, skip_odd = left // 2, (left + 1) // 2
    # At most one more of the even ones: the last column of an odd width.
    n = max(0, min((width + 1) // 2, pitch - skip))
    n_odd = max(0, min(width // 2, pitch - skip_odd))
    for a in range(sh):
        r0 = max(0, -((a - top) // sh))
        r1 = min(rows, (height - 1 + top - a) // sh + 1)
        base = (2 * a + even) * rows * pitch + skip
        base_odd = (2 * a + odd) * rows * pitch + skip_odd
        for r in range(r0, r1):
            part = plane[r * sh + a - top]
            pairs = part[: 2 * n_odd].reshape(n_odd, 2)  # an index of 2 * q would stop SIMD
            line = target[base + r * pitch :][:n]
            other = target[base_odd + r * pitch :][:n_odd]
            for q in range(n_odd):
                line[q] = pairs[q, 0]
                other[q] = pairs[q, 1]
            if n > n_odd:
                line[n_odd] = part[2 * n_odd]


@inline
def spread(plane: Any, target: Any, sh: int, sw: int, top: int, left: int, rows: int, pitch: int) -> None:
    """Write the elements of plane (H, W) to their places in the 1-D target, which holds zeros where pads are."""
    height, width = plane.shape
    if sw == 2:
        _spread_pairs(plane, target, sh, top, left, rows, pitch)
        return
    for b in range(sw):
        lo = min(max(0, -((b - left) // sw)), pitch)
        n = min(pitch, (width - 1 + left - b) // sw + 1) - lo
        if n <= 0:
            continue
        first = lo * sw + b - left
        for a in range(sh):
            r0 = max(0, -((a - top) // sh))
            r1 = min(rows, (height - 1 + top - a) // sh + 1)
            base = (a * sw + b) * rows * pitch + lo
            for r in range(r0, r1):
                line = target[base + r * pitch :][:n]
                part = plane[r * sh + a - top][first:]
                if sw == 1:
                    for q in range(n):
                        line[q] = part[q]
                else:
                    for q in range(n):
                        line[q] = part[q * sw]
