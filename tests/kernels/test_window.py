"""Windows: every output extent and tap against a search over positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.window import Window, axis_taps, interior, window_of, windows
from hetero.program.operation import Operation


def node(**attributes: Any) -> Operation:
    return Operation("", "Conv", 11, attributes, name="node")


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_without_ceil_mode_windows_stay_inside_the_pads(
    extent: int, k: int, stride: int, dilation: int, begin: int, end: int
) -> None:
    reach = (k - 1) * dilation + 1
    assume(reach <= extent + begin + end)
    w = window_of(node(strides=(stride,), dilations=(dilation,), pads=(begin, end)), (extent,), (k,))
    starts = range(0, extent + begin + end - reach + 1, stride)
    assert w.outputs == (len(starts),)
    taps = axis_taps(w, 0)
    for t, (out, read) in enumerate(taps):
        spots = [(o, s - begin + t * dilation) for o, s in enumerate(starts)]
        inside = [(o, i) for o, i in spots if 0 <= i < extent]
        assert list(range(w.outputs[0])[out]) == [o for o, _ in inside]
        assert list(range(extent)[read]) == [i for _, i in inside]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
def test_ceil_mode_keeps_a_partial_window_that_starts_on_the_input(
    extent: int, k: int, stride: int, begin: int, end: int
) -> None:
    assume(k <= extent + begin + end and begin < k and end < k)
    w = window_of(node(strides=(stride,), pads=(begin, end)), (extent,), (k,), ceil_mode=True)
    last = (w.outputs[0] - 1) * stride
    assert last < extent + begin
    assert last + stride >= extent + begin or last + k >= extent + begin + end


@pytest.mark.parametrize("extent", [5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_same_pads_give_one_output_per_stride(extent: int, stride: int, k: int) -> None:
    upper = window_of(node(strides=(stride,), auto_pad="SAME_UPPER"), (extent,), (k,))
    lower = window_of(node(strides=(stride,), auto_pad=b"SAME_LOWER"), (extent,), (k,))
    assert upper.outputs == lower.outputs == (-(-extent // stride),)
    assert (upper.begins, upper.ends) == (lower.ends, lower.begins)
    assert 0 <= upper.ends[0] - upper.begins[0] <= 1


def test_a_view_of_padded_planes_shows_every_window() -> None:
    w = window_of(node(strides=(2, 1), pads=(1, 0, 1, 2)), (4, 5), (3, 2))
    padded = np.zeros((2, *w.reach))
    inner = interior(padded, w)
    inner[...] = np.arange(40).reshape(2, 4, 5)
    view = windows(np, padded, w)
    assert view.shape == (2, 3, 2, *w.outputs)
    for o in np.ndindex(*w.outputs):
        assert (view[(..., *o)] == padded[:, o[0] * 2 : o[0] * 2 + 3, o[1] : o[1] + 2]).all()


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"strides": (0,)}, KernelError),
        ({"strides": (1, 1)}, KernelError),
        ({"dilations": (-1,)}, KernelError),
        ({"pads": (1,)}, KernelError),
        ({"pads": (-1, 0)}, UnsupportedError),
        ({"auto_pad": "SAME"}, KernelError),
        ({"dilations": (4,)}, KernelError),
    ],
    ids=str,
)
def test_attributes_that_cannot_be_meant_are_named(
    attributes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"node 'node'"):
        window_of(node(**attributes), (5,), (3,))


def test_a_kernel_of_another_rank_is_refused() -> None:
    with pytest.raises(KernelError, match="rank 1"):
        window_of(node(), (5, 5), (3,))


def test_a_window_knows_whether_it_leaves_the_input() -> None:
    assert not window_of(node(), (5,), (3,)).padded
    assert window_of(node(pads=(0, 1)), (5,), (3,)).padded
    assert isinstance(window_of(node(), (5,), (3,)), Window)
