"""While a child runs, BLAS has one thread; afterwards as many as the caller had set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from hetero import HeterogeneousExecutor
from hetero.kernels import blas_threads
from hetero.kernels.blas_threads import one_blas_thread
from hetero.kernels.jit import enabled
from hetero.runtime.runner import Runner

pytestmark = pytest.mark.skipif(not enabled(), reason="without compiled loops BLAS keeps its threads")


def counts() -> set[int]:
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return {library.get_num_threads() for library in libraries}


@pytest.fixture
def two_threads() -> Iterator[None]:
    """BLAS with two threads, set by the caller."""
    np.dot(np.ones(2), np.ones(2))
    with threadpool_limits(2, user_api="blas"):
        if counts() != {2}:
            pytest.skip("this BLAS has one thread")
        yield


@pytest.fixture(params=["variable", "threadpoolctl"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS's variable, and what other libraries are set by. (OpenBLAS's own function
    heeds the main thread only.)"""
    if request.param == "threadpoolctl":
        libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        found = tuple(blas_threads._Library(library) for library in libraries)
        monkeypatch.setattr(blas_threads, "_counts", lambda: found)


@pytest.mark.usefixtures("two_threads", "either_way")
def test_one_inside_and_the_callers_number_afterwards() -> None:
    with one_blas_thread():
        assert counts() == {1}
        with one_blas_thread():
            assert counts() == {1}
        assert counts() == {1}
    assert counts() == {2}


@pytest.mark.usefixtures("two_threads")
def test_without_compiled_loops_blas_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_JIT", "0")
    blas_threads._counts.cache_clear()
    try:
        with one_blas_thread():
            assert counts() == {2}
    finally:
        blas_threads._counts.cache_clear()


@pytest.mark.usefixtures("two_threads", "either_way")
def test_it_is_put_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert counts() == {2}


@pytest.mark.usefixtures("two_threads")
def test_it_is_put_back_when_the_last_thread_leaves() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with one_blas_thread():
            entered.set()
            leave.wait(30)

    other = threading.Thread(target=stay)
    with one_blas_thread():
        other.start()
        assert entered.wait(30)
    assert counts() == {1}
    leave.set()
    other.join()
    assert counts() == {2}


@pytest.mark.usefixtures("two_threads", "either_way")
def test_an_executor_runs_with_one_and_leaves_the_callers_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    run = Runner.run

    def watched(self: Runner, *arguments: Any) -> Any:
        seen.append(counts())
        return run(self, *arguments)

    monkeypatch.setattr(Runner, "run", watched)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }'
    )
    with HeterogeneousExecutor(model, ["cpu"], children="inline") as ex:
        ex.run({"x": np.eye(2, dtype=np.float32)})
    assert seen == [{1}]
    assert counts() == {2}
