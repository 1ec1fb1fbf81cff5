"""What stands for steps under way: futures that threads wait for and coroutines await, and results in their order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias

from hetero.errors import InputError

Outputs: TypeAlias = dict[str, Any]
Batches: TypeAlias = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


class StepFuture(Future[Outputs]):
    """The outputs of one step: `result(timeout)` in a thread, `await` in a coroutine. `cancel` keeps a step from
    beginning; one that runs already goes on."""

    def __init__(self, release: Callable[[Future[Outputs]], object] | None = None) -> None:
        """`release` is called with it once the step is done, or cancelled, in whichever thread that is; it waits for
        nothing."""
        super().__init__()
        self._attend: Callable[[float | None], object] | None = None
        self._deciding = threading.Lock()
        self._heard = False
        if release is not None:
            super().add_done_callback(release)

    def add_done_callback(self, fn: Callable[[Future[Outputs]], object]) -> None:
        """As Future says."""
        with self._deciding:
            self._heard = True
        super().add_done_callback(fn)

    def result(self, timeout: float | None = None) -> Outputs:
        """As Future says; meanwhile this thread helps."""
        attend = self._attend
        if attend is not None and not self.done():
            started = time.monotonic()
            attend(timeout)
            if timeout is not None:
                timeout = max(0.0, timeout - (time.monotonic() - started))
        return super().result(timeout)

    def begun(self, attend: Callable[[float | None], object]) -> None:
        """It has begun, and cannot be cancelled any more; it may have ended as well. `attend`: as Attend."""
        with self._deciding:
            self._attend = attend
            if not (self.running() or self.done()):
                self.set_running_or_notify_cancel()

    def fulfilled(self, outputs: Outputs) -> bool:
        """Have these outputs, in a thread that must not be held up; False, and nothing has happened, where somebody is
        to be called, who might do that."""
        with self._deciding:  # who comes from now on finds it done, and is called by whoever adds it
            if self._heard:
                return False
            self.set_result(outputs)
            return True

    def __await__(self) -> Generator[Any, None, Outputs]:
        return asyncio.wrap_future(self).__await__()

    def fulfil(self, call: Callable[..., Outputs], *arguments: Any) -> None:
        """Have the outcome of the call, unless it was cancelled before."""
        with self._deciding:
            runs = self.running() or self.set_running_or_notify_cancel()
        if not runs:
            return
        try:
            outputs = call(*arguments)
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(outputs)


class Results(Iterator[Outputs]):
    """Outputs for each batch of feeds, in order, with up to `max_in_flight` steps under way: for `for` or `async for`,
    once. The batches may come from an asynchronous iterator then.

    An error ends it at the step it belongs to; steps after it are awaited and dropped.
    """

    def __init__(
        self, submit: Callable[[Mapping[str, Any]], StepFuture], batches: Batches, max_in_flight: int
    ) -> None:
        self._submit = submit
        self._batches = batches
        self._max_in_flight = max_in_flight
        self._iterator: Generator[Outputs] | None = None

    def __iter__(self) -> Results:
        return self

    def __next__(self) -> Outputs:
        if self._iterator is None:
            self._iterator = self._in_turn()
        return next(self._iterator)

    def __aiter__(self) -> AsyncIterator[Outputs]:
        return self._awaited()

    def close(self) -> None:
        """End early: no further step begins, and those under way are awaited and dropped."""
        if self._iterator is not None:
            self._iterator.close()

    def _in_turn(self) -> Generator[Outputs]:
        if not isinstance(self._batches, Iterable):
            raise InputError("batches that come asynchronously go with `async for`")
        waiting: deque[StepFuture] = deque()
        try:
            for feeds in self._batches:
                if len(waiting) >= self._max_in_flight:
                    yield waiting.popleft().result()
                waiting.append(self._submit(feeds))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
                if not future.cancelled():
                    future.exception()

    async def _awaited(self) -> AsyncIterator[Outputs]:
        waiting: deque[StepFuture] = deque()
        try:
            async for feeds in _arriving(self._batches):
                if len(waiting) >= self._max_in_flight:
                    yield await waiting.popleft()
                waiting.append(self._submit(feeds))
            while waiting:
                yield await waiting.popleft()
        finally:
            left = [asyncio.wrap_future(future) for future in waiting if not future.cancel()]
            await asyncio.gather(*left, return_exceptions=True)


async def _arriving(batches: Batches) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(batches, AsyncIterable):
        async for feeds in batches:
            yield feeds
    else:
        for feeds in batches:
            yield feeds


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which nothing may hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
