"""What is derived from weights is made once, shared, and goes with its last holder."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from hetero.kernels import derived as module
from hetero.kernels.derived import Keeper, derived


def test_calls_over_the_same_weights_share_what_is_derived() -> None:
    source = np.arange(3.0)
    made = []

    def make() -> np.ndarray:
        made.append(1)
        return source * 2

    first = derived("double", (source, None), make)
    assert derived("double", (source[:], None), make) is first
    assert derived("other", (source, None), make) is not first
    assert derived("double", (source[1:], None), make) is not first
    assert len(made) == 3
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_nothing_is_kept_that_nobody_holds() -> None:
    source = np.arange(3.0)
    gc.collect()  # of what other tests have left
    before = len(module._kept)
    found = derived("held", (source,), lambda: source + 1)
    view = found[1:]
    del found
    gc.collect()
    assert len(module._kept) == before + 1
    del view
    gc.collect()
    assert len(module._kept) == before


def test_a_kernel_keeps_what_it_derived_until_its_weights_change() -> None:
    keep, source, other = Keeper(), np.arange(3.0), np.arange(4.0)
    gc.collect()  # of what other tests have left
    before = len(module._kept)
    address = keep("kept", (source,), lambda: source + 1).ctypes.data
    gc.collect()
    assert keep("kept", (source,), lambda: source + 2).ctypes.data == address
    assert keep("kept", (other,), lambda: other + 3).tolist() == [3, 4, 5, 6]
    gc.collect()
    assert len(module._kept) == before + 1
    del keep
    gc.collect()
    assert len(module._kept) == before
