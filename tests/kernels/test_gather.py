"""Gathers against peers, with negative, constant, strided and out-of-range indices."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.gather import range_check
from hetero.program.operation import Operation
from tests.kernels.harness import check_op, compile_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def grid(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


INDICES = [
    np.array(1),
    np.array(-1),
    i64(2),
    np.array([[0, -1], [1, -3]]),
    np.zeros((2, 0), np.int64),
    np.array([[2]], np.int32),
    np.array([0, 2], np.int32),
]


@pytest.mark.parametrize("known", [(), (1,)], ids=["read", "constant"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", INDICES, ids=str)
def test_gather_agrees_with_a_peer(indices: Any, axis: int, known: tuple[int, ...]) -> None:
    check_op("Gather", [grid(3, 3, 3), indices], opset=13, known=known, axis=axis)


def test_gather_reads_strided_data_and_strided_indices() -> None:
    x = grid(6, 8)[::2, ::-1].T
    indices = np.array([[0, 9], [-1, 9], [3, 9]])[:, 0]
    (out,) = run_op("Gather", [x, indices], opset=13)
    assert out.tolist() == x[indices].tolist()
    (out,) = run_op("Gather", [x, indices[:2]], opset=13, axis=1)
    assert out.tolist() == x[:, indices[:2]].tolist()


@pytest.mark.parametrize("dtype", [np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4, object])
def test_gather_does_not_care_what_the_elements_are(dtype: Any) -> None:
    x = np.array([0, 1, 1]).astype(dtype)
    assert run_op("Gather", [x, i64(-1, 0)], opset=13)[0].tolist() == x[[-1, 0]].tolist()


@pytest.mark.parametrize("known", [(), (1,)], ids=["read", "constant"])
@pytest.mark.parametrize("indices", [i64(3), i64(0, 1, -4), i64(0, 7, 1), np.array(2**62)], ids=str)
def test_an_index_out_of_range_names_itself_the_extent_and_the_axis(
    indices: Any, known: tuple[int, ...]
) -> None:
    worst = next(i for i in indices.reshape(-1).tolist() if not -3 <= i < 3)
    with pytest.raises(KernelError, match=f"index {worst} is out of range for axis 1 of extent 3") as caught:
        run_op("Gather", [grid(2, 3), indices], opset=13, known=known, axis=1)
    assert (caught.value.node, caught.value.operand) == ("node", "indices")


def test_gathering_from_an_empty_axis_is_out_of_range() -> None:
    with pytest.raises(KernelError, match="index 0 is out of range for axis 0 of extent 0"):
        run_op("Gather", [grid(0, 3), i64(0)], opset=13)
    assert run_op("Gather", [grid(0, 3), i64()], opset=13)[0].shape == (0, 3)
    assert run_op("Gather", [grid(3, 0), i64(1, 1)], opset=13)[0].shape == (2, 0)


def test_a_gather_at_one_constant_index_is_a_view() -> None:
    x = grid(4, 5, 6)
    for index, shape in ((np.array(-1), (4, 6)), (i64(2), (4, 1, 6)), (np.array([[0]]), (4, 1, 1, 6))):
        _, compiled = compile_op("Gather", [x, index], opset=13, known=(1,), axis=1)
        assert compiled.view is not None
        found = compiled.view([x, index])
        assert found is not None
        assert found[0].shape == shape
        assert np.shares_memory(found[0], x)


def test_a_bound_gather_checks_indices_that_change_in_place() -> None:
    x, indices = grid(4, 2), i64(0, 1)
    _, compiled = compile_op("Gather", [x, indices], opset=13)
    assert compiled.bind is not None
    out = np.empty((2, 2), np.float32)
    call = compiled.bind([x, indices], [out], None)
    call()
    indices[:] = [-1, 3]
    call()
    assert out.tolist() == x[[-1, 3]].tolist()
    indices[1] = 4
    with pytest.raises(KernelError, match="index 4"):
        call()


@settings(deadline=None, max_examples=100)
@given(
    values=st.lists(st.integers(-6, 6), max_size=6),
    extent=st.integers(0, 6),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_the_range_check_is_exact(values: list[int], extent: int, dtype: Any) -> None:
    check = range_check(Operation("", "Gather", 13), np.array(values, dtype), 0, extent)
    if all(-extent <= v < extent for v in values):
        assert check() == any(v < 0 for v in values)
    else:
        with pytest.raises(KernelError, match="out of range for axis 0"):
            check()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_trims_the_other_axes(axis: int) -> None:
    indices = np.array([[0, -1, 1], [2, 0, -3]])[:, :2]
    check_op("GatherElements", [grid(3, 3), indices], opset=13, axis=axis)
    check_op("GatherElements", [grid(3, 3), indices.astype(np.int32)], opset=11, axis=axis)
    check_op("GatherElements", [grid(3, 3), np.abs(indices)], opset=13, axis=axis)


def test_gather_elements_takes_strided_data_and_nothing() -> None:
    x = grid(3, 4).T
    (out,) = run_op("GatherElements", [x, np.array([[3, 0, 1]])], opset=13)
    assert out.tolist() == [[x[3, 0], x[0, 1], x[1, 2]]]
    assert run_op("GatherElements", [x, np.zeros((0, 3), np.int64)], opset=13)[0].shape == (0, 3)
    with pytest.raises(KernelError, match="index 4 is out of range for axis 0 of extent 4"):
        run_op("GatherElements", [x, np.array([[0, 4]])], opset=13)
    with pytest.raises(KernelError, match="extent 4 of axis 1 is beyond the data's 3"):
        run_op("GatherElements", [x, np.zeros((1, 4), np.int64)], opset=13)
    with pytest.raises(KernelError, match="rank 1 is not the data's rank 2"):
        run_op("GatherElements", [x, i64(0)], opset=13)


@pytest.mark.parametrize(
    ("indices", "batch_dims"),
    [
        (np.array([[0, 1], [1, -1]]), 0),
        (np.array([[1], [-2]]), 0),
        (np.array([[[0, 1, 2]], [[1, 0, -3]]]), 0),
        (np.array([[1], [-1]]), 1),
        (np.array([[[1, 2], [0, 0], [-1, -1]], [[0, 1], [2, 2], [1, 1]]])[:, :2], 1),
        (np.array([[[1], [0], [-1]], [[0], [2], [1]]]), 2),
        (i64(1), 0),
    ],
)
def test_gather_nd_takes_tuples_per_batch(indices: Any, batch_dims: int) -> None:
    attributes = {"batch_dims": batch_dims} if batch_dims else {}
    check_op("GatherND", [grid(2, 3, 4), indices], opset=13, use_ort=False, **attributes)


def test_gather_nd_checks_every_component() -> None:
    x = grid(2, 3)
    with pytest.raises(KernelError, match="index 3 is out of range for axis 1 of extent 3"):
        run_op("GatherND", [x, np.array([[0, 3]])], opset=13)
    with pytest.raises(KernelError, match="index -3 is out of range for axis 0 of extent 2"):
        run_op("GatherND", [x, np.array([[-3, 0]])], opset=11)
    with pytest.raises(KernelError, match="tuples of 3 are too long"):
        run_op("GatherND", [x, np.array([[0, 0, 0]])], opset=13)
    with pytest.raises(KernelError, match=r"batch axes \[1\] are not \[2\]"):
        run_op("GatherND", [x, np.array([[0]])], opset=13, batch_dims=1)
    with pytest.raises(KernelError, match="2 is out of range for ranks 2 and 2"):
        run_op("GatherND", [x, np.array([[0]])], opset=13, batch_dims=2)
    with pytest.raises(KernelError, match="select nothing"):
        run_op("GatherND", [x, np.zeros((1, 0), np.int64)], opset=13)


def test_gather_nd_takes_empty_and_strided_operands() -> None:
    assert run_op("GatherND", [grid(2, 3), np.zeros((0, 2), np.int64)], opset=13)[0].shape == (0,)
    assert run_op("GatherND", [grid(2, 0), np.array([[1], [0]])], opset=13)[0].shape == (2, 0)
    x = grid(4, 3).T
    (out,) = run_op("GatherND", [x, np.array([[0, 9, 3], [2, 9, 1]])[:, ::2]], opset=13)
    assert out.tolist() == [x[0, 3], x[2, 1]]
