"""The bounds on declared sizes hold exactly."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.errors import MemoryLimitError
from hetero.kernels import limits
from hetero.kernels.limits import bounded
from hetero.program.operation import Operation

OP = Operation("", "Expand", 13, name="grow")


def test_what_fits_becomes_a_spec_of_python_integers() -> None:
    spec = bounded(OP, np.dtype(np.float32), np.array([2, 0, 2**40]))
    assert spec.shape == (2, 0, 2**40)
    assert all(type(d) is int for d in spec.shape)


@pytest.mark.parametrize(("dtype", "elements"), [(np.int64, 2**33), (np.int8, 2**36)])
def test_the_byte_bound_is_inclusive(dtype: type[np.generic], elements: int) -> None:
    assert bounded(OP, np.dtype(dtype), [elements]).size == elements
    with pytest.raises(MemoryLimitError, match=f"would hold {elements + 1} elements") as caught:
        bounded(OP, np.dtype(dtype), [elements + 1])
    assert (caught.value.node, caught.value.op) == ("grow", "Expand")


def test_extents_whose_product_overflows_an_int64_are_caught() -> None:
    with pytest.raises(MemoryLimitError, match=str(2**64)):
        bounded(OP, np.dtype(np.int8), np.array([2**32, 2**32]))


def test_the_element_bound_holds_where_bytes_alone_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_VALUE_BYTES", 2**60)
    assert bounded(OP, np.dtype(np.int8), [2**40]).size == 2**40
    with pytest.raises(MemoryLimitError):
        bounded(OP, np.dtype(np.int8), [2**40 + 1])
