"""Scatters against peers and plain loops; the data's own memory is written only where that is allowed."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import check_op, compile_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def grid(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


FOLDS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("op_type", ["Scatter", "ScatterElements"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements_writes_at_indices(op_type: str, axis: int) -> None:
    indices = np.array([[0, -1], [1, 0]]) if op_type == "ScatterElements" else np.array([[0, 2], [1, 0]])
    opset = 18 if op_type == "ScatterElements" else 9
    check_op(op_type, [grid(3, 3), indices, -grid(2, 2) - 1], opset=opset, axis=axis)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("reduction", sorted(FOLDS))
def test_scatter_elements_folds_every_duplicate(reduction: str, dtype: Any) -> None:
    x = grid(2, 4).astype(dtype)
    indices = np.array([[1, 1, -1], [0, 0, 0]])
    updates = np.array([[2, 3, 4], [5, 1, 2]]).astype(dtype)
    expected = x.copy()
    for i, j in np.ndindex(indices.shape):
        at = (i, indices[i, j])
        expected[at] = FOLDS[reduction](expected[at], updates[i, j])
    (out,) = run_op("ScatterElements", [x, indices, updates], opset=18, axis=1, reduction=reduction)
    assert out.tolist() == expected.tolist()


def test_of_two_updates_without_a_reduction_the_last_stands() -> None:
    (out,) = run_op("ScatterElements", [grid(3), i64(1, 1, -2), grid(3)], opset=18)
    assert out.tolist() == [0, 2, 2]


def test_overflow_in_a_fold_is_silent() -> None:
    x = np.array([60000], np.float16)
    (out,) = run_op("ScatterElements", [x, i64(0), x], opset=16, reduction="add")
    assert np.isinf(out[0])


def test_scatter_takes_strings_strides_and_nothing() -> None:
    words = np.array(["a", "b"], object)
    assert run_op("ScatterElements", [words, i64(1), words[:1]], opset=18)[0].tolist() == ["a", "a"]
    x, updates = grid(3, 4).T, grid(2, 6)[:, ::2]
    (out,) = run_op("ScatterElements", [x, np.array([[3, 3, 3], [0, 1, 2]]), updates], opset=18)
    expected = x.copy()
    expected[3] = updates[0]
    for i in range(3):
        expected[i, i] = updates[1, i]
    assert out.tolist() == expected.tolist()
    (out,) = run_op("ScatterElements", [x, np.zeros((0, 3), np.int64), grid(0, 3)], opset=18)
    assert out.tolist() == x.tolist()
    with pytest.raises(UnsupportedError, match="cannot reduce strings"):
        run_op("ScatterElements", [words, i64(1), words[:1]], opset=18, reduction="add")


def test_a_scatter_out_of_range_leaves_the_memory_it_may_overwrite_alone() -> None:
    x = grid(3)
    before = x.copy()
    _, compiled = compile_op("ScatterElements", [x, i64(0, 3), grid(2)], opset=18)
    assert compiled.bind is not None
    assert compiled.overwrites == ((0, 0),)
    call = compiled.bind([x, i64(0, 3), grid(2)], [x], np.empty(compiled.workspace_bytes, np.uint8))
    with pytest.raises(KernelError, match="index 3 is out of range for axis 0 of extent 3"):
        call()
    assert x.tolist() == before.tolist()


def test_scatter_refuses_what_its_version_lacks_and_shapes_that_differ() -> None:
    with pytest.raises(KernelError, match="'max' is no reduction of version 16"):
        run_op("ScatterElements", [grid(3), i64(0), grid(1)], opset=16, reduction="max")
    with pytest.raises(KernelError, match=r"has shape \[2\], not \[1\]"):
        run_op("ScatterElements", [grid(3), i64(0), grid(2)], opset=16)
    with pytest.raises(KernelError, match=r"has shape \[1, 2\], not \[1, 3\]"):
        run_op("ScatterND", [grid(2, 3), np.array([[0]]), grid(1, 2)], opset=16)


@pytest.mark.parametrize(
    "indices",
    [np.array([[0], [-1]]), np.array([[0, 1], [2, -1]]), np.array([[[0, 1, 1]], [[-3, 0, 1]]]), i64(2)],
    ids=str,
)
@pytest.mark.parametrize("reduction", ["none", *sorted(FOLDS)])
def test_scatter_nd_writes_slices(indices: Any, reduction: str) -> None:
    x = grid(3, 2, 2) + 1
    updates = -grid(*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    check_op("ScatterND", [x, indices, updates], opset=18, use_ort=False, reduction=reduction)


@pytest.mark.parametrize("opset", [11, 13, 16])
def test_earlier_versions_of_scatter_nd_are_served(opset: int) -> None:
    check_op("ScatterND", [grid(4), np.array([[1], [3]]), -grid(2)], opset=opset)


def test_scatter_nd_takes_duplicates_empties_and_the_whole() -> None:
    (out,) = run_op("ScatterND", [grid(3), np.array([[1], [1]]), grid(2) + 5], opset=18, reduction="add")
    assert out.tolist() == [0, 12, 2]
    (out,) = run_op("ScatterND", [grid(3), np.zeros((0, 1), np.int64), grid(0)], opset=18)
    assert out.tolist() == [0, 1, 2]
    assert run_op("ScatterND", [grid(2, 0), np.array([[1]]), grid(1, 0)], opset=18)[0].shape == (2, 0)
    (out,) = run_op("ScatterND", [grid(2), np.zeros((1, 0), np.int64), -grid(1, 2)], opset=18)
    assert out.tolist() == [0, -1]
    with pytest.raises(KernelError, match="index -4 is out of range for axis 0 of extent 3"):
        run_op("ScatterND", [grid(3), np.array([[-4]]), grid(1)], opset=18)


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter_writes_each_entry_from_its_own_start(axis: int, mode: str) -> None:
    cache = grid(2, 4, 4, 4)
    shape = list(cache.shape)
    shape[axis] = 2
    update = -grid(*shape) - 1
    starts = i64(2, 0) if mode == "linear" else i64(3, 0)
    expected = cache.copy()
    for entry in range(2):
        for step in range(2):
            source = np.moveaxis(update[entry], axis - 1 if axis > 0 else axis, 0)[step]
            target = np.moveaxis(expected[entry], axis - 1 if axis > 0 else axis, 0)
            target[(starts[entry] + step) % 4] = source
    (out,) = run_op("TensorScatter", [cache, update, starts], opset=24, axis=axis, mode=mode)
    assert out.tolist() == expected.tolist()


def test_tensor_scatter_without_starts_writes_the_front() -> None:
    cache, update = grid(1, 4, 2), -grid(1, 3, 2)
    (out,) = run_op("TensorScatter", [cache, update], opset=24)
    assert out.tolist() == np.concatenate([update, cache[:, 3:]], 1).tolist()


def test_tensor_scatter_refuses_to_pass_the_end() -> None:
    cache = grid(1, 4, 2)
    with pytest.raises(KernelError, match=r"2 steps from \[3\] pass the end 4"):
        run_op("TensorScatter", [cache, grid(1, 2, 2), i64(3)], opset=24)
    with pytest.raises(KernelError, match="does not fit"):
        run_op("TensorScatter", [cache, grid(1, 5, 2)], opset=24)
    with pytest.raises(KernelError, match="axis 0 is the batch"):
        run_op("TensorScatter", [cache, grid(1, 2, 2)], opset=24, axis=0)
    with pytest.raises(KernelError, match="the batch has 1 entries"):
        run_op("TensorScatter", [cache, grid(1, 2, 2), i64(0, 0)], opset=24)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_a_large_batch_is_written_as_its_entries_are(axis: int) -> None:
    rng = np.random.default_rng(0)
    shape = [20, 5, 6, 7]
    data = rng.standard_normal(shape).astype(np.float32)
    shape[axis] = 2
    update = rng.standard_normal(shape).astype(np.float32)
    starts = rng.integers(0, 3, 20)
    (whole,) = run_op("TensorScatter", [data, update, starts], opset=24, axis=axis)
    for b in range(20):
        one = [data[b : b + 1], update[b : b + 1], starts[b : b + 1]]
        np.testing.assert_array_equal(run_op("TensorScatter", one, opset=24, axis=axis)[0], whole[b : b + 1])
