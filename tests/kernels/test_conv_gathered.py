"""Convolution over windows that are gathered on the way: against gathered columns, whatever the shape, and bit by bit
on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.conv import route
from hetero.kernels.conv_gathered import (
    bind_convolution,
    gathered_parts,
    gathered_serves,
    products_are_faster,
)
from hetero.kernels.conv_gemm import bind_gemm, gemm_parts
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import enabled
from hetero.kernels.window import window_of
from hetero.kernels.workspace import carved_bytes
from hetero.program.operation import Operation

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def shape_of(
    x: tuple[int, ...], maps: int, kernel: tuple[int, ...], group: int = 1, **attributes: Any
) -> ConvShape:
    op = Operation("", "Conv", 11, attributes)
    return ConvShape(x[0], x[1], maps, group, window_of(op, x[2:], kernel))


def operands(shape: ConvShape, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((shape.batch, shape.channels, *shape.window.extents)).astype(np.float32)
    w = rng.standard_normal((shape.maps, shape.group_channels, *shape.window.kernel)).astype(np.float32)
    return [x, w, rng.standard_normal(shape.maps).astype(np.float32)]


def convolved(shape: ConvShape, inputs: list[Any]) -> Any:
    y = np.full((shape.batch, shape.maps, *shape.window.outputs), np.nan, np.float32)
    scratch = np.full(carved_bytes(*gathered_parts(shape)), 0xFF, np.uint8)  # NaN, which must not spread
    bind_convolution(shape)(inputs, [y], scratch)()
    return y


def exactly(shape: ConvShape, inputs: list[Any]) -> Any:
    y = np.empty((shape.batch, shape.maps, *shape.window.outputs))
    scratch = np.empty(carved_bytes(*gemm_parts(shape, FLOAT64, np)), np.uint8)
    wide = [None if x is None else x.astype(np.float64) for x in inputs]
    bind_gemm(shape, FLOAT64, np)(wide, [y], scratch)()
    return y


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape | None:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    group = draw(st.integers(1, 3))
    x = (draw(st.integers(1, 2)), group * draw(st.integers(1, 5)), *per_axis(1, 70 // rank**2))
    maps = group * draw(st.sampled_from([1, 2, 5, 6, 7, 13]))
    attributes = {
        "strides": per_axis(1, 4), "dilations": per_axis(1, 3), "pads": per_axis(0, 3, 2 * rank)
    }  # fmt: skip
    try:
        return shape_of(x, maps, per_axis(1, 4), group, **attributes)
    except KernelError:  # a window that does not fit
        return None


@settings(deadline=None, max_examples=150)
@given(shapes(), st.booleans())
def test_any_shape_agrees_with_gathered_columns(shape: ConvShape | None, biased: bool) -> None:
    if shape is None or not gathered_serves(shape, FLOAT32, np):
        return
    x, w, b = operands(shape)
    inputs = [x, w, b if biased else None]
    np.testing.assert_allclose(convolved(shape, inputs), exactly(shape, inputs), rtol=1e-4, atol=1e-4)


LARGE = {
    "pointwise": shape_of((1, 70, 33, 41), 90, (1, 1)),
    "stride 2": shape_of((2, 20, 40, 50), 24, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "signal": shape_of((1, 1, 9000), 130, (400,), strides=(160,)),
    "depth in blocks": shape_of((1, 700, 6, 7), 64, (1, 1)),
    "groups": shape_of((2, 48, 21, 19), 36, (5, 5), 3, pads=(2, 2, 2, 2)),
    "few positions": shape_of((1, 300, 5, 7), 200, (1, 1)),
    "stride 3": shape_of((1, 16, 60, 61), 32, (5, 5), strides=(1, 3), pads=(2, 1, 2, 1)),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize("name", LARGE)
def test_large_shapes(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    shape = LARGE[name]
    inputs = operands(shape)
    np.testing.assert_allclose(convolved(shape, inputs), exactly(shape, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not enabled(), reason="threads are numba's")
@pytest.mark.parametrize("name", LARGE)
def test_threads_change_no_bit(name: str) -> None:
    import numba

    shape, before, found = LARGE[name], numba.get_num_threads(), set()
    inputs = operands(shape)
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            found.add(convolved(shape, inputs).tobytes())
    finally:
        numba.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.skipif(not enabled(), reason="the twin's products are BLAS's")
def test_a_map_has_the_same_bits_alone_as_among_others() -> None:
    whole = LARGE["stride 2"]
    x, w, b = operands(whole)
    together = convolved(whole, [x, w, b])
    alone = shape_of((1, 20, 40, 50), 1, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for m in (0, 5, 23):
        one = convolved(alone, [x[1:], w[m : m + 1], b[m : m + 1]])
        assert one.tobytes() == together[1:, m : m + 1].tobytes()


def test_operands_that_are_not_aligned_give_the_same_bits() -> None:
    shape = LARGE["few positions"]
    inputs = operands(shape)
    odd = []
    for x in inputs:
        raw = np.zeros(x.nbytes + 1, np.uint8)
        odd.append(raw[1:].view(np.float32).reshape(x.shape))
        odd[-1][...] = x
    assert convolved(shape, odd).tobytes() == convolved(shape, inputs).tobytes()


def test_the_route_hangs_on_the_shape_alone() -> None:
    def name(shape: ConvShape, dtype: Any = FLOAT32, xp: Any = np) -> str:
        return route(shape, dtype, xp)[1].__qualname__.split(".")[0]

    tiles = "bind_convolution" if enabled() else "bind_pointwise"
    assert name(LARGE["pointwise"]) == tiles
    assert name(LARGE["pointwise"], FLOAT64) == "bind_pointwise"
    assert name(shape_of((1, 0, 5), 3, (2,))) == "bind_gemm"
    assert name(shape_of((0, 4, 5), 3, (2,))) == "bind_gemm"
    assert not gathered_serves(LARGE["pointwise"], FLOAT64, np)
    assert products_are_faster(shape_of((1, 8, 40, 40), 24, (3, 3)))
    assert not products_are_faster(shape_of((1, 8, 40, 40), 8, (3, 3)))
    assert not products_are_faster(shape_of((1, 8, 40, 40), 24, (3, 3), strides=(1, 3)))
