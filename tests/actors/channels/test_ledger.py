"""Credits: bounded bytes, no deadlock of the oldest, and no receiver settles what is not its own."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from actors.channels.ledger import Ledger


def test_a_sender_waits_when_its_receivers_hold_the_limit() -> None:
    ledger = Ledger(100)
    first = ledger.issue(1, 80, [0])
    assert ledger.allows(2, 20)
    assert not ledger.allows(2, 21)
    assert ledger.settle(first, 0, kept=False) is False
    assert ledger.allows(2, 100)
    assert ledger.bytes_out == 0


def test_the_oldest_attempt_never_waits_even_for_a_body_above_the_limit() -> None:
    ledger = Ledger(100)
    assert ledger.allows(1, 1000)
    ledger.issue(1, 1000, [0])
    assert ledger.allows(1, 1000)
    assert not ledger.allows(2, 1)


def test_a_body_is_free_when_every_receiver_has_settled_it_and_kept_when_one_keeps_it() -> None:
    ledger = Ledger(100)
    ticket = ledger.issue(1, 10, [0, 1, 2])
    assert ledger.settle(ticket, 0, kept=True) is None
    assert ledger.settle(ticket, 1, kept=False) is None
    assert ledger.settle(ticket, 2, kept=False) is True
    assert len(ledger) == 0


def test_settling_twice_or_what_is_anothers_changes_nothing() -> None:
    ledger = Ledger(100)
    ticket = ledger.issue(1, 10, [0, 1])
    assert ledger.settle(ticket, 7, kept=False) is None
    assert ledger.settle(ticket + 1, 0, kept=False) is None
    assert ledger.settle(ticket, 0, kept=False) is None
    assert ledger.settle(ticket, 0, kept=False) is None
    assert ledger.bytes_out == 10


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3)), max_size=40), st.randoms())
def test_what_is_out_never_passes_the_limit_nor_what_the_oldest_attempt_needs(bodies, random) -> None:
    """Attempts send in order and settle at random; the sender goes on whenever it may."""
    ledger, out = Ledger(100), []
    for attempt, (nbytes, parcels) in enumerate(bodies, 1):
        for _ in range(parcels):
            while not ledger.allows(attempt, nbytes):
                older = [entry for entry in out if entry[0] < attempt]
                assert older  # whoever waits, waits for someone else
                entry = random.choice(older)
                out.remove(entry)
                ledger.settle(entry[1], 0, kept=False)
            out.append((attempt, ledger.issue(attempt, nbytes, [0])))
    assert ledger.peak_bytes <= max(100, max((n * p for n, p in bodies), default=0))
