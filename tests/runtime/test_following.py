"""Following: in a step that is longer, calls that are bound alike get the numbers that one of them got, and no others.

Thresholds are lowered, so that compiled loops begin, and go over to threads, within a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.decode.roles import roles_of
from hetero.errors import StateError
from hetero.kernels import attention_repeated, matmul_few, matmul_weighted
from hetero.kernels.jit import enabled
from hetero.kernels.shifting import numbers_of, same_code
from tests.models.decoder import SMALL, build

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
CONFIG = replace(SMALL, vocab=50, inner=64)
MODEL = build(CONFIG, "plain")
FEWEST = CONFIG.size + 1
"""Keys from which on scores are computed by the loops; values of one head are fewer, which then have loops of their
own."""


@contextmanager
def thresholds(depth: int = 6, parallel: int = 1 << 16) -> Iterator[None]:
    """From how many keys on values are mixed by the loops, and from how much work on with threads."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(matmul_few, "FEWEST_COLUMNS", FEWEST)
        patched.setattr(matmul_weighted, "FEWEST_DEPTH", depth)
        for loops in (matmul_few, attention_repeated):
            patched.setattr(loops, "PARALLEL_ELEMENTS", parallel)
        yield


class Sequence:
    """An executor and how many tokens it has seen."""

    def __init__(self, ex: HeterogeneousExecutor, capacity: int | None) -> None:
        self.ex, self.capacity, self.length = ex, capacity, 0
        self.roles = roles_of(ex.plan)
        self.bind()

    def bind(self) -> None:
        """Bind the caches, empty."""
        self.ex.bind_state({c.past: c.present for c in self.roles.caches}, capacity=self.capacity)
        self.length = 0

    def run(self, seed: int, rows: int = 1, slot: str = "primary") -> bytes:
        """The logits of `rows` tokens that follow from the seed."""
        ids = np.random.default_rng(seed).integers(0, CONFIG.vocab, (1, rows))
        logits: Any = self.ex.run(self.roles.feeds(ids, self.length), ["logits"], slot)["logits"]
        self.length += rows
        return logits.tobytes()  # type: ignore[no-any-return]

    def rewind(self, length: int) -> None:
        """Forget what came after."""
        self.ex.rewind_state(length)
        self.length = length

    def write(self, length: int) -> None:
        """Caches of so many tokens, made up."""
        shape = (1, CONFIG.kv_heads, length, CONFIG.size)
        draw = np.random.default_rng(length)
        self.ex.write_state({c.past: draw.standard_normal(shape).astype(c.dtype) for c in self.roles.caches})
        self.length = length

    def shifted(self) -> int:
        """How many calls have followed another one."""
        (child,) = self.ex.stats()["children"].values()
        count: int = child["memo_shifted"]
        return count

    def calls(self) -> list[Any]:
        """Those of the section that ran last."""
        (child,) = self.ex._children._children.values()  # type: ignore[attr-defined]
        (runner,) = child._runners.values()
        return list(runner.roots.drives["primary"].last[1].calls)


@contextmanager
def sequence(capacity: int | None = 64, **options: Any) -> Iterator[Sequence]:
    with HeterogeneousExecutor(MODEL, ["cpu"], children="inline", options=RuntimeOptions(**options)) as ex:
        yield Sequence(ex, capacity)


def test_calls_that_lie_alike_stay_and_read_other_numbers() -> None:
    with thresholds(), sequence(verify_decode_memo=True) as seq, sequence(decode_memo=False) as plain:
        for t in range(36):
            assert seq.run(t) == plain.run(t)
        before, followed = seq.calls(), seq.shifted()
        for t in range(3):
            assert seq.run(t) == plain.run(t)
        kept = [c for c, d in zip(before, seq.calls(), strict=True) if c is d and numbers_of(c) is not None]
        assert len(kept) == CONFIG.layers - 1, "the attention of all layers but the first"
        assert seq.shifted() == followed + 3 * len(kept)
        assert plain.shifted() == 0


def test_loops_that_go_over_to_threads_are_bound_anew() -> None:
    with sequence(verify_decode_memo=True) as seq, sequence(decode_memo=False) as plain:
        for t in range(45):  # other code from the middle on: nothing may follow it
            with thresholds(parallel=1 << 16 if t < 30 else 0):
                assert seq.run(t) == plain.run(t)
        assert seq.shifted()


def test_numbers_of_different_code_are_not_compared() -> None:
    draw = np.random.default_rng(0)
    queries, keys = (draw.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (1, 8))
    scores = np.empty((1, 2, 1, 8), np.float32)
    few, again = (matmul_few.bind_few_rows(queries, keys.swapaxes(-1, -2), scores) for _ in range(2))
    weighted = matmul_weighted.bind_weighted(scores, keys, queries)
    assert same_code(few, again)
    assert not same_code(few, weighted)
    assert not same_code(few, lambda: None)


def test_a_step_that_does_not_fit_leaves_the_numbers_as_they_were() -> None:
    with (
        thresholds(),
        sequence(40, verify_decode_memo=True) as seq,
        sequence(40, decode_memo=False) as plain,
    ):
        for t in range(40):
            assert seq.run(t) == plain.run(t)
        assert seq.shifted()
        with pytest.raises(StateError):
            seq.run(99)
        for s in (seq, plain):
            s.rewind(38)
        assert seq.run(7) == plain.run(7)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 12)),
        st.tuples(st.just("many"), st.integers(2, 6)),
        st.tuples(st.just("rewind"), st.integers(0, 30)),
        st.tuples(st.just("verify"), st.integers(1, 4)),
        st.tuples(st.just("reset"), st.just(0)),
        st.tuples(st.just("write"), st.integers(0, 30)),
        st.tuples(st.just("bind"), st.just(0)),
    ),
    min_size=3,
    max_size=8,
)


@settings(max_examples=15, deadline=None)
@given(
    steps=STEPS,
    capacity=st.sampled_from([None, 150]),
    depth=st.sampled_from([2, 12, 24]),
    parallel=st.sampled_from([1 << 16, 60, 0]),
)
def test_no_trace_of_lengths_gives_other_bits(
    steps: list[tuple[str, int]], capacity: int | None, depth: int, parallel: int
) -> None:
    """Grown by one and by several, taken back, moved to larger buffers, written, bound anew, with another slot's steps
    in between, beside another executor of the same model that is elsewhere."""
    with (
        thresholds(depth, parallel),
        sequence(capacity, verify_decode_memo=True) as seq,
        sequence(capacity, verify_decode_memo=True) as other,
        sequence(capacity, decode_memo=False, capture=False) as plain,
    ):
        drawn = 0

        def run(rows: int = 1, slot: str = "primary") -> None:
            nonlocal drawn
            drawn += 1
            assert seq.run(drawn, rows, slot) == plain.run(drawn, rows, slot)
            other.run(drawn + 1)

        run(14)
        for _ in range(6):
            run()
        for what, n in steps:
            if what == "grow":
                for _ in range(n):
                    run()
            elif what == "many":
                run(n)
            elif what == "verify":
                run(n, "verify")
            elif what == "rewind":
                n = min(n, seq.length)
                seq.rewind(n)
                plain.rewind(n)
            elif what == "write":
                seq.write(n)
                plain.write(n)
            else:
                for s in (seq, plain):
                    if what == "bind":
                        s.bind()
                    else:
                        s.ex.reset_state()
                        s.length = 0
            run()
