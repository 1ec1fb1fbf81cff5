"""Ray's exceptions as ours: class, attributes and the first cause survive, however often they were wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import ray.exceptions as rex

from actors.failures import RemoteTracebackError, dead_actor, how_it_went, is_death, translated
from hetero.errors import ChildDiedError, KernelError, MemoryLimitError, StepTimeoutError, TransportError


def wrapped(cause: Any, text: str = "Traceback: in the child") -> Any:
    return rex.RayTaskError("run", text, cause, proctitle="child", pid=1, ip="127.0.0.1")


def died(message: str = "") -> Any:
    error = rex.RayActorError("a1", message)
    assert error.actor_id == "a1"
    return error


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_error_of_a_child_comes_back_as_it_was(times: int) -> None:
    error: Any = MemoryLimitError("too large", op="Add", node="n1", operand="x", device="sim:0", step=4)
    for _ in range(times):
        error = wrapped(error)
    got = translated(error, {})
    assert type(got) is MemoryLimitError
    assert (got.op, got.node, got.operand, got.device, got.step) == ("Add", "n1", "x", "sim:0", 4)
    assert isinstance(got.__cause__, RemoteTracebackError)
    assert "in the child" in str(got.__cause__)


def test_what_ray_raises_from_get_is_unwrapped_too() -> None:
    got = translated(wrapped(KernelError("bad index", node="g")).as_instanceof_cause(), {})
    assert type(got) is KernelError
    assert got.node == "g"


def test_a_foreign_exception_keeps_its_class() -> None:
    got = translated(wrapped(wrapped(ZeroDivisionError("by zero"))), {})
    assert type(got) is ZeroDivisionError
    assert "in the child" in str(got.__cause__)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_death_names_the_device_also_when_a_consumer_reports_it(times: int) -> None:
    error = died("Worker exits with an exit code 3.")
    for _ in range(times):
        error = wrapped(error)
    assert is_death(error)
    assert dead_actor(error) == "a1"
    got = translated(error, {"a1": "cuda:1"})
    assert type(got) is ChildDiedError
    assert got.device == "cuda:1"
    assert "exit code 3" in got.message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            died(
                "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes…"
            ),
            "SIGKILL",
        ),
        (died("The actor is dead because it was killed by `ray.kill`."), "ray.kill"),
        (died("Worker exits with an exit code 4."), "exit code 4"),
        (died("Worker exit type: NODE_OUT_OF_MEMORY"), "out of memory"),
        (rex.OutOfMemoryError("memory"), "out of memory"),
        (died("The actor died because its node has died."), "node"),
        (rex.WorkerCrashedError(), "died unexpectedly"),
        (
            died(
                "an error raised in its creation task, \x1b[36mray::C()\x1b[39m\n  File 3\nImportError: no x\n"
            ),
            "could not start: ImportError: no x",
        ),
    ],
)
def test_how_a_child_went_is_said_in_a_few_words(error: Any, words: str) -> None:
    assert words in how_it_went(error)
    assert len(how_it_went(error)) < 400
    assert isinstance(translated(error, {}), ChildDiedError)


def test_a_deadline_is_a_step_timeout() -> None:
    got = translated(rex.GetTimeoutError("late"), {})
    assert type(got) is StepTimeoutError
    assert not is_death(rex.GetTimeoutError("late"))


def test_any_other_trouble_of_ray_is_a_transport_error() -> None:
    got = translated(rex.RaySystemError("raylet gone"), {})
    assert type(got) is TransportError
    assert "raylet gone" in got.message
