"""Convolution of few windows: the bits of the route over gathered windows, whatever the shape and the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.conv import route
from hetero.kernels.conv_few import bind_few, few_parts, few_serves
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import enabled
from hetero.kernels.workspace import carved_bytes
from tests.kernels.test_conv_gathered import FLOAT32, FLOAT64, convolved, exactly, operands, shape_of


def by_few(shape: ConvShape, inputs: list[Any], *, constant: bool = True) -> Any:
    x, w, b = inputs
    w.flags.writeable = not constant
    y = np.full((shape.batch, shape.maps, *shape.window.outputs), np.nan, np.float32)
    scratch = np.full(carved_bytes(*few_parts(shape)), 0xFF, np.uint8)  # NaN, which must not spread
    bind_few(shape)([x, w, b], [y], scratch)()
    return y


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape | None:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    x = (draw(st.integers(1, 5)), draw(st.integers(1, 5)), *per_axis(1, 40 // rank**2))
    attributes: dict[str, Any] = {
        "strides": per_axis(1, 4), "dilations": per_axis(1, 2), "pads": per_axis(0, 3, 2 * rank)
    }  # fmt: skip
    maps = draw(st.sampled_from([1, 16, 33, 64, 70, 130]))
    try:
        return shape_of(x, maps, per_axis(1, 4 if rank > 1 else 36), **attributes)
    except KernelError:  # a window that does not fit
        return None


@settings(deadline=None, max_examples=150)
@given(shapes(), st.booleans())
def test_any_shape_has_the_bits_of_gathered_windows(shape: ConvShape | None, biased: bool) -> None:
    if shape is None or shape.empty or not enabled():
        return
    x, w, b = operands(shape)
    inputs = [x, w, b if biased else None]
    assert by_few(shape, inputs).tobytes() == convolved(shape, inputs).tobytes()


SERVED = {
    "spectrum": shape_of((4, 1, 832), 258, (256,), strides=(128,)),
    "one window": shape_of((1, 600, 1, 1), 130, (1, 1)),
    "many samples of one window": shape_of((150, 70, 1, 1), 90, (1, 1)),
    "last layer": shape_of((2, 64, 7, 7), 192, (3, 3), pads=(1, 1, 1, 1)),
    "depth in blocks": shape_of((3, 300, 2, 3), 80, (2, 2)),
    "volume": shape_of((2, 3, 4, 4, 4), 64, (3, 3, 3), strides=(2, 1, 1)),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize("name", SERVED)
def test_it_agrees_with_gathered_columns(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    shape = SERVED[name]
    inputs = operands(shape)
    np.testing.assert_allclose(by_few(shape, inputs), exactly(shape, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not enabled(), reason="threads are numba's")
@pytest.mark.parametrize("name", SERVED)
def test_threads_and_constancy_change_no_bit(name: str) -> None:
    import numba

    shape, before, found = SERVED[name], numba.get_num_threads(), set()
    inputs = operands(shape)
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            found.add(by_few(shape, inputs).tobytes())
            found.add(by_few(shape, inputs, constant=False).tobytes())
    finally:
        numba.set_num_threads(before)
    assert len(found) == 1


def test_operands_that_are_not_aligned_give_the_same_bits() -> None:
    shape = SERVED["last layer"]
    inputs = operands(shape)
    odd = []
    for x in inputs:
        raw = np.zeros(x.nbytes + 1, np.uint8)
        odd.append(raw[1:].view(np.float32).reshape(x.shape))
        odd[-1][...] = x
        raw.flags.writeable = False
    assert by_few(shape, odd).tobytes() == by_few(shape, inputs).tobytes()


@pytest.mark.skipif(not enabled(), reason="it is compiled")
def test_it_serves_where_panels_of_windows_would_be_empty() -> None:
    for shape in (SERVED["spectrum"], SERVED["one window"], SERVED["many samples of one window"]):
        assert route(shape, FLOAT32, np)[1].__qualname__.startswith("bind_few")
        assert not few_serves(shape, FLOAT64, np)
    for other in (
        shape_of((1, 64, 64, 1), 64, (1, 1)),
        shape_of((1, 64, 1, 1), 8, (1, 1)),
        shape_of((1, 64, 1, 1), 64, (1, 1), 2),
        shape_of((0, 64, 1, 1), 64, (1, 1)),
        shape_of((1, 1 << 15, 1, 1), 1 << 10, (1, 1)),
    ):
        assert not few_serves(other, FLOAT32, np)
