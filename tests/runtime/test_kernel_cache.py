"""The kernel cache: hits by specs and by the values that shape a result, least recently used out first."""

from __future__ import annotations

import numpy as np

from hetero.kernels.base import Compiled
from hetero.runtime.kernel_cache import KernelCache
from hetero.types import TensorSpec

F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)


def test_the_same_specs_give_the_same_kernel() -> None:
    cache = KernelCache(8)
    first = cache.get("n", [TensorSpec(F32, (2, 3))], Compiled)
    assert cache.get("n", [TensorSpec(F32, (2, 3))], Compiled) is first
    assert (cache.hits, cache.misses) == (1, 1)


def test_another_shape_dtype_instruction_or_value_gives_another_kernel() -> None:
    cache = KernelCache(8)
    shape = TensorSpec(I64, (2,), np.array([2, 3]))
    first = cache.get("n", [shape], Compiled)
    others = [
        cache.get("n", [TensorSpec(I64, (2,), np.array([3, 2]))], Compiled),
        cache.get("n", [TensorSpec(I64, (2,))], Compiled),
        cache.get("n", [TensorSpec(F32, (2,))], Compiled),
        cache.get("m", [shape], Compiled),
    ]
    assert all(o is not first for o in others)
    assert cache.get("n", [TensorSpec(I64, (2,), np.array([2, 3]))], Compiled) is first


def test_the_least_recently_used_goes_first() -> None:
    cache = KernelCache(2)
    a = cache.get("a", [], Compiled)
    b = cache.get("b", [], Compiled)
    assert cache.get("a", [], Compiled) is a
    cache.get("c", [], Compiled)
    assert cache.get("a", [], Compiled) is a
    assert cache.get("b", [], Compiled) is not b
    assert len(cache) == 2


def test_a_large_constant_is_held_so_that_its_identity_stays_unique() -> None:
    cache = KernelCache(8)
    kernels: list[Compiled] = []
    for _ in range(8):
        weight = np.zeros(4000, np.float32)
        weight.flags.writeable = False
        kernels.append(cache.get("n", [TensorSpec(F32, (4000,), weight)], Compiled))
        assert cache.get("n", [TensorSpec(F32, (4000,), weight)], Compiled) is kernels[-1]
    assert len(set(map(id, kernels))) == 8


def test_a_large_value_of_one_run_is_not_kept() -> None:
    cache = KernelCache(8)
    passing = np.zeros(4000, np.float32)
    first = cache.get("n", [TensorSpec(F32, (4000,), passing)], Compiled)
    passing[0] = 1  # the caller's array, changed in place: another kernel
    assert cache.get("n", [TensorSpec(F32, (4000,), passing)], Compiled) is not first
    assert len(cache) == 0
