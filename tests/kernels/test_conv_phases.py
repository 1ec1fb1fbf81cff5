"""Phases: every tap of every output lies where its offset says, for any stride, dilation and pad."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero.kernels.conv_phases import Phases, spread
from hetero.kernels.jit import jit
from hetero.kernels.window import window_of
from hetero.program.operation import Operation


def _python(x: Any, target: Any, sh: int, sw: int, top: int, left: int, rows: int, pitch: int) -> None:
    spread(x, target, sh, sw, top, left, rows, pitch)


@jit("f4[2], f4[1]!, i8, i8, i8, i8, i8, i8", twin=_python)
def spread_one(x: Any, target: Any, sh: int, sw: int, top: int, left: int, rows: int, pitch: int) -> None:
    spread(x, target, sh, sw, top, left, rows, pitch)


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
PADS = st.tuples(*(st.integers(0, 3) for _ in range(4)))


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(1, 8), st.integers(1, 8)), PAIR, PAIR, PAIR, PADS)
def test_every_tap_lies_at_its_offset(
    extents: Any, kernel: Any, strides: Any, dilations: Any, pads: Any
) -> None:
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(r <= e + a + b for r, e, a, b in zip(reach, extents, pads[:2], pads[2:], strict=True)))
    op = Operation("", "Conv", 11, {"strides": strides, "dilations": dilations, "pads": pads})
    window = window_of(op, extents, kernel)
    phases = Phases.of(window)
    x = np.arange(1, extents[0] * extents[1] + 1, dtype=np.float32).reshape(extents)
    target = np.zeros(phases.size + phases.slack, np.float32)
    arguments = (*strides, *window.begins, phases.rows, phases.pitch)
    spread_one.variant(x, target)(x, target, *arguments)
    plain = np.zeros_like(target)
    _python(x, plain, *arguments)
    assert (target == plain).all()
    padded = np.pad(x, ((pads[0], pads[2]), (pads[1], pads[3])))
    for r, q in np.ndindex(*window.outputs):
        for t, (i, j) in enumerate(np.ndindex(*kernel)):
            expected = padded[r * strides[0] + i * dilations[0], q * strides[1] + j * dilations[1]]
            assert target[phases.offsets[t] + r * phases.pitch + q] == expected
