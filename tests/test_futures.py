"""Steps awaited by coroutines: in order, bounded, cancelled and timed out, without holding the event loop up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from hetero import HeterogeneousExecutor
from hetero.errors import InputError, KernelError
from tests.acceptance.harness import executor

TWICE = "g (float[n] x) => (float[n] y) { y = Add(x, x) }"
PICK = "g (float[3] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"


def feeds(k: int) -> dict[str, Any]:
    return {"x": np.full(3, k, np.float32)}


class Gated:
    """Holds every step of an executor until it is opened, and counts those that have begun."""

    def __init__(self, ex: HeterogeneousExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.begun, self.most, self.now = threading.Event(), threading.Event(), 0, 0
        self._lock = threading.Lock()
        step = ex._stepping.step

        def held(*arguments: Any) -> Any:
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            self.begun.set()
            self.opened.wait()
            try:
                return step(*arguments)
            finally:
                with self._lock:
                    self.now -= 1

        monkeypatch.setattr(ex._stepping, "step", held)


def test_a_step_is_awaited_and_its_error_raised_there() -> None:
    async def main() -> None:
        with executor(PICK) as ex:
            x = np.arange(3, dtype=np.float32)
            out = await ex.submit({"x": x, "i": np.array([2])})
            assert out["y"].tolist() == [2]
            with pytest.raises(InputError, match="missing"):
                ex.submit({"x": x})
            with pytest.raises(KernelError, match="Gather"):
                await ex.submit({"x": x, "i": np.array([7])})
            assert (await ex.submit({"x": x, "i": np.array([0])}))["y"].tolist() == [0]

    asyncio.run(main())


def test_many_submits_in_a_coroutine_never_wait_and_run_at_most_so_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        with executor(TWICE, max_in_flight=2) as ex:
            gate = Gated(ex, monkeypatch)
            futures = [ex.submit(feeds(k)) for k in range(8)]
            gate.opened.set()
            outs = await asyncio.gather(*[asyncio.wrap_future(f) for f in futures])
            assert [out["y"][0] for out in outs] == [2 * k for k in range(8)]
            assert 1 <= gate.most <= 2

    asyncio.run(main())


def test_async_for_gives_results_in_order_from_iterators_of_both_kinds() -> None:
    async def arriving() -> AsyncIterator[dict[str, Any]]:
        for k in range(7):
            await asyncio.sleep(0)
            yield feeds(k)

    async def main() -> None:
        with executor(TWICE) as ex:
            for batches in (arriving(), [feeds(k) for k in range(7)]):
                seen = [out["y"][0] async for out in ex.map(batches, max_in_flight=3)]
                assert seen == [2 * k for k in range(7)]
            with pytest.raises(InputError, match="async for"):
                next(ex.map(arriving()))

    asyncio.run(main())


def test_an_error_ends_async_for_at_its_step_and_the_executor_goes_on() -> None:
    async def main() -> None:
        x = np.arange(3, dtype=np.float32)
        with executor(PICK) as ex:
            results = aiter(ex.map([{"x": x, "i": np.array([k])} for k in (0, 1, 9, 2)]))
            assert [(await anext(results))["y"][0] for _ in range(2)] == [0, 1]
            with pytest.raises(KernelError):
                await anext(results)
            assert (await ex.submit({"x": x, "i": np.array([2])}))["y"].tolist() == [2]

    asyncio.run(main())


def test_a_timeout_leaves_the_loop_free_and_a_step_that_has_not_begun_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        with executor(TWICE, max_in_flight=1) as ex:
            gate = Gated(ex, monkeypatch)
            first, second = ex.submit(feeds(1)), ex.submit(feeds(2))
            gate.begun.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(second), 0.01)
            assert second.cancelled()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(first)), 0.01)
            gate.opened.set()
            assert (await first)["y"].tolist() == [2, 2, 2]
            assert ex.stats()["steps"] == 1

    asyncio.run(main())


def test_a_cancelled_step_gives_its_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with executor(TWICE, max_in_flight=2) as ex:
        gate = Gated(ex, monkeypatch)
        running, waiting = ex.submit(feeds(1)), ex.submit(feeds(2))
        gate.begun.wait()
        assert not running.cancel()
        assert waiting.cancel()
        another = ex.submit(feeds(3))  # would wait for ever if the cancelled one had kept its turn
        gate.opened.set()
        assert another.result(timeout=30)["y"].tolist() == [6, 6, 6]
        assert running.result(timeout=30)["y"].tolist() == [2, 2, 2]
