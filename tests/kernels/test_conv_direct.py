"""The direct and the depthwise route, called for shapes of every kind whether they would be chosen or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero.kernels import conv_depthwise, conv_direct
from hetero.kernels.conv_depthwise import bind_depthwise, depthwise_parts, depthwise_serves
from hetero.kernels.conv_direct import bind_direct, direct_parts, direct_serves
from hetero.kernels.conv_gemm import bind_gemm, gemm_parts
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.window import window_of
from hetero.kernels.workspace import carved_bytes
from hetero.program.operation import Operation

RNG = np.random.default_rng(53)
F4 = np.dtype(np.float32)


def run(bind: Any, parts: Any, shape: ConvShape, inputs: list[Any]) -> Any:
    y = np.full((shape.batch, shape.maps, *shape.window.outputs), np.nan, np.float32)
    scratch = np.full(carved_bytes(*parts), 0xFF, np.uint8)  # as float32: NaN, which must not reach a result
    call = bind(inputs, [y], scratch)
    call()
    first = y.copy()
    scratch[...] = 0xFF
    call()
    assert first.tobytes() == y.tobytes()
    return y


@st.composite
def shapes(draw: st.DrawFn, depthwise: bool) -> ConvShape:
    kernel, strides, dilations = (
        draw(st.tuples(st.integers(1, top), st.integers(1, top))) for top in (5, 3, 2)
    )
    extents = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    pads = draw(st.tuples(*(st.integers(0, 2) for _ in range(4))))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(r <= e + a + b for r, e, a, b in zip(reach, extents, pads[:2], pads[2:], strict=True)))
    op = Operation("", "Conv", 11, {"strides": strides, "dilations": dilations, "pads": pads})
    group = draw(st.integers(1, 10 if depthwise else 2))
    per = 1 if depthwise else draw(st.integers(1, 4))
    maps = draw(st.integers(1, 2 if depthwise else 6))
    return ConvShape(
        draw(st.integers(1, 2)), group * per, group * maps, group, window_of(op, extents, kernel)
    )


def operands(shape: ConvShape) -> list[Any]:
    def normal(*extents: int) -> Any:
        return RNG.standard_normal(extents).astype(np.float32)

    return [
        normal(shape.batch, shape.channels, *shape.window.extents),
        normal(shape.maps, shape.group_channels, *shape.window.kernel),
        normal(shape.maps),
    ]


@settings(max_examples=60, deadline=None)
@given(shapes(depthwise=False), st.sampled_from([1, 40, 768]))
def test_direct_agrees_with_gathered_columns(shape: ConvShape, block: int) -> None:
    inputs = operands(shape)
    expected = run(bind_gemm(shape, F4, np), gemm_parts(shape, F4, np), shape, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_direct, "BLOCK_ELEMENTS", block)
        y = run(bind_direct(shape, F4), direct_parts(shape, F4), shape, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        patch.setenv("HETERO_JIT", "0")
        y = run(bind_direct(shape, F4), direct_parts(shape, F4), shape, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(shapes(depthwise=True), st.sampled_from([1, 40, 1024]))
def test_depthwise_agrees_with_gathered_columns(shape: ConvShape, block: int) -> None:
    inputs = operands(shape)
    expected = run(bind_gemm(shape, F4, np), gemm_parts(shape, F4, np), shape, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_depthwise, "BLOCK_ELEMENTS", block)
        y = run(bind_depthwise(shape, F4), depthwise_parts(shape, F4), shape, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        patch.setenv("HETERO_JIT", "0")
        y = run(bind_depthwise(shape, F4), depthwise_parts(shape, F4), shape, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_an_infinite_input_reaches_only_the_outputs_that_see_it() -> None:
    window = window_of(Operation("", "Conv", 11, {"pads": (1, 1, 1, 1)}), (9, 9), (3, 3))
    for shape, bind, parts in (
        (ConvShape(1, 3, 3, 3, window), bind_depthwise, depthwise_parts),
        (ConvShape(1, 3, 3, 1, window), bind_direct, direct_parts),
    ):
        inputs = [np.abs(a) + 1 for a in operands(shape)]
        inputs[0][0, 1, 4, 8] = np.inf
        y = run(bind(shape, F4), parts(shape, F4), shape, inputs)
        reached = np.zeros((3, 9, 9), bool)
        reached[1 if shape.group == 3 else slice(None), 3:6, 7:9] = True
        assert (np.isinf(y[0]) == reached).all()
        assert not np.isnan(y).any()


def test_without_numba_dense_convolutions_gather_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    window = window_of(Operation("", "Conv", 11, {}), (32, 32), (3, 3))
    shape = ConvShape(1, 8, 8, 1, window)
    assert direct_serves(shape, F4, np)
    monkeypatch.setenv("HETERO_JIT", "0")
    assert not direct_serves(shape, F4, np)
    assert depthwise_serves(ConvShape(1, 8, 8, 8, window), F4, np)
