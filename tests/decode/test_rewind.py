"""Going back to a length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.decode.context import Context
from hetero.decode.roles import roles_of
from hetero.decode.state import KeptState
from tests.decode.fake import Array, FakeExecutor, mixed

LOGITS = mixed(5)
MOVES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4) | st.integers(0, 8), max_size=8)


def context(capacity: int | None, batch: int = 1) -> Context:
    ex = FakeExecutor(LOGITS, 5, capacity)
    roles = roles_of(ex.plan)
    return Context(ex, roles, KeptState(roles, batch))


@pytest.mark.parametrize("capacity", [None, 64], ids=["growing", "buffer"])
@given(moves=MOVES)
def test_after_any_runs_and_rewinds_the_logits_are_those_of_the_tokens_that_remain(
    capacity: int | None, moves: list[list[int] | int]
) -> None:
    tokens: list[int] = []
    sequence = context(capacity)
    for move in moves:
        if isinstance(move, int):
            sequence.rewind(move)
            tokens = tokens[:move]
        else:
            got = sequence.run(np.array([move]), "primary")
            tokens += move
            want = [LOGITS(tuple(tokens[: len(tokens) - len(move) + n + 1])) for n in range(len(move))]
            np.testing.assert_array_equal(got[0], want)
        assert sequence.length == len(tokens)


def test_a_run_that_fails_leaves_the_sequences_as_they_were() -> None:
    class Failing(FakeExecutor):
        fails = False

        def run(self, *args: object, **kwargs: object) -> dict[str, Array]:
            if self.fails:
                raise RuntimeError("lost")
            return super().run(*args, **kwargs)  # type: ignore[arg-type]

    ex = Failing(LOGITS, 5)
    roles = roles_of(ex.plan)
    sequence = Context(ex, roles, KeptState(roles, 1))
    sequence.run(np.array([[1, 2]]), "prefill")
    ex.fails = True
    with pytest.raises(RuntimeError, match="lost"):
        sequence.run(np.array([[3]]), "primary")
    ex.fails = False
    assert sequence.length == 2
    np.testing.assert_array_equal(sequence.run(np.array([[3]]), "primary")[0, 0], LOGITS((1, 2, 3)))
