"""The bounds on declared sizes hold exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetero.errors import KernelError, MemoryLimitError
from hetero.kernels.base import Compiled
from hetero.kernels.limits import (
    MAX_STEPS,
    MAX_VALUE_BYTES,
    bounded,
    bounded_steps,
    check_declared,
    limited,
    machine_bytes,
)
from hetero.program.operation import Operation
from hetero.types import TensorSpec

OP = Operation("", "Expand", 13, name="grow")


def test_what_fits_becomes_a_spec_of_python_integers() -> None:
    spec = bounded(OP, np.dtype(np.float32), np.array([2, 0, 2**30]))
    assert spec.shape == (2, 0, 2**30)
    assert all(type(d) is int for d in spec.shape)


@pytest.mark.parametrize(("dtype", "elements"), [(np.int64, 2**33), (np.int8, 2**36)])
def test_the_byte_bound_is_inclusive(dtype: type[np.generic], elements: int) -> None:
    assert bounded(OP, np.dtype(dtype), [elements]).size == elements
    with pytest.raises(MemoryLimitError, match=f"would hold {elements + 1} elements") as caught:
        bounded(OP, np.dtype(dtype), [elements + 1])
    assert (caught.value.node, caught.value.op) == ("grow", "Expand")


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0, 2**62]])
def test_an_extent_of_zero_does_not_make_the_others_possible(shape: list[int]) -> None:
    with pytest.raises(MemoryLimitError):
        bounded(OP, np.dtype(np.int8), shape)


def test_a_negative_extent_is_refused() -> None:
    with pytest.raises(KernelError, match=r"shape \[2, -1\].*'grow'"):
        bounded(OP, np.dtype(np.int8), [2, -1])


def test_extents_whose_product_overflows_an_int64_are_caught() -> None:
    with pytest.raises(MemoryLimitError, match=str(2**64)):
        bounded(OP, np.dtype(np.int8), np.array([2**32, 2**32]))


def test_the_element_bound_holds_where_bytes_alone_would_not() -> None:
    with limited(2**60):
        assert bounded(OP, np.dtype(np.int8), [2**40]).size == 2**40
        with pytest.raises(MemoryLimitError):
            bounded(OP, np.dtype(np.int8), [2**40 + 1])


def test_a_lower_bound_holds_within_its_block_alone() -> None:
    with limited(8):
        assert bounded(OP, np.dtype(np.int64), [1]).size == 1
        with pytest.raises(MemoryLimitError, match=r"16 bytes.*max_value_bytes"):
            bounded(OP, np.dtype(np.int64), [2])
    assert bounded(OP, np.dtype(np.int64), [2]).size == 2


def test_a_kernels_outputs_and_workspace_are_held_to_the_bound() -> None:
    fits = Compiled((None, TensorSpec(np.dtype(np.int8), (8,))), workspace_bytes=8)
    with limited(8):
        check_declared(OP, fits)
        with pytest.raises(MemoryLimitError, match="9 bytes of workspace") as caught:
            check_declared(OP, replace(fits, workspace_bytes=9))
        assert caught.value.node == "grow"
        with pytest.raises(MemoryLimitError, match="9 elements"):
            check_declared(OP, replace(fits, outputs=(TensorSpec(np.dtype(np.int8), (3, 3)),)))


def test_what_a_kernel_visits_one_by_one_is_bounded() -> None:
    assert bounded_steps(OP, MAX_STEPS, "kernel_shape") == MAX_STEPS
    with pytest.raises(MemoryLimitError, match=f"asks for {MAX_STEPS + 1} positions") as caught:
        bounded_steps(OP, MAX_STEPS + 1, "kernel_shape")
    assert caught.value.operand == "kernel_shape"


def test_the_machines_memory_is_known() -> None:
    assert 2**20 < machine_bytes() <= MAX_VALUE_BYTES
