"""Liveness of slots: a buffer is free exactly when its last owner or view dies."""

from __future__ import annotations

import numpy as np

from hetero.providers.base import Buffer
from hetero.runtime.slots import Kind, Liveness, Slot
from hetero.types import TensorSpec

SPEC = TensorSpec(np.dtype(np.float32), (4,))


def buffer() -> Buffer:
    return Buffer(None, 64, "cpu")


def owned(index: int) -> Slot:
    return Slot(Kind.OWNED, SPEC, index, False)


def view(owner: int) -> Slot:
    return Slot(Kind.VIEW, SPEC, owner, False)


def test_the_last_reader_of_an_owner_frees_its_buffer() -> None:
    live, memory = Liveness(), buffer()
    live.define(3, owned(3), memory)
    assert live.kill(3) is memory
    assert not live.slots
    assert not live.buffers


def test_a_view_keeps_its_owners_buffer_and_its_own_death_frees_it() -> None:
    live, memory = Liveness(), buffer()
    live.define(1, owned(1), memory)
    live.define(2, view(1))
    live.define(5, view(live.slots[2].owner))  # a view of the view: one hop to the owner
    assert live.kill(1) is None
    assert live.kill(2) is None
    assert live.kill(5) is memory


def test_only_an_owner_without_views_may_be_overwritten() -> None:
    live, memory = Liveness(), buffer()
    live.define(1, owned(1), memory)
    assert live.sole_buffer(1) is memory
    live.define(2, view(1))
    assert live.sole_buffer(1) is None
    assert live.sole_buffer(2) is None
    live.kill(2)
    assert live.sole_buffer(1) is memory


def test_killing_what_is_not_live_does_nothing() -> None:
    assert Liveness().kill(7) is None


def test_a_copy_lives_on_its_own() -> None:
    live, memory = Liveness(), buffer()
    live.define(1, owned(1), memory)
    other = live.copy()
    assert live.kill(1) is memory
    assert other.slots.keys() == {1}
    assert other.kill(1) is memory
