"""Memory stays flat over shapes and runs, and what the caller lent or let go is not kept alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from hetero.errors import HeteroError
from tests.acceptance.harness import NAMES, PROVIDERS, executor, held

everywhere = pytest.mark.parametrize("providers", PROVIDERS, ids=NAMES)
TEXT = """g (float[m] x, int64[k] i, int64[1] n) => (y, z, w) { a = Exp(x) t = Tanh(a) y = Gather(t, i) r = Relu(x)
    z = NonZero(r) e = Expand(i, n) w = Neg(e) }"""


def feeds(n: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.arange(n, dtype=np.float32) - 1, "i": np.array([0]), "n": np.array([n])}


@everywhere
def test_a_thousand_shapes_leave_memory_where_the_first_ones_did(providers: list[Any]) -> None:
    with executor(TEXT, providers, max_specializations=4) as ex:
        levels = []
        for n in range(1, 1001):
            ex.run(feeds(1 + n % 40))
            if n % 200 == 0:
                levels.append(held(ex))
        for name in levels[0]:
            live = [level[name][1] for level in levels]
            assert max(live) <= 2 * max(live[0], 4096)
            assert all(level[name][0] == 0 for level in levels)


@everywhere
def test_a_thousand_runs_of_one_shape_hold_memory_constant(providers: list[Any]) -> None:
    with executor(TEXT, providers) as ex:
        for _ in range(3):
            ex.run(feeds())
        before = held(ex)
        for _ in range(1000):
            ex.run(feeds())
        assert held(ex) == before


@everywhere
@pytest.mark.parametrize("index", [0, 99], ids=["after a run", "after an error"])
def test_inputs_are_let_go_with_the_run(index: int, providers: list[Any]) -> None:
    with executor(TEXT, providers, max_specializations=1) as ex:
        for n in range(1, 12):  # until the value of n is computed as data
            ex.run(feeds(n))
        for _ in range(2):
            lent = feeds() | {"i": np.array([index])}
            alive = {name: weakref.ref(array) for name, array in lent.items()}
            if index == 0:
                ex.run(lent)
            else:
                with pytest.raises(HeteroError) as caught:
                    ex.run(lent)
                del caught
            del lent
            gc.collect()
            assert [name for name, array in alive.items() if array() is not None] == []


@everywhere
def test_outputs_are_freed_when_dropped(providers: list[Any]) -> None:
    with executor(TEXT, providers) as ex:
        outputs = ex.run(feeds())
        ex.run(feeds())
        alive = [weakref.ref(array) for array in outputs.values()]
        del outputs
        gc.collect()
        assert [array() for array in alive] == [None] * 3
