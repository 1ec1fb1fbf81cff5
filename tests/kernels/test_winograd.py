"""Winograd's transforms, compiled and as NumPy, against exact convolution; and that blocks of tiles join up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.kernels import winograd
from hetero.kernels.conv_shape import ConvShape
from hetero.kernels.jit import enabled
from hetero.kernels.window import window_of
from hetero.kernels.winograd import bind_winograd, winograd_parts, winograd_serves
from hetero.kernels.workspace import carved_bytes
from hetero.program.operation import Operation

RNG = np.random.default_rng(47)


def shape_of(x: tuple[int, ...], maps: int, pads: tuple[int, ...], **attributes: Any) -> ConvShape:
    op = Operation("", "Conv", 11, {"pads": pads, **attributes})
    return ConvShape(x[0], x[1], maps, attributes.get("group", 1), window_of(op, x[2:], (3, 3)))


def exact(x: Any, w: Any, pads: tuple[int, ...]) -> Any:
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,kcij->nkhw", view, w.astype(np.float64), optimize=True)


@pytest.mark.parametrize("block_bytes", [1, 1 << 14, 1 << 21])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize(
    ("x", "pads"),
    [
        ((2, 3, 10, 12), (1, 1, 1, 1)),
        ((1, 4, 9, 7), (0, 0, 0, 0)),
        ((1, 2, 5, 6), (5, 3, 4, 6)),
        ((1, 2, 3, 3), (2, 2, 2, 2)),
        ((1, 2, 9, 16), (1, 1, 1, 1)),
        ((2, 3, 7, 37), (1, 0, 1, 2)),
        ((1, 32, 24, 80), (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_any_shape_agrees_with_exact_convolution(
    x: Any, pads: Any, compiled: bool, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "BLOCK_BYTES", block_bytes)
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    shape = shape_of(x, 5, pads)
    values, weights = (
        RNG.standard_normal(x).astype(np.float32),
        RNG.standard_normal((5, x[1], 3, 3)).astype(np.float32),
    )
    bias = RNG.standard_normal(5).astype(np.float32)
    y = np.full((x[0], 5, *shape.window.outputs), np.nan, np.float32)
    scratch = np.full(carved_bytes(*winograd_parts(shape)), 0xFF, np.uint8)
    bind_winograd(shape)([values, weights, bias], [y], scratch)()
    np.testing.assert_allclose(y, exact(values, weights, pads) + bias[:, None, None], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not enabled(), reason="threads are numba's")
def test_threads_change_no_bit() -> None:
    import numba

    shape = shape_of((1, 32, 40, 90), 48, (1, 1, 1, 1))
    x = RNG.standard_normal((1, 32, 40, 90)).astype(np.float32)
    w = RNG.standard_normal((48, 32, 3, 3)).astype(np.float32)
    before, found = numba.get_num_threads(), set()
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            y = np.full((1, 48, 40, 90), np.nan, np.float32)
            scratch = np.full(carved_bytes(*winograd_parts(shape)), 0xFF, np.uint8)
            bind_winograd(shape)([x, w, None], [y], scratch)()
            found.add(y.tobytes())
    finally:
        numba.set_num_threads(before)
    assert len(found) == 1


def test_planes_do_not_meet_in_one_set_of_the_cache() -> None:
    _, _, tiles, products = winograd_parts(shape_of((1, 32, 450, 80), 40, (1, 1, 1, 1)))
    for planes, count in ((tiles, 32), (products, 40)):
        assert planes[0][1] in (count, count + 1)
        assert 64 <= 4 * planes[0][1] * planes[0][2] % 512 <= 448


def test_the_block_bounds_the_workspace() -> None:
    shape = shape_of((1, 96, 160, 160), 24, (1, 1, 1, 1))
    _, weights, tiles, products = winograd_parts(shape)
    assert carved_bytes(tiles, products) <= winograd.BLOCK_BYTES
    assert weights[0] == (16, 24, 96)


@pytest.mark.parametrize(
    "other",
    [
        shape_of((1, 32, 14, 14), 32, (1, 1, 1, 1), strides=(2, 2)),
        shape_of((1, 32, 14, 14), 32, (1, 1, 1, 1), dilations=(2, 2)),
        shape_of((1, 32, 14, 14), 32, (1, 1, 1, 1), group=2),
        shape_of((1, 3, 14, 14), 32, (1, 1, 1, 1)),
        shape_of((1, 32, 3, 3), 32, (1, 1, 1, 1)),
    ],
)
def test_it_serves_only_what_it_pays_for(other: ConvShape) -> None:
    assert not winograd_serves(other, np.dtype(np.float32), np)
    served = shape_of((1, 32, 14, 14), 32, (1, 1, 1, 1))
    assert winograd_serves(served, np.dtype(np.float32), np)
    assert not winograd_serves(served, np.dtype(np.float64), np)


@pytest.mark.skipif(not enabled(), reason="panels are of compiled products")
def test_few_tiles_are_left_to_windows() -> None:
    assert not winograd_serves(shape_of((1, 32, 4, 4), 32, (1, 1, 1, 1)), np.dtype(np.float32), np)
