"""What stands for steps under way: futures that threads wait for and coroutines await, and results in their order."""

from __future__ import annotations

import asyncio
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

    def __await__(self) -> Generator[Any, None, Outputs]:
        return asyncio.wrap_future(self).__await__()

    def fulfil(self, call: Callable[..., Outputs], *arguments: Any) -> None:
        """Have the outcome of the call, unless it was cancelled before."""
        if not self.set_running_or_notify_cancel():
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
