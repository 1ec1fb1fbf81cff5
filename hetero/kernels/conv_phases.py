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
def spread(plane: Any, target: Any, sh: int, sw: int, top: int, left: int, rows: int, pitch: int) -> None:
    """Write the phases of plane (H, W), padded by `top` and `left` in front, into the 1-D target."""
    height, width = plane.shape
    for a in range(sh):
        for b in range(sw):
            base = (a * sw + b) * rows * pitch
            lo = min(max(0, -((b - left) // sw)), pitch)
            hi = max(lo, min(pitch, (width - 1 + left - b) // sw + 1))
            for r in range(rows):
                at = r * sh + a - top
                line = target[base + r * pitch : base + (r + 1) * pitch]
                if at < 0 or at >= height:
                    line[:] = 0
                    continue
                source = plane[at]
                for q in range(lo):
                    line[q] = 0
                if sw == 1:
                    part = source[lo - left : hi - left]
                    run = line[lo:hi]
                    for q in range(hi - lo):
                        run[q] = part[q]
                else:
                    for q in range(lo, hi):
                        line[q] = source[q * sw + b - left]
                for q in range(hi, pitch):
                    line[q] = 0
