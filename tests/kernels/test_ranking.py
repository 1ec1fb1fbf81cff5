"""ArgMax, ArgMin and TopK: ties, NaN, long axes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.ranking import SEARCH_ELEMENTS
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.uint8])
def test_arg_operators(op_type: str, axis: int, keepdims: int, last: int, dtype: Any) -> None:
    x = RNG.integers(0, 3, (4, 5, 3)).astype(dtype)
    check_op(op_type, [x], opset=13, axis=axis, keepdims=keepdims, select_last_index=last)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_arg_max_of_half_precision_and_strides(dtype: Any) -> None:
    x = RNG.integers(0, 9, (4, 5)).astype(dtype)
    assert_close(run_op("ArgMax", [x.T[::-1]], opset=13, axis=0, keepdims=0), [x.T[::-1].argmax(0)])


def test_arg_max_along_nothing_is_an_error_unless_nothing_is_asked() -> None:
    with pytest.raises(KernelError, match="has no elements"):
        run_op("ArgMax", [np.zeros((2, 0), np.float32)], opset=13, axis=1)
    assert run_op("ArgMax", [np.zeros((2, 0), np.float32)], opset=13, axis=0)[0].shape == (1, 0)


def ranked(x: Any, k: int, largest: bool) -> Any:
    """Indices of the first k along the last axis: by value, then by index."""

    def of_row(row: list[Any]) -> list[int]:
        return sorted(range(len(row)), key=lambda i: (-row[i] if largest else row[i], i))[:k]

    rows = [of_row(row) for row in x.reshape(-1, x.shape[-1]).tolist()]
    return np.array(rows, np.int64).reshape(*x.shape[:-1], k)


@pytest.mark.parametrize("opset", [7, 10, 11])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k_versions(opset: int, axis: int) -> None:
    x = RNG.permutation(60).reshape(3, 4, 5).astype(np.float32)
    if opset < 10:
        check_op("TopK", [x], opset=opset, n_outputs=2, axis=axis, k=2)
    else:
        check_op("TopK", [x, np.array([2])], opset=opset, n_outputs=2, axis=axis)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.data(),
    st.booleans(),
    st.sampled_from([np.float32, np.int64, np.uint8, np.float16, ml_dtypes.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_ties_go_to_the_lower_index(
    values: list[int], data: st.DataObject, largest: bool, dtype: Any
) -> None:
    k = data.draw(st.integers(0, len(values)))
    x = np.array([values, values[::-1]]).astype(dtype)
    found, indices = run_op("TopK", [x, np.array([k])], opset=24, n_outputs=2, largest=int(largest))
    expected = ranked(x.astype(np.int64), k, largest)
    assert_close([indices], [expected])
    assert found.tobytes() == np.take_along_axis(x, expected, -1).tobytes()


@pytest.mark.parametrize("largest", [0, 1])
def test_long_axes_are_searched_and_give_the_same(largest: int) -> None:
    x = RNG.integers(0, 50, (2, SEARCH_ELEMENTS + 100)).astype(np.float32)
    _, indices = run_op("TopK", [x, np.array([40])], opset=11, n_outputs=2, largest=largest)
    assert_close([indices], [ranked(x, 40, bool(largest))])
    x[0, :50] = np.nan
    values, indices = run_op("TopK", [x, np.array([40])], opset=11, n_outputs=2, largest=largest)
    if largest:
        assert indices[0].tolist() == list(range(40))
        assert np.isnan(values[0]).all()
    else:
        assert not np.isnan(values).any()


def test_an_omitted_output_is_not_computed() -> None:
    x = np.array([3, 1, 2], np.float32)
    values, indices = run_op("TopK", [x, np.array([1])], opset=11, n_outputs=2, omit=[0])
    assert values is None
    assert indices.tolist() == [0]
    assert len(run_op("TopK", [x, np.array([1])], opset=11)) == 1


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(KernelError, match="4 of 3 elements"):
        run_op("TopK", [np.zeros(3, np.float32), np.array([4])], opset=11, n_outputs=2)
