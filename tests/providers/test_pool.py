"""The byte pool: classes, reuse, limits, counters, and no two live buffers over one byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ClosedError, DeviceError, MemoryLimitError
from hetero.providers.base import Buffer
from hetero.providers.pool import ALIGNMENT, BytePool, aligned_bytes, size_class


def _range(buffer: Buffer) -> tuple[int, int]:
    start = buffer.raw.__array_interface__["data"][0]
    return start, start + buffer.raw.nbytes


@given(st.integers(0, 1 << 44))
def test_a_class_holds_what_it_is_for_and_wastes_at_most_a_quarter(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, ALIGNMENT)
    assert size % ALIGNMENT == 0
    assert size - nbytes <= max(ALIGNMENT, nbytes / 4)
    assert size_class(size) == size


@given(st.integers(1, 10_000))
def test_blocks_are_aligned(nbytes: int) -> None:
    raw = aligned_bytes(nbytes)
    assert raw.nbytes == nbytes
    assert raw.ctypes.data % ALIGNMENT == 0


_steps = st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 30)), max_size=60)


@settings(max_examples=150)
@given(_steps, st.sampled_from([None, 4096, 20_000]))
def test_live_buffers_never_overlap_and_the_counters_are_right(
    steps: list[tuple[bool, int, int]], limit: int | None
) -> None:
    pool = BytePool("cpu", limit)
    live: list[Buffer] = []
    takes = peak = 0
    for taking, nbytes, index in steps:
        if taking:
            try:
                buffer: Buffer = pool.take(nbytes)
            except MemoryLimitError:
                assert limit is not None
                assert pool.live_bytes + nbytes > limit - ALIGNMENT
                continue
            takes += 1
            assert buffer.nbytes == buffer.raw.nbytes >= nbytes
            low, high = _range(buffer)
            assert low % ALIGNMENT == 0
            assert all(high <= a or b <= low for a, b in map(_range, live))
            live.append(buffer)
        elif live:
            pool.give(live.pop(index % len(live)))
        held = sum(b.nbytes for b in live)
        peak = max(peak, held)
        stats = pool.stats()
        assert (stats["live_bytes"], stats["live_peak_bytes"], stats["takes"]) == (held, peak, takes)
        assert stats["pool_peak_bytes"] >= stats["pool_bytes"] >= held
        assert limit is None or stats["pool_bytes"] <= limit
    for buffer in live:
        pool.give(buffer)
    pool.trim()
    assert pool.stats()["pool_bytes"] == pool.stats()["live_bytes"] == 0


def test_the_block_given_back_last_is_taken_first() -> None:
    pool = BytePool("cpu")
    cold, hot = pool.take(1000), pool.take(1000)
    pool.give(cold)
    pool.give(hot)
    assert pool.take(1000).raw is hot.raw
    assert pool.hits == 1


def test_a_somewhat_larger_free_block_serves_but_not_one_of_more_than_twice_the_size() -> None:
    pool = BytePool("cpu")
    large = pool.take(4096)
    pool.give(large)
    assert pool.take(1024).raw is not large.raw
    assert pool.take(2049).raw is large.raw


def test_free_blocks_make_room_before_the_limit_is_an_error() -> None:
    pool = BytePool("cpu", 4096)
    pool.give(pool.take(1024))
    pool.give(pool.take(2048))
    assert pool.take(4096).nbytes == 4096
    assert pool.pool_bytes == 4096


def test_rounding_up_to_a_class_is_not_what_passes_the_limit() -> None:
    pool = BytePool("cpu", 4160)
    buffer = pool.take(4160)
    assert buffer.nbytes == 4160
    pool.give(buffer)
    assert pool.pool_bytes == 0


def test_the_limit_error_names_device_wanted_live_and_limit() -> None:
    pool = BytePool("cpu:3", 1024)
    pool.take(640)
    with pytest.raises(MemoryLimitError, match=r"cpu:3 .* 500 bytes.* live 640 bytes.* limit 1024 bytes"):
        pool.take(500)


def test_reserved_bytes_count_against_the_limit_until_they_are_unreserved() -> None:
    pool = BytePool("cpu", 1024)
    pool.reserve(1000)
    with pytest.raises(MemoryLimitError):
        pool.take(64)
    with pytest.raises(MemoryLimitError):
        pool.reserve(64)
    pool.unreserve(1000)
    pool.take(64)
    assert pool.stats()["reserved_bytes"] == 0


def test_more_than_the_system_has_is_a_memory_limit_error_too() -> None:
    with pytest.raises(MemoryLimitError, match="the system has no more"):
        BytePool("cpu").take(1 << 60)


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(DeviceError, match="-1 bytes"):
        BytePool("cpu").take(-1)


def test_a_buffer_given_back_twice_is_an_error() -> None:
    pool = BytePool("cpu")
    buffer = pool.take(1)
    pool.give(buffer)
    with pytest.raises(DeviceError, match="twice"):
        pool.give(buffer)
    assert pool.live_bytes == 0


def test_a_buffer_of_a_pool_of_the_same_name_is_foreign_all_the_same() -> None:
    one, two = BytePool("cpu"), BytePool("cpu")
    buffer = one.take(1)
    with pytest.raises(DeviceError, match="never handed it out"):
        two.give(buffer)
    assert buffer.live


def test_a_closed_pool_takes_back_but_hands_nothing_out() -> None:
    pool = BytePool("cpu")
    buffer = pool.take(1)
    pool.close()
    pool.give(buffer)
    assert pool.pool_bytes == 0
    with pytest.raises(ClosedError):
        pool.take(1)
