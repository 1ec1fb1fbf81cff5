"""Which drafted tokens stand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hetero.decode.acceptance import Verdict, agreeing, together, weighed
from hetero.decode.draws import Purpose, uniform
from tests.decode.fake import Array

CHANCES = arrays(np.float64, 5, elements=st.floats(0.001, 1)).map(lambda c: c / c.sum())


def points(accept: float, token: float = 0.5) -> Callable[[int, Purpose], float]:
    return lambda _, purpose: accept if purpose is Purpose.ACCEPT else token


@given(st.lists(st.integers(0, 2), max_size=5), st.data())
def test_greedy_tokens_stand_up_to_the_first_that_is_not_the_targets(
    drafted: list[int], data: st.DataObject
) -> None:
    n = len(drafted) + 1
    wanted = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    accepted, token = agreeing(np.array(drafted, np.int64), np.array(wanted, np.int64))
    assert drafted[:accepted] == wanted[:accepted]
    assert token == wanted[accepted]
    assert accepted == len(drafted) or drafted[accepted] != token


@settings(max_examples=25, deadline=None)
@given(CHANCES, CHANCES)
def test_acceptance_and_replacement_together_have_the_targets_distribution(q: Array, p: Array) -> None:
    """Exactly, not by drawing: P(x) = q(x) a(x) + the sum over y of q(y) (1 - a(y)) r(x), with a and r as they act."""
    got = np.zeros(5)
    grid = (np.arange(500) + 0.5) / 500
    for y in range(5):
        stands = min(1.0, p[y] / q[y])
        for accept in (0.0, stands * (1 - 1e-9)):
            assert weighed(np.array([y]), q[None], np.stack([p, p]), points(accept)).accepted == 1
        got[y] += q[y] * stands
        if stands > 1 - 1e-6:
            continue
        refused = [weighed(np.array([y]), q[None], np.stack([p, p]), points(1 - 1e-12, t)) for t in grid]
        assert {v.accepted for v in refused} == {0}
        got += q[y] * (1 - stands) * np.bincount([v.token for v in refused], minlength=5) / len(grid)
    np.testing.assert_allclose(got, p, atol=5e-3)


def test_a_token_that_the_target_cannot_have_never_stands() -> None:
    q, p = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert weighed(np.array([0]), q[None], np.stack([p, p]), points(0.0)) == Verdict(0, 1)


def test_a_draft_as_good_as_the_target_is_never_refused() -> None:
    p = np.array([0.25, 0.75])
    got = weighed(np.array([0, 1]), np.stack([p, p]), np.stack([p] * 3), points(1 - 2**-53, 0.0))
    assert got == Verdict(2, 0)


def test_a_refusal_by_rounding_draws_from_the_target() -> None:
    p = np.array([0.5, 0.5])
    q = np.nextafter(p, 1)
    assert weighed(np.array([0]), q[None], np.stack([p, p]), points(1 - 2**-53, 0.9)) == Verdict(0, 1)


def test_nothing_drafted_draws_from_the_target() -> None:
    none = np.empty(0, np.int64), np.empty((0, 2))
    assert weighed(*none, np.array([[0.2, 0.8]]), points(0.0, 0.5)) == Verdict(0, 1)
    assert agreeing(none[0], np.array([1])) == Verdict(0, 1)


def test_the_numbers_used_are_those_of_the_places_and_purposes() -> None:
    asked: list[tuple[int, Purpose]] = []

    def point(n: int, purpose: Purpose) -> float:
        asked.append((n, purpose))
        return uniform(0, n, 0, purpose)

    p = np.full(2, 0.5)
    weighed(np.array([0, 1]), np.stack([p, p]), np.stack([p] * 3), point)
    assert asked == [(0, Purpose.ACCEPT), (1, Purpose.ACCEPT), (2, Purpose.TOKEN)]


def test_a_batch_takes_what_stands_in_every_sequence() -> None:
    drafted = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    got = together(drafted, [Verdict(3, 10), Verdict(1, 11), Verdict(2, 12)])
    assert got.tolist() == [[1, 2], [4, 11], [7, 8]]
    assert together(drafted[:1], [Verdict(3, 10)]).tolist() == [[1, 2, 3, 10]]
