"""Faults on purpose: kill or suspend a child, and gates where a child stops until it is told to go on.

```python
with chaos.enabled(), hetero.HeterogeneousExecutor(model, ["cuda:0", "cuda:1", "cpu"]) as ex:
    with chaos.gate("partition 2, before send") as gate:
        future = ex.submit(feeds)
        gate.wait_reached()
        chaos.kill("cuda:1", ex)
        gate.open()
    future.result()
```

Children look for gates only where they were started while chaos was enabled; everything is of one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hetero.errors import KernelError, OptionError, TransportError

if TYPE_CHECKING:
    from hetero import HeterogeneousExecutor

_directory: Path | None = None
"""Where this process has its gates."""
_joined: Path | None = None
"""Where the gates are that this process, a child's, stops at."""


@contextmanager
def enabled() -> Iterator[None]:
    """Children that are started meanwhile stop at gates."""
    global _directory
    if _directory is not None:
        raise OptionError("chaos is enabled already")
    _directory = Path(tempfile.mkdtemp(prefix="hchaos-", dir="/tmp"))  # sockets' paths are short
    try:
        yield
    finally:
        shutil.rmtree(_directory, ignore_errors=True)
        _directory = None


def directory() -> str | None:
    """What children are handed, so that they `join`; None: nothing is to happen."""
    return None if _directory is None else str(_directory)


def join(where: str | None) -> None:
    """Of a child: stop at the gates that are there."""
    global _joined
    _joined = None if where is None else Path(where)


# -- gates -------------------------------------------------------------------------------------------------------
def reach(point: str, step: int | None = None) -> None:
    """Of a child, or an extension in it: this point is reached; wait where there is a gate. Free where chaos is off.

    Raises: KernelError where the gate says so.
    """
    if _joined is None:
        return
    for name in (point,) if step is None else (point, f"{point}, step {step}"):
        path = _joined / _file(name)
        fault = path.with_suffix(".fault")
        if fault.exists():
            raise KernelError(f"{fault.read_text()} (scripted at {name!r})")
        if not path.exists():
            continue
        if answer := _wait(path, point, step):
            raise KernelError(f"{answer} (scripted at {name!r})")


class Gate:
    """A point where children stop. Opened once and for good; leaving the `with` block opens it."""

    def __init__(self, point: str) -> None:
        self.point = point
        if _directory is None:
            raise OptionError("chaos is not enabled")
        self._path = _directory / _file(point)
        self._listener = socket.socket(socket.AF_UNIX)
        self._stopped: list[socket.socket] = []
        try:
            self._listener.bind(str(self._path))
            self._listener.listen()
        except OSError as cause:
            self._listener.close()
            raise OptionError(f"there is a gate at {point!r} already") from cause

    def wait_reached(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until one more child has stopped here; returns its pid, the point and the step.

        Raises: TransportError after `timeout_s`.
        """
        self._listener.settimeout(timeout_s)
        try:
            stopped, _ = self._listener.accept()
        except TimeoutError as cause:
            raise TransportError(f"no child came to {self.point!r} within {timeout_s:g} s") from cause
        self._stopped.append(stopped)
        with stopped.makefile("rb") as said:
            told: dict[str, Any] = json.loads(said.readline())
        return told

    def open(self, error: str = "") -> None:
        """Let everybody go on, now and later; those that wait here with a KernelError of this text, if there is one."""
        self._path.unlink(missing_ok=True)
        self._listener.close()
        for stopped in self._stopped:
            with suppress(OSError):  # it was killed
                stopped.sendall(error.encode())
            stopped.close()
        self._stopped.clear()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()


def gate(point: str, *, step: int | None = None) -> Gate:
    """A gate at a named point of a child (docs/chaos.md lists them), of any step or of one.

    Raises: OptionError where chaos is not enabled, or there is a gate already.
    """
    return Gate(point if step is None else f"{point}, step {step}")


@contextmanager
def broken(point: str, error: str) -> Iterator[None]:
    """Meanwhile every child that comes to `point` fails there with a KernelError of this text.

    Raises: OptionError where chaos is not enabled.
    """
    if _directory is None:
        raise OptionError("chaos is not enabled")
    path = (_directory / _file(point)).with_suffix(".fault")
    path.write_text(error)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


# -- messages ----------------------------------------------------------------------------------------------------
Tampering = Literal["hold", "duplicate", "reorder", "stale"]


def active() -> bool:
    """Whether anything may happen in this process."""
    return _joined is not None or _directory is not None


@contextmanager
def messages(device: str, what: Tampering) -> Iterator[Gate | None]:
    """Meanwhile the messages that a child ("driver": the caller) sends over channels come otherwise than they should.

    "hold": they stay behind until the gate that this gives is opened, while the child goes on; the gate's
    `wait_reached` waits for the first. "duplicate": each comes twice. "reorder": each second one overtakes the one
    before it. "stale": before each comes one that is the same, but of an earlier generation.

    Raises: OptionError where chaos is not enabled, or the device's messages are tampered with already.
    """
    if _directory is None:
        raise OptionError("chaos is not enabled")
    point = f"messages of {device}"
    rule = (_directory / _file(point)).with_suffix(".messages")
    if rule.exists():
        raise OptionError(f"the {point} are tampered with already")
    with gate(point) if what == "hold" else nullcontext() as held:
        rule.write_text(what)
        try:
            yield held
        finally:
            rule.unlink()


def tampering(device: str) -> str | None:
    """Of an endpoint: what happens to the messages of a device."""
    where = _joined or _directory
    try:
        return (
            None
            if where is None
            else (where / _file(f"messages of {device}")).with_suffix(".messages").read_text()
        )
    except FileNotFoundError:
        return None


def wait_messages(device: str) -> None:
    """Of an endpoint: wait until messages that are held back may go."""
    where = _joined or _directory
    if where is not None:
        _wait(where / _file(f"messages of {device}"), f"messages of {device}", None)


def _wait(path: Path, point: str, step: int | None) -> str:
    """Stop at a gate, if it is there; returns the text of the error with which to go on."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as caller, suppress(OSError):  # it was opened meanwhile
        caller.connect(str(path))
        caller.sendall(json.dumps({"pid": os.getpid(), "point": point, "step": step}).encode() + b"\n")
        while chunk := caller.recv(4096):
            answer += chunk
    return answer.decode()


def _file(point: str) -> str:
    return hashlib.blake2b(point.encode(), digest_size=8).hexdigest()


# -- processes ---------------------------------------------------------------------------------------------------
def kill(device: str, ex: HeterogeneousExecutor) -> int:
    """End a child's process at once (SIGKILL); returns its pid."""
    return _signal(device, ex, signal.SIGKILL)


def suspend(device: str, ex: HeterogeneousExecutor) -> int:
    """Stop a child's process in its tracks (SIGSTOP), as a machine that swaps or a debugger does; returns its pid."""
    return _signal(device, ex, signal.SIGSTOP)


def resume(device: str, ex: HeterogeneousExecutor) -> int:
    """Let a suspended child go on; returns its pid."""
    return _signal(device, ex, signal.SIGCONT)


def _signal(device: str, ex: HeterogeneousExecutor, number: signal.Signals) -> int:
    from actors.pool import RayChildren

    children = ex._children
    if not isinstance(children, RayChildren):
        raise OptionError('only children="ray" have processes of their own')
    pid = children.health.pid(device)
    os.kill(pid, number)
    return pid
