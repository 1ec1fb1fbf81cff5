"""Shared memory for large bodies: anonymous, owned by the process that made it, gone when nobody has it any more.

A block is a memfd: it has no name in /dev/shm, so that nothing is left to clean up however its owner ends, and the
kernel frees it once the owner's descriptor and the last reader's mapping are gone. Readers reach it as
/proc/<owner>/fd/<descriptor>, which the kernel allows to processes of the same user in the same namespace of
processes; `reachable` tries.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import threading
from collections import OrderedDict

import numpy as np

from actors.channels.messages import Block
from actors.channels.wire import Bytes
from hetero.errors import TransportError

SMALLEST_BYTES = 1 << 16
MAX_BLOCKS = 256
"""Of one sender: each takes a descriptor, of which a process may have no more than 1024."""
_PREFIX = "hetero-"


class OwnBlock:
    """A block of this process."""

    def __init__(self, nbytes: int) -> None:
        """Raises: OSError where there is no memory or no descriptor to be had."""
        name = _PREFIX + secrets.token_hex(8)
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            self._map: mmap.mmap | None = mmap.mmap(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        self.nbytes = nbytes
        self.handle = Block(descriptor, name)

    def body(self) -> Bytes:
        """Its memory, writable."""
        assert self._map is not None, "a closed block has no memory"
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Give it up: the memory lives on as long as readers have it mapped. A second call does nothing."""
        if self._map is not None:
            self._map = None  # unmapped with the last array over it
            os.close(self.handle.descriptor)


class Pool:
    """Blocks of one sender, used again and again since their pages are warm. Not thread-safe.

    `limit_bytes` bounds what lies idle; what is out is the ledger's to bound.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._idle: list[OwnBlock] = []
        self._out: dict[int, OwnBlock] = {}
        self.made = 0

    def take(self, nbytes: int) -> OwnBlock:
        """A block of at least `nbytes`, to be written, then lent. Raises: OSError where there is none to be had."""
        for k in range(len(self._idle) - 1, -1, -1):  # the last one given back is the warmest
            if nbytes <= self._idle[k].nbytes <= 4 * nbytes:
                return self._idle.pop(k)
        if self._idle and len(self._idle) + len(self._out) >= MAX_BLOCKS:
            self._idle.pop(0).close()
        if len(self._out) >= MAX_BLOCKS:
            raise OSError(errno.EMFILE, f"{MAX_BLOCKS} blocks are out")
        self.made += 1
        return OwnBlock(1 << (max(SMALLEST_BYTES, nbytes) - 1).bit_length())

    def lend(self, ticket: int, block: OwnBlock) -> None:
        """The block is out until this ticket is settled."""
        self._out[ticket] = block

    def settled(self, ticket: int, *, kept: bool) -> None:
        """Nobody needs the block of this ticket any more; or (kept) somebody does, and it is theirs now."""
        block = self._out.pop(ticket, None)
        if block is None:
            return
        if kept:
            block.close()
        else:
            self._idle.append(block)
            while sum(b.nbytes for b in self._idle) > self._limit:
                self._idle.pop(0).close()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, idle and out, as the system counts them at most."""
        return sum(b.nbytes for b in (*self._idle, *self._out.values()))

    def close(self) -> None:
        """Give all of them up."""
        for block in (*self._idle, *self._out.values()):
            block.close()
        self._idle.clear()
        self._out.clear()


class Mappings:
    """Blocks of other processes, mapped read-only. The latest stay mapped, since their owners use them again.

    `limit_bytes` bounds what stays mapped without being read; its owner may have given it up. Thread-safe.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[tuple[int, str], mmap.mmap] = OrderedDict()
        self._guard = threading.Lock()

    def borrow(self, owner: int, block: Block, nbytes: int) -> Bytes:
        """The first `nbytes` of a block of process `owner`, read-only.

        NumPy keeps this very array as the base of all views of it, so its end is the end of the last of them.
        Raises: TransportError where the block is not there, not what it is said to be, or too small.
        """
        key = owner, block.name
        with self._guard:
            mapped = self._kept.pop(key, None) or _mapped(owner, block)
            if len(mapped) <= self._limit:
                self._kept[key] = mapped
                while sum(map(len, self._kept.values())) > self._limit:
                    self._kept.popitem(last=False)
        if len(mapped) < nbytes:
            raise TransportError(f"block {block.name} has {len(mapped)} bytes, fewer than {nbytes}")
        return np.frombuffer(mapped, np.uint8, nbytes)

    def forget(self, owner: int, block: Block) -> None:
        """The block is its readers' from now on: unmap it with the last of them."""
        with self._guard:
            self._kept.pop((owner, block.name), None)

    def __len__(self) -> int:
        return len(self._kept)


def reachable(owner: int, block: Block, content: bytes) -> bool:
    """Whether blocks of process `owner` can be read here: this one can, and holds `content`."""
    try:
        return Mappings(0).borrow(owner, block, len(content)).tobytes() == content
    except TransportError:
        return False


def _mapped(owner: int, block: Block) -> mmap.mmap:
    path = f"/proc/{owner}/fd/{block.descriptor}"
    try:
        if not block.name.startswith(_PREFIX) or os.readlink(path) != f"/memfd:{block.name} (deleted)":
            raise TransportError(
                f"descriptor {block.descriptor} of process {owner} is not block {block.name}"
            )
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as cause:
        raise TransportError(f"block {block.name} of process {owner} cannot be mapped: {cause}") from cause
