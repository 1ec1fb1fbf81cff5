"""Steps under way: so many at once, submitted ones in threads of their own, and a close that waits for these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from hetero.errors import ClosedError
from hetero.futures import Outputs, StepFuture, in_event_loop


class InFlight:
    """Of one executor. Thread-safe.

    `turns`: a token for each step that may begin, which gives it back when it has ended. `workers`: how many threads
    run submitted steps, from the first one on. `lock`: held while a step is submitted.
    """

    def __init__(self, most: int, workers: int) -> None:
        # a semaphore of threading's would cost a small model several µs
        self.turns: SimpleQueue[None] = SimpleQueue()
        for _ in range(most):
            self.turns.put(None)
        self.workers = workers
        self.lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waited_for: set[Future[Outputs]] = set()
        self._closing = False

    @property
    def used(self) -> bool:
        """Whether a step was submitted."""
        return self._pool is not None

    def submit(self, begin: Callable[[StepFuture, bool], Callable[[], Outputs] | None]) -> StepFuture:
        """A future of a step. Waits for its turn; in a coroutine it never waits, and a worker is the step's turn.

        `begin` is called in the order in which workers are, and must not wait: it returns what a worker is to call, or
        None where it has begun the step that the future stands for, which it may where its second argument says so: the
        step has its turn. Raises: ClosedError; what `begin` raises.
        """
        waits = not in_event_loop()
        future = StepFuture(self._ended if waits else None)
        if waits:
            self.turns.get()
        try:
            with self.lock:  # a close meanwhile would refuse it with an error of the pool's own
                if self._closing:
                    raise ClosedError("this executor is closed")
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="hetero-step")
                if waits:
                    self._waited_for.add(future)
                call = begin(future, waits)
                if call is not None:
                    self._pool.submit(future.fulfil, call)
        except BaseException:
            future.cancel()
            raise
        return future

    def hand_over(self, future: StepFuture, call: Callable[[], Outputs]) -> None:
        """Have a worker make the call for the future of a step that has begun."""
        assert self._pool is not None, "it was submitted"
        self._pool.submit(future.fulfil, call)

    def close(self) -> None:
        """Wait for the steps that were submitted; no other is taken."""
        with self.lock:
            self._closing = True
        wait(tuple(self._waited_for))
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _ended(self, future: Future[Outputs]) -> None:
        """A step that has had its turn gives it back."""
        self._waited_for.discard(future)
        self.turns.put(None)
