"""A simulated device's memory: arrays that the host cannot read, poison, and addresses that tell blocks apart."""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from typing import Any, NoReturn

import numpy as np

from hetero.errors import DeviceError
from hetero.providers.base import Buffer
from hetero.providers.cpu import check_buffer
from hetero.providers.pool import BytePool, PooledBuffer, aligned_bytes
from hetero.providers.sim_faults import Faults
from hetero.providers.sim_stream import Owner, Stream
from hetero.types import FLOATS, STRING, HostArray, SequenceValue, TensorSpec

POISON = 0xDE
"""What every byte of freed and of fresh memory holds."""
_ADDRESSES = itertools.count(1)
_SPACING = 1 << 40
"""Between the addresses of two blocks: whatever runs past the end of one hits no other."""


class Block:
    """Bytes with an address that no other block of this process ever has."""

    __slots__ = ("address", "memory", "untouched")

    def __init__(self, nbytes: int) -> None:
        self.memory = aligned_bytes(nbytes)
        self.address = next(_ADDRESSES) * _SPACING
        self.untouched = True
        """Taken, and no array was made in it yet."""


class _Owned:
    """The memory of an array from `empty`: dropped with the last array, view or enqueued work that refers to it."""

    __slots__ = ("_buffer", "_dropped")

    def __init__(self, buffer: PooledBuffer, dropped: deque[PooledBuffer]) -> None:
        self._buffer = buffer
        self._dropped = dropped

    @property
    def live(self) -> bool:
        return self._buffer.live

    def __del__(self) -> None:
        # May run in any thread, and while a recording is open: the device gives it back when it next allocates.
        self._dropped.append(self._buffer)


def _host_read(self: SimArray, *args: Any, **kwargs: Any) -> NoReturn:
    raise DeviceError(
        f"host read of device memory ({self.spec} on {self.device}); download it first", device=self.device
    )


class SimArray:
    """An array in a simulated device's memory. The host may ask for its form, never for its elements.

    `data_ptr` is a made-up address: it changes when, and only when, the memory behind the array is another.
    `constant_at`: for a constant, the position of the stream from which on its bytes are there; None otherwise.
    """

    __slots__ = ("__weakref__", "_inner", "constant_at", "data_ptr", "home", "owner")

    def __init__(
        self,
        inner: HostArray,
        home: DeviceMemory,
        owner: Owner,
        data_ptr: int,
        constant_at: int | None = None,
    ) -> None:
        self._inner = inner
        self.home = home
        self.owner = owner
        self.data_ptr = data_ptr
        self.constant_at = constant_at

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._inner.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._inner.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return self._inner.strides

    @property
    def ndim(self) -> int:
        return self._inner.ndim

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    @property
    def device(self) -> str:
        return self.home.device

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self._inner.dtype, self._inner.shape)

    def __repr__(self) -> str:
        return f"SimArray({self.spec} on {self.device} at {self.data_ptr:#x})"

    # Each of these would read elements, or (pickle, comparison) quietly do something else than it looks like.
    __array__ = __array_ufunc__ = __array_function__ = __dlpack__ = _host_read
    __array_interface__ = property(_host_read)
    __array_struct__ = property(_host_read)
    __iter__ = __getitem__ = __setitem__ = __contains__ = __reduce_ex__ = _host_read
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _host_read
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _host_read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _host_read
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = _host_read
    item = tolist = tobytes = copy = astype = _host_read
    __hash__ = object.__hash__


class DeviceMemory:
    """The pool of one simulated device, and the arrays in it. Poison is laid in stream order, like everything else."""

    def __init__(
        self, device: str, stream: Stream, faults: Faults, *, limit_bytes: int | None, poison: bool
    ) -> None:
        self.device = device
        self._stream = stream
        self._faults = faults
        self._poison = poison
        self._pool = BytePool(device, limit_bytes, allocate=self._new_block)
        self._dropped: deque[PooledBuffer] = deque()

    def take(self, nbytes: int) -> PooledBuffer:
        """Raises: MemoryLimitError, and what the fault script says."""
        self._faults.at("alloc")
        self._collect()
        buffer = self._pool.take(nbytes)
        buffer.raw.untouched = True
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Work enqueued before this still finds its bytes: they are poisoned behind it."""
        self._pool.give(buffer)
        if self._poison:
            self._stream.enqueue(partial(buffer.raw.memory.fill, POISON))

    def array(self, buffer: Buffer, spec: TensorSpec) -> SimArray:
        """An array at the start of `buffer`. In a buffer just taken, it starts as NaN where it can."""
        if not isinstance(buffer, PooledBuffer) or buffer.pool is not self._pool:
            raise DeviceError(
                f"the buffer belongs to {buffer.device}, not to {self.device}", device=self.device
            )
        check_buffer(buffer, spec, self.device)
        return self._in(buffer, buffer, spec)

    def empty(self, spec: TensorSpec) -> SimArray:
        """An array that frees its memory with the last reference to it, enqueued work and views included."""
        self._check_dtype(spec.dtype)
        buffer = self.take(spec.nbytes)
        return self._in(buffer, _Owned(buffer, self._dropped), spec)

    def put(self, array: HostArray, *, constant: bool = False) -> SimArray:
        """A device array with the bytes that `array` has now; they are there once the stream got so far."""
        self._check_dtype(array.dtype)
        target = self.empty(TensorSpec(array.dtype, array.shape))
        # The pool's poison may still be queued for this block, so the copy has to queue up behind it.
        self._stream.enqueue(partial(target._inner.__setitem__, ..., array.copy()))
        if constant:
            target.constant_at = self._stream.position
        return target

    def fill(self, target: SimArray, array: HostArray) -> None:
        """The bytes of `array` as they are now, in `target` once the stream got so far."""
        if target.constant_at is not None:
            raise DeviceError("the target is a constant, and would be written", device=self.device)
        source = array if not array.flags.writeable else array.copy()
        owner = target.owner  # alive until then

        def write(owner: Owner = owner) -> None:
            target._inner[...] = source

        self._stream.enqueue(write)

    def get(self, array: SimArray) -> HostArray:
        """A copy on the host of the bytes there are; the caller has waited for the stream."""
        return array._inner.copy(order="C")

    def mine(self, value: Any, what: str) -> SimArray:
        """`value`, an array of this device. Raises: DeviceError that names whose it is otherwise."""
        if not isinstance(value, SimArray):
            raise DeviceError(
                f"{what} is on the host ({type(value).__name__}), but {self.device} is to use it; upload it first",
                device=self.device,
            )
        if value.home is not self:
            raise DeviceError(
                f"{what} is on {value.device}, but {self.device} is to use it; move it there first",
                device=self.device,
            )
        return value

    def inner(self, value: Any, what: str, owners: dict[int, Owner], *, writable: bool = False) -> Any:
        """What a kernel gets for `value` (an array, a sequence of them, or None); adds who owns it to `owners`.

        As on the host, constants are what is read-only: a kernel may look at them while it binds, and keep what it
        derives from them. So their bytes have to be there. Raises: DeviceError for a constant that is to be written.
        """
        if value is None:
            return None
        if isinstance(value, SequenceValue):
            elements = [self.inner(v, f"{what}, element {i}", owners) for i, v in enumerate(value)]
            return SequenceValue(elements, value.dtype)
        array = self.mine(value, what)
        owners[id(array.owner)] = array.owner
        view = array._inner.view()
        if array.constant_at is not None:
            if writable:
                raise DeviceError(f"{what} is a constant, and would be written", device=self.device)
            self._stream.reach(array.constant_at)
            view.flags.writeable = False
        return view

    def view(self, inner: HostArray, of: SimArray) -> SimArray:
        """`inner`, a view of `of`'s memory, as an array that keeps that memory alive. Raises: DeviceError."""
        if not isinstance(inner, np.ndarray):
            # x[3] of a vector is a NumPy scalar: a copy that later runs would not see change.
            raise DeviceError(f"a view kernel returned a {type(inner).__name__}, no view", device=self.device)
        offset = _address(inner) - _address(of._inner)
        if inner.size and not np.may_share_memory(inner, of._inner):
            raise DeviceError("a view kernel returned memory that is not its input's", device=self.device)
        return SimArray(inner, self, of.owner, of.data_ptr + (offset if inner.size else 0), of.constant_at)

    def trim(self) -> None:
        self._collect()
        self._pool.trim()

    def close(self) -> None:
        self._collect()
        self._pool.close()

    def stats(self) -> dict[str, int]:
        self._collect()
        return self._pool.stats()

    def _new_block(self, nbytes: int) -> Block:
        block = Block(nbytes)
        if self._poison:
            block.memory.fill(POISON)
        return block

    def _in(self, buffer: PooledBuffer, owner: Owner, spec: TensorSpec) -> SimArray:
        self._check_dtype(spec.dtype)
        block: Block = buffer.raw
        inner: HostArray = np.ndarray(spec.shape, spec.dtype, block.memory)
        if block.untouched and self._poison and (spec.dtype in FLOATS or spec.dtype.kind == "c"):
            self._stream.enqueue(partial(inner.fill, np.nan))
        block.untouched = False
        return SimArray(inner, self, owner, block.address)

    def _check_dtype(self, dtype: np.dtype[Any]) -> None:
        if dtype == STRING or dtype.hasobject:
            raise DeviceError(f"strings live on the host, not on {self.device}", device=self.device)

    def _collect(self) -> None:
        """Give back the memory of arrays that are gone; never while a recording is open (nobody allocates then)."""
        while self._dropped and not self._stream.captures.recording:
            self.give(self._dropped.popleft())


def _address(array: HostArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
