"""The arena: live buffers never overlap, and what a dropped section used goes back to the pool."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.providers.base import Buffer, ProviderConfig
from hetero.providers.cpu import CpuProvider
from hetero.runtime.arena import Arena


def cpu() -> CpuProvider:
    return CpuProvider(ProviderConfig("cpu"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 5000), st.none()), max_size=60))
def test_no_two_live_buffers_are_the_same_and_each_is_large_enough(requests: list[int | None]) -> None:
    arena = Arena(cpu())
    lease = arena.lease()
    live: list[tuple[int, Buffer]] = []
    for request in requests:
        if request is not None:
            live.append((request, lease.take(request)))
        elif live:
            lease.release(live.pop(0)[1])
        assert len({id(b) for _, b in live}) == len(live)
        assert all(b.nbytes >= n for n, b in live)
        assert lease.live_bytes == sum(b.nbytes for _, b in live) <= lease.peak_bytes


def test_a_buffer_given_back_serves_the_next_value_of_its_size() -> None:
    lease = Arena(cpu()).lease()
    first = lease.take(1000)
    lease.release(first)
    assert lease.take(900) is first


def test_a_small_value_does_not_take_a_large_buffer() -> None:
    lease = Arena(cpu()).lease()
    large = lease.take(1 << 20)
    lease.release(large)
    assert lease.take(64) is not large


def test_without_reuse_every_value_has_its_own_buffer() -> None:
    lease = Arena(cpu()).lease(reuse=False)
    first = lease.take(1000)
    lease.release(first)
    assert lease.take(1000) is not first


def test_sections_of_one_level_share_buffers_but_not_live_ones() -> None:
    arena = Arena(cpu())
    one = arena.lease()
    live, dead = one.take(256), one.take(256)
    one.release(dead)
    two = arena.lease(live=[live])
    assert two.take(256) is dead
    assert two.take(256) is not live


def test_a_buffer_returns_to_the_pool_with_its_last_section() -> None:
    provider = cpu()
    arena = Arena(provider)
    one = arena.lease()
    one.release(one.take(4096))
    two = arena.lease()
    two.take(4096)
    one.close()
    assert arena.nbytes >= 4096
    two.close()
    two.close()
    assert arena.nbytes == 0
    assert provider.stats()["live_bytes"] == 0
