"""NonZero, Unique, Compress and OneHot: data-dependent results and their corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, MemoryLimitError
from tests.kernels.harness import check_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def test_non_zero_lists_indices_in_row_major_order() -> None:
    check_op("NonZero", [np.array([[1, 0, 2], [0, 3, 0]], np.float32)], opset=13)
    check_op("NonZero", [np.array([[True, False]]).T], opset=9)
    assert run_op("NonZero", [np.zeros((2, 0, 3))], opset=13)[0].shape == (3, 0)


@pytest.mark.parametrize(("value", "n"), [(0.0, 0), (2.0, 1)])
def test_non_zero_of_a_scalar_has_no_rows(value: float, n: int) -> None:
    (out,) = run_op("NonZero", [np.array(value)], opset=13)
    assert (out.shape, out.dtype) == ((0, n), np.int64)


def test_compress_takes_short_conditions_and_any_axis() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    check_op("Compress", [x, np.array([False, True])], opset=11, axis=0)
    check_op("Compress", [x.T, np.array([False, True, True])], opset=11, axis=-1)
    check_op("Compress", [x, np.array([False, True, False, True])], opset=9)
    assert run_op("Compress", [x, np.array([True] * 3 + [False] * 9)], opset=11, axis=0)[0].shape == (3, 2)


def test_compress_refuses_to_select_beyond_the_end() -> None:
    with pytest.raises(KernelError, match="selects index 3 of an extent of 3"):
        run_op("Compress", [np.zeros((3, 2)), np.array([False] * 3 + [True])], opset=11, axis=0)
    with pytest.raises(KernelError, match="must have one axis"):
        run_op("Compress", [np.zeros((3, 2)), np.array([[True]])], opset=11)


@pytest.mark.parametrize("by_value", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique_agrees_with_a_peer(axis: int | None, by_value: int) -> None:
    x = np.array([[1, 1, 0, 2], [1, 1, 0, 2], [2, 2, 4, 2], [0, 0, 1, 1]], np.float32)
    attributes = {} if axis is None else {"axis": axis}
    check_op("Unique", [x], opset=11, n_outputs=4, sorted=by_value, **attributes)
    check_op("Unique", [x], opset=11, n_outputs=4, omit=(1, 2), sorted=by_value, **attributes)


def test_unique_takes_strings_empties_and_strides() -> None:
    words = np.array([["b", "a"], ["b", "a"], ["a", "c"]], object)
    y, first, inverse, counts = run_op("Unique", [words], opset=11, n_outputs=4, axis=0)
    assert y.tolist() == [["a", "c"], ["b", "a"]]
    assert [first.tolist(), inverse.tolist(), counts.tolist()] == [[2, 0], [1, 1, 0], [1, 2]]
    y, first, _, _ = run_op("Unique", [words.T], opset=11, n_outputs=4, sorted=0)
    assert [y.tolist(), first.tolist()] == [["b", "a", "c"], [0, 2, 5]]
    assert run_op("Unique", [np.zeros((0, 3))], opset=11, n_outputs=1, axis=0)[0].shape == (0, 3)
    assert run_op("Unique", [np.zeros((2, 0))], opset=11, n_outputs=1, axis=0)[0].shape == (1, 0)
    assert run_op("Unique", [np.zeros((2, 0))], opset=11, n_outputs=1)[0].shape == (0,)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=8))
def test_unique_slices_are_numpys(rows: list[list[int]]) -> None:
    x = np.array(rows)
    y, first, inverse, counts = run_op("Unique", [x], opset=11, n_outputs=4, axis=0)
    expected = np.unique(x, axis=0, return_index=True, return_inverse=True, return_counts=True)
    assert y.tolist() == expected[0].tolist()
    assert first.tolist() == expected[1].tolist()
    assert inverse.tolist() == expected[2].reshape(-1).tolist()
    assert counts.tolist() == expected[3].tolist()


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_one_hot_points_along_the_new_axis(axis: int, dtype: Any) -> None:
    indices = np.array([[1, -1, 9], [0, -4, 3]]).astype(dtype)
    values = np.array([2, 5], np.float32)
    (out,) = run_op("OneHot", [indices, i64(4), values], opset=11, axis=axis)
    assert out.shape == tuple(np.insert([2, 3], axis % 3, 4))
    last = np.moveaxis(out, axis, -1)
    hits = {(0, 0): 1, (0, 1): 3, (1, 0): 0, (1, 1): 0, (1, 2): 3}
    for at in np.ndindex(2, 3):
        assert last[at].tolist() == [5 if hits.get(at) == k else 2 for k in range(4)]


def test_before_version_11_a_negative_index_points_nowhere() -> None:
    (out,) = run_op("OneHot", [i64(-1, 1), i64(2), i64(0, 1)], opset=9)
    assert out.tolist() == [[0, 0], [0, 1]]


def test_one_hot_truncates_and_takes_unsigned_indices_scalars_and_strings() -> None:
    assert run_op("OneHot", [np.array([1.9]), np.array(3.0), i64(0, 1)], opset=11)[0].tolist() == [[0, 1, 0]]
    assert run_op("OneHot", [np.array([1], np.uint8), i64(2), i64(0, 1)], opset=11)[0].tolist() == [[0, 1]]
    assert run_op("OneHot", [np.array(0), i64(2), i64(0, 1)], opset=11)[0].tolist() == [1, 0]
    words = np.array(["no", "yes"], object)
    assert run_op("OneHot", [i64(1), i64(2), words], opset=11)[0].tolist() == [["no", "yes"]]
    assert run_op("OneHot", [i64(1), i64(0), i64(0, 1)], opset=11)[0].shape == (1, 0)


def test_one_hot_refuses_bad_depths() -> None:
    with pytest.raises(KernelError, match="-1 is negative"):
        run_op("OneHot", [i64(1), i64(-1), i64(0, 1)], opset=11)
    with pytest.raises(KernelError, match="must be \\[off_value, on_value\\]"):
        run_op("OneHot", [i64(1), i64(2), i64(1)], opset=11)
    with pytest.raises(MemoryLimitError):
        run_op("OneHot", [i64(1, 1), i64(2**62), i64(0, 1)], opset=11)
