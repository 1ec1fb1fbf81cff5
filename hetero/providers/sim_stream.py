"""A simulated device's stream: work that is enqueued now and run later, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero.errors import ClosedError, DeviceError, HeteroError
from hetero.kernels.base import Call
from hetero.program.operation import Operation
from hetero.providers.capture import Captures
from hetero.providers.lookup import failure
from hetero.providers.sim_faults import Faults


class Owner(Protocol):
    """Who keeps an array's memory. `live` is False once the memory was given back."""

    @property
    def live(self) -> bool: ...


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One kernel call. `owners` keep alive what it touches; `capture` says why it must not be recorded, if so."""

    run: Call
    owners: tuple[Owner, ...]
    op: Operation | None = None
    capture: str | None = None


class Stream:
    """Runs work lazily: at `synchronize`, or when more than `queue_limit` entries wait.

    As on a GPU, an error of enqueued work surfaces at the next `synchronize` (the first one, where there are several);
    later work runs all the same, and after that the stream is as good as new.
    """

    def __init__(self, device: str, faults: Faults, queue_limit: int) -> None:
        self.device = device
        self.captures: Captures[Work, tuple[Work, ...]] = Captures(device, tuple)
        self.launches = self.graph_launches = self.syncs = self.queued_peak = 0
        self._faults = faults
        self._queue: deque[Work | Call] = deque()
        self._enqueued = 0
        self._queue_limit = queue_limit
        self._error: HeteroError | None = None
        self._closed = False

    def launch(self, work: Work) -> None:
        """Enqueue a kernel, or record it.

        Raises: DeviceError where memory it touches was given back, CaptureError where it must not be recorded.
        """
        self._check_open()
        self.check_live(work.owners, work.op)
        if self.captures.recording:
            if work.capture is not None:
                self.captures.refuse(work.op.id if work.op is not None else "a kernel", work.capture)
            self.captures.add(work)
            return
        self.launches += 1
        self.enqueue(work)

    def replay(self, works: Sequence[Work]) -> None:
        """Enqueue a captured graph. Raises: DeviceError where memory that it recorded was given back since."""
        for work in works:
            self.check_live(work.owners, work.op)
        self._faults.at("replay")
        self.graph_launches += 1
        for work in works:
            self.enqueue(work)

    def enqueue(self, work: Work | Call) -> None:
        """Enqueue work; a bare call is the device's own (poison, the copy of an upload), and meets no faults."""
        self._enqueued += 1
        self._queue.append(work)
        if len(self._queue) > self.queued_peak:
            self.queued_peak = len(self._queue)
        if len(self._queue) > self._queue_limit:
            self._drain()

    def synchronize(self) -> None:
        """Run everything enqueued. Raises: what the first failure among it was (KernelError, DeviceError…)."""
        self._check_open()
        if self.captures.recording:
            self.captures.refuse("synchronize")
        self.syncs += 1
        self._faults.at("sync")
        self._drain()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def position(self) -> int:
        """Entries enqueued so far: what is enqueued now is done once the stream `reached` this."""
        return self._enqueued

    def reach(self, position: int) -> None:
        """Run what is enqueued if `position` was not reached; errors wait for `synchronize` all the same."""
        if self._enqueued - len(self._queue) < position:
            self._drain()

    def check_live(self, owners: Sequence[Owner], op: Operation | None = None) -> None:
        """Raises: DeviceError where one of the owners gave its memory back."""
        for owner in owners:
            if not owner.live:
                error = DeviceError("use after free: the array's buffer was given back", device=self.device)
                raise failure(error, op, self.device)

    def close(self) -> None:
        """Drop what is enqueued, recorded and captured, without running it."""
        self._closed = True
        self._queue.clear()
        self._error = None
        self.captures.clear()

    @property
    def queued(self) -> int:
        """Entries that wait."""
        return len(self._queue)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.device} is closed", device=self.device)

    def _drain(self) -> None:
        while self._queue:
            work = self._queue.popleft()
            if not isinstance(work, Work):
                work()
                continue
            try:
                self._faults.at("launch")
                work.run()
            except Exception as error:
                if self._error is None:
                    self._error = failure(error, work.op, self.device)
