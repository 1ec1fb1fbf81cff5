"""Carving scratch: alignment, disjointness and the bytes that were promised."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetero.kernels.workspace import ALIGNMENT_BYTES, carve, carved_bytes

PARTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.sampled_from([np.float32, np.uint8, np.bool_, np.int64]),
    ),
    max_size=5,
)


@given(PARTS)
def test_parts_are_aligned_disjoint_and_inside(parts: list[tuple[tuple[int, ...], type]]) -> None:
    n = carved_bytes(*parts)
    raw = np.zeros(n + ALIGNMENT_BYTES, np.uint8)
    workspace = raw[-raw.ctypes.data % ALIGNMENT_BYTES :][:n]
    arrays = carve(workspace if n else None, *parts)
    assert [(a.shape, a.dtype) for a in arrays] == [(shape, np.dtype(t)) for shape, t in parts]
    for a in arrays:
        assert not a.nbytes or a.ctypes.data % ALIGNMENT_BYTES == 0
        a.reshape(-1).view(np.uint8)[...] += 1
    assert workspace.max(initial=0) <= 1
    assert int(workspace.sum()) == sum(a.nbytes for a in arrays)
