"""Blocks: read by others without a copy, owned by their maker, gone with the last who has them, whoever is killed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from actors.channels.blocks import MAX_BLOCKS, Mappings, OwnBlock, Pool, reachable
from actors.channels.bodies import SMALL_BYTES, Incoming, Limits, Outgoing
from actors.channels.messages import Block, Settled
from actors.channels.wire import encode
from hetero.errors import TransportError

ME = os.getpid()
borrow = Mappings(0).borrow
LARGE = np.arange(SMALL_BYTES, dtype=np.float32)
OWNER = """
import os, sys
from actors.channels.blocks import OwnBlock
block = OwnBlock(1 << 20)
block.body()[:] = 7
print(os.getpid(), block.handle.descriptor, block.handle.name, flush=True)
sys.stdin.readline()
"""
READER = """
import os, sys
from actors.channels.blocks import Mappings
from actors.channels.messages import Block
array = Mappings(0).borrow(int(sys.argv[1]), Block(int(sys.argv[2]), sys.argv[3]), 1 << 20)
print(int(array.sum()), flush=True)
sys.stdin.readline()
"""


def holders(name: str) -> list[int]:
    """The processes that have a block open or mapped."""
    out = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            found = ""
            with suppress(OSError):  # it ended meanwhile, or is not ours
                found = (process / "maps").read_text()
                for descriptor in os.listdir(process / "fd"):
                    with suppress(OSError):  # that of the listing itself
                        found += os.readlink(process / "fd" / descriptor)
            if f"memfd:{name} " in found:
                out.append(int(process.name))
    return out


def started(code: str, *arguments: object) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_a_block_is_read_in_place_and_never_written() -> None:
    block = OwnBlock(1 << 16)
    block.body()[:100] = 3
    array = borrow(ME, block.handle, 100)
    assert array.tolist() == [3] * 100
    assert not array.flags.writeable
    block.body()[:100] = 4
    assert array.tolist() == [4] * 100
    block.close()
    block.close()
    assert array.tolist() == [4] * 100  # a reader's mapping is its own


def test_a_block_that_is_not_what_it_is_said_to_be_is_not_opened(tmp_path: Path) -> None:
    block = OwnBlock(1 << 16)
    other = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.write(other, b"x" * 4096)
    for handle in (
        Block(other, block.handle.name),
        Block(block.handle.descriptor, "hetero-another"),
        Block(block.handle.descriptor, "../../etc/passwd"),
        Block(10**6, block.handle.name),
    ):
        with pytest.raises(TransportError):
            borrow(ME, handle, 16)
    with pytest.raises(TransportError, match="fewer"):
        borrow(ME, block.handle, 1 << 20)
    with pytest.raises(TransportError):
        borrow(2**22 + 1, block.handle, 16)
    assert not reachable(ME, block.handle, b"other content")
    os.close(other)
    block.close()


def test_the_owners_death_leaves_what_a_reader_has_and_nothing_once_it_is_done() -> None:
    before = os.listdir("/dev/shm")
    owner, told = started(OWNER)
    pid, descriptor, name = told.split()
    array = borrow(int(pid), Block(int(descriptor), name), 1 << 20)
    killed(owner)
    assert array.sum() == 7 << 20
    assert holders(name) == [ME]
    del array
    assert holders(name) == []
    assert os.listdir("/dev/shm") == before


def test_a_readers_death_leaves_the_owners_block_alone() -> None:
    block = OwnBlock(1 << 20)
    block.body()[:] = 1
    reader, told = started(READER, ME, block.handle.descriptor, block.handle.name)
    assert told == str(1 << 20)
    assert sorted(holders(block.handle.name)) == sorted([ME, reader.pid])
    killed(reader)
    assert holders(block.handle.name) == [ME]
    block.close()
    assert holders(block.handle.name) == []


def test_blocks_are_used_again_and_idle_ones_are_bounded() -> None:
    pool = Pool(limit_bytes=1 << 18)
    for ticket in range(1, 50):
        block = pool.take(100_000)
        pool.lend(ticket, block)
        pool.settled(ticket, kept=False)
    assert pool.made == 1
    for ticket in range(50, 60):
        pool.lend(ticket, pool.take(100_000))
    for ticket in range(50, 60):
        pool.settled(ticket, kept=False)
    assert pool.nbytes <= 1 << 18
    pool.close()
    assert pool.nbytes == 0


def test_blocks_do_not_use_up_the_descriptors_of_a_process() -> None:
    pool = Pool(limit_bytes=1 << 30)
    for ticket in range(MAX_BLOCKS):
        pool.lend(ticket, pool.take(1))
    with pytest.raises(OSError, match="256"):
        pool.take(1)
    for ticket in range(MAX_BLOCKS):
        pool.settled(ticket, kept=False)
    pool.lend(0, pool.take(1 << 20))  # none of those that are idle is large enough
    assert pool.nbytes == ((MAX_BLOCKS - 1) << 16) + (1 << 20)
    pool.close()


def test_a_body_is_settled_when_the_last_array_over_it_is_gone() -> None:
    outgoing, incoming = Outgoing(Limits()), Incoming()
    packed, _ = outgoing.pack(0, encode([LARGE, LARGE[::2]]), 1, [5], [])
    assert packed.block is not None
    first, second = incoming.open(5, ME, 1, packed)
    view = second.reshape(2, -1).view(np.int32)[0]
    del first, second
    gc.collect()
    assert incoming.take_released() == {}
    assert view.tobytes() == LARGE[::2][: view.size].tobytes()
    del view
    assert incoming.take_released() == {5: [packed.ticket]}
    assert incoming.end(1) == {}


def test_a_block_that_is_kept_beyond_its_step_becomes_the_readers() -> None:
    outgoing, incoming = Outgoing(Limits()), Incoming()
    packed, _ = outgoing.pack(0, encode([LARGE]), 1, [5], [])
    (array,) = incoming.open(5, ME, 1, packed)
    assert incoming.end(1) == {5: [packed.ticket]}
    outgoing.settle(5, Settled(kept=(packed.ticket,)))
    assert outgoing.statistics()["block_bytes"] == 0
    again, _ = outgoing.pack(0, encode([-LARGE]), 2, [5], [])
    assert array.tobytes() == LARGE.tobytes()  # not overwritten by the next step
    del array
    assert incoming.take_released() == {}
    outgoing.settle(5, Settled(released=(again.ticket,)))
    outgoing.close()


def test_a_block_is_not_written_again_before_all_receivers_have_settled() -> None:
    outgoing = Outgoing(Limits())
    packed, framed = outgoing.pack(0, encode([LARGE]), 1, [1, 2], [3])
    assert packed.block is not None
    assert framed.block is None
    for receiver in (1, 2, 2, 9):
        outgoing.settle(receiver, Settled(released=(packed.ticket,)))
        assert outgoing.pack(0, encode([LARGE]), 1, [1], [])[0].block != packed.block
    outgoing.settle(3, Settled(released=(packed.ticket,)))
    assert outgoing.pack(0, encode([LARGE]), 1, [1], [])[0].block == packed.block
    outgoing.close()


def test_blocks_stay_mapped_within_a_bound_and_each_use_ends_on_its_own() -> None:
    blocks = [OwnBlock(1 << 16) for _ in range(5)]
    mappings = Mappings(limit_bytes=3 << 16)
    for block in blocks:
        first, second = mappings.borrow(ME, block.handle, 10), mappings.borrow(ME, block.handle, 20)
        assert (first.size, second.size) == (10, 20)
    assert len(mappings) == 3
    mappings.forget(ME, blocks[-1].handle)
    assert len(mappings) == 2
    for block in blocks:
        block.close()
    assert mappings.borrow(ME, blocks[2].handle, 10).size == 10  # mapped while its owner had it
    with pytest.raises(TransportError):
        mappings.borrow(ME, blocks[0].handle, 10)


def test_without_memory_for_a_block_the_body_travels_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> int:
        raise OSError("none left")

    monkeypatch.setattr(os, "memfd_create", no_memory)
    outgoing, incoming = Outgoing(Limits()), Incoming()
    packed, _ = outgoing.pack(0, encode([LARGE]), 1, [5], [])
    assert packed.block is None
    (array,) = incoming.open(5, ME, 1, packed)
    assert array.tobytes() == LARGE.tobytes()
    assert array.ctypes.data % array.itemsize == 0
    assert not array.flags.writeable
    outgoing.close()
