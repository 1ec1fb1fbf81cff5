"""Whoever started Ray stops it, however the process ends; a local Ray of our own leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import cluster
from actors.cluster import RayLease, ensure_ray
from hetero.errors import ClosedError, OptionError, TransportError

MIB = 1 << 20
EXECUTOR = """
    import os, signal, sys
    import numpy as np, onnx.parser
    from hetero import HeterogeneousExecutor
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts with "&"
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { a = Neg(x) y = Exp(a) }'
    providers = [("cpu:0", {"ops": ["Neg"]}), "cpu:1"]

    def executor(**keywords):
        return HeterogeneousExecutor(onnx.parser.parse_model(text), providers, **keywords)
"""


def python(script: str, **environment: str) -> subprocess.Popen[str]:
    """A Python of its own process group, as a shell would start it; it says on stdout where its Ray lives."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HETERO_"))} | environment
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(EXECUTOR) + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    _started.append(process)
    return process


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_outlives_its_test() -> Iterator[None]:
    """A test that fails half-way leaves its process to no one else."""
    yield
    while _started:
        with _started.pop() as process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def processes_of(directory: str) -> list[str]:
    """Command lines of processes that mention a session directory, or have it in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if directory.encode() in line:
                found.append(line.split(b"\0")[0].decode())
    return found


def assert_nothing_left(directory: str, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while processes_of(directory) or Path(directory).exists():
        assert time.monotonic() < deadline, (processes_of(directory), Path(directory).exists())
    assert not [p for p in Path("/dev/shm").iterdir() if Path(directory).name in p.name]


SAY_WHERE = """
    import ray
    from actors import cluster
    def say(ex=None):
        pids = [s["pid"] for s in ex.stats()["children"].values()] if ex else []
        print(cluster._session.directory, *pids, flush=True)
"""


def started(process: subprocess.Popen[str]) -> tuple[str, list[int]]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if not words:
        raise AssertionError(process.communicate(timeout=20)[1])
    return words[0], [int(w) for w in words[1:]]


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_local_ray_leaves_nothing_when_closed_nor_after_ctrl_c(tmp_path: Path) -> None:
    """Two lives of a local Ray in one process, warnings being errors; the second is interrupted in the middle of a run,
    by the signal that a terminal sends to the whole process group."""
    process = python(
        SAY_WHERE
        + """
    with executor() as ex:
        say(ex)
        assert ex.run({"x": np.zeros(2, np.float32)})["y"].tolist() == [1, 1]
    assert not ray.is_initialized()
    assert "RAY_AUTH_TOKEN" not in os.environ
    ex = executor()
    say(ex)
    while True:
        ex.run({"x": np.zeros(1000, np.float32)})
    """,
        HOME=str(tmp_path),
    )
    first, _ = started(process)
    second, children = started(process)
    assert_nothing_left(first)
    assert processes_of(second)
    assert len(children) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in complaint
    assert_nothing_left(second)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(tmp_path.iterdir())  # no token for others to read


@pytest.mark.ray
def test_leases_share_one_ray_and_only_the_last_stops_it(local_ray: RayLease) -> None:
    first, second = ensure_ray(), ensure_ray()
    assert first.ours
    assert second.ours
    first.release()
    first.release()
    second.check()
    second.release()
    local_ray.check()
    assert local_ray.usable()
    with pytest.raises(ClosedError):
        second.check()


def test_a_ray_of_the_user_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[Any] = []
    monkeypatch.setattr(cluster, "_session", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster, "_connection", lambda: "theirs")
    monkeypatch.setattr(ray, "shutdown", lambda **k: stopped.append(k))
    lease = ensure_ray()
    assert not lease.ours
    lease.release()
    assert not stopped


def test_an_address_that_ray_clients_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_session", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://nowhere:10001")
    with pytest.raises(TransportError, match="driven from within the cluster"):
        ensure_ray()


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(cluster, "_session", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(TransportError, match=r"10\.0\.0\.1:6379.*nobody there"):
        ensure_ray()


def test_a_store_too_small_for_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_session", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(OptionError, match="store_bytes"):
        ensure_ray(store_bytes=MIB)


@pytest.mark.parametrize(
    ("free_mib", "shared_mib", "want_mib"),
    [(10_000, 20_000, 3_000), (10_000, 1_000, 900), (10_000, 64, 128), (100, 20_000, 128), (100, 0, 128)],
)
def test_the_store_fits_the_memory_and_the_shared_memory(
    free_mib: int, shared_mib: int, want_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_free_memory_bytes", lambda: free_mib * MIB)
    assert cluster._store_bytes(shared_mib * MIB) // MIB == want_mib
