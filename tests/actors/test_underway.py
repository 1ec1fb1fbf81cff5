"""Steps that no thread waits for: begun by whoever submits them, ended by whoever receives their outputs."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors.channels.flight import Flight
from hetero.errors import KernelError
from hetero.executor import HeterogeneousExecutor
from hetero.options import RuntimeOptions
from tests.actors.test_pool import HEAD, executor, pids

PICKED = HEAD + "g (float[n] x, int64[1] i) => (float[1] y) { a = Neg(x) y = Gather(a, i) }"
TWO: list[Any] = [("cpu:0", {"ops": ["Neg"]}), "cpu:1"]
WAIT_S = 60.0

ray_test = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


def feeds(k: int, at: int = 0) -> dict[str, Any]:
    return {"x": np.full(3, k, np.float32), "i": np.array([at])}


@pytest.fixture
def ex(local_ray: Any) -> Iterator[HeterogeneousExecutor]:
    options = RuntimeOptions(max_in_flight=2)
    with executor(PICKED, TWO, transport="channels", options=options) as made:
        for k in range(4):
            made.run(feeds(k))
        yield made


def test_whoever_sees_the_end_of_a_flight_tells_once() -> None:
    flight, told = Flight(1, 1, {0}), []
    flight.when_over(lambda: told.append(1))
    assert not told
    flight.missing.clear()
    flight.ended()
    flight.ended()
    assert told == [1]


def test_of_a_flight_that_is_over_it_is_told_at_once() -> None:
    flight, told = Flight(1, 1, set()), []
    flight.when_over(lambda: told.append(1))
    flight.ended()
    assert told == [1]


class TestOverChannels:
    pytestmark = ray_test

    def test_steps_need_no_worker(self, ex: HeterogeneousExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        by_workers: list[str] = []
        for name in ("step", "awaited"):
            inner = getattr(ex._stepping, name)

            def noted(*arguments: Any, name: str = name, inner: Any = inner) -> Any:
                by_workers.append(name)
                return inner(*arguments)

            monkeypatch.setattr(ex._stepping, name, noted)
        assert [out["y"].tolist() for out in ex.map(map(feeds, range(40)))] == [[-k] for k in range(40)]
        assert len(by_workers) < 40  # all but those that met another thread at the lock
        assert ex.stats()["steps"] == 44

    def test_an_iterator_that_is_left_alone_holds_no_turns(self, ex: HeterogeneousExecutor) -> None:
        results = ex.map(map(feeds, range(20)))
        assert next(results)["y"].tolist() == [0]
        for k in range(6):  # as many as there are turns, and more
            assert ex.submit(feeds(k)).result(WAIT_S)["y"].tolist() == [-k]
        assert next(results)["y"].tolist() == [-1]
        del results
        gc.collect()
        assert ex.run(feeds(5))["y"].tolist() == [-5]

    def test_whoever_is_called_when_a_step_is_done_may_wait_for_another(
        self, ex: HeterogeneousExecutor
    ) -> None:
        outputs: list[Any] = []
        done = threading.Event()

        def called(_: Any) -> None:
            outputs.append(ex.run(feeds(7))["y"].tolist())
            done.set()

        for _ in range(5):
            done.clear()
            future = ex.submit(feeds(3))
            future.add_done_callback(called)
            assert future.result(WAIT_S)["y"].tolist() == [-3]
            assert done.wait(WAIT_S)
        assert outputs == [[-7]] * 5

    def test_a_step_that_has_begun_cannot_be_cancelled(self, ex: HeterogeneousExecutor) -> None:
        future = ex.submit(feeds(3))
        assert not future.cancel()
        assert future.result(WAIT_S)["y"].tolist() == [-3]

    def test_an_error_is_its_own_steps_and_leaves_nothing(self, ex: HeterogeneousExecutor) -> None:
        futures = [ex.submit(feeds(k, at=9 if k == 2 else 0)) for k in range(5)]
        for k, future in enumerate(futures):
            if k == 2:
                with pytest.raises(KernelError) as caught:
                    future.result(WAIT_S)
                assert caught.value.step is not None
            else:
                assert future.result(WAIT_S)["y"].tolist() == [-k]
        stats = ex.stats()
        assert (stats["steps"], stats["failed_steps"]) == (8, 1)
        assert stats["transport"]["in_flight"] == 0

    def test_steps_of_a_child_that_is_killed_are_given_out_again(self, ex: HeterogeneousExecutor) -> None:
        got = []
        for k, out in enumerate(ex.map(map(feeds, range(30)))):
            if k == 10:
                os.kill(pids(ex)["cpu:1"], signal.SIGKILL)
            got.append(out["y"].tolist())
        assert got == [[-k] for k in range(30)]
        assert ex.stats()["steps"] == 34

    def test_a_close_waits_for_them(self, ex: HeterogeneousExecutor) -> None:
        futures = [ex.submit(feeds(k)) for k in range(2)]
        ex.close()
        assert all(f.done() for f in futures)
        assert [f.result()["y"].tolist() for f in futures] == [[0], [-1]]

    def test_threads_that_submit_and_wait_at_once_each_get_their_own(self, ex: HeterogeneousExecutor) -> None:
        wrong: list[Any] = []

        def work(first: int) -> None:
            for k in range(first, first + 40):
                out = ex.submit(feeds(k)).result(WAIT_S)["y"].tolist()
                if out != [-k]:
                    wrong.append((k, out))

        threads = [threading.Thread(target=work, args=(100 * t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert not wrong
        assert not any(t.is_alive() for t in threads)
