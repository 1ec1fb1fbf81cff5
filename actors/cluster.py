"""The Ray that children live on: one that runs already, or a local one of our own that nobody outlives."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.exceptions as rex
from ray import _raylet
from ray._private import worker
from ray.util import client

from hetero.errors import ClosedError, OptionError, TransportError

_MIB = 1 << 20
_SMALLEST_STORE_BYTES = 128 * _MIB
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""A dead node is noticed after about 2 s; Ray's defaults take 16 s."""

NICENESS = {"worker_niceness": 0}
"""Children wait for nobody: Ray's default, 15, has each message to the driver take the processor from the child that
sends it."""

WAIT = (
    {"wait_for_processes": True} if "wait_for_processes" in inspect.signature(ray.shutdown).parameters else {}
)
"""Newer versions of Ray can be told to wait until its processes are gone."""

_NO_CLIENT = "children are driven from within the cluster; HeterogeneousExecutor goes there by itself"
_REACH_S = 5.0
_worker: Any = worker.global_worker
_gcs: Any = _raylet  # compiled, and without types
_client: Any = client.ray

log = logging.getLogger("hetero.ray")

_lock = threading.RLock()
_session: _Session | None = None


@dataclass(slots=True, eq=False)
class _Session:
    """A connection to Ray. `directory` is set where the processes are ours; `environment` has what to put back."""

    connection: str
    opened_here: bool
    directory: Path | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    users: int = 0

    def current(self) -> bool:
        return bool(ray.is_initialized()) and _connection() == self.connection

    def end(self) -> None:
        """Stop or leave what was started or joined here."""
        if self.opened_here and self.current():
            ray.shutdown(**WAIT)
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self.directory is not None:
            remove_directory(self.directory)


def _connection() -> str:
    """Names what this process is connected to: a job of its own on a node (every cluster begins with the same job)."""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()}/{context.get_job_id()}"


class RayLease:
    """One executor's claim on Ray. Whoever started Ray stops it: ours stops with its last lease.

    `ours`: its processes were started by this process, for leases alone.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._held = True
        self.ours = session.directory is not None

    def check(self) -> None:
        """Raises: ClosedError where Ray was shut down under us (using it would silently start another)."""
        if not (self._held and _worker.connected):  # as ray.is_initialized says, in four calls more
            raise ClosedError("Ray was shut down", phase="transport")

    def usable(self) -> bool:
        """Whether this lease's Ray is still the one this process is connected to."""
        return self._held and self._session.current()

    def release(self) -> None:
        """Give the claim up. A second call does nothing."""
        global _session
        with _lock:
            if not self._held:
                return
            self._held = False
            self._session.users -= 1
            if self._session.users == 0:
                if _session is self._session:
                    _session = None
                self._session.end()


def ensure_ray(
    *, address: str | None = None, store_bytes: int | None = None, log_to_driver: bool = False
) -> RayLease:
    """A claim on the Ray this process uses.

    In this order: the one it is connected to; the one that `address`, or else RAY_ADDRESS, names ("auto", "host:port");
    a local one of our own, with an object store of `store_bytes` (by default 30 % of the free memory, within what
    /dev/shm holds), which only holders of its random token can talk to.

    Raises: TransportError where Ray cannot be reached or started, asks for another token, or this process is connected
    to another one than `address` names, or through Ray Client; OptionError for a store that is too small.
    """
    global _session
    if _client.is_connected():
        raise TransportError(f"this process is connected through Ray Client: {_NO_CLIENT}")
    with _lock:
        if _session is not None and not _session.current():
            stale, _session = _session, None  # somebody called ray.shutdown()
            stale.end()
        if _session is None:
            _session = _open(address, store_bytes, log_to_driver)
        elif address not in (None, "auto", "local"):
            _check_address(str(address))
        _session.users += 1
        return RayLease(_session)


def _open(address: str | None, store_bytes: int | None, log_to_driver: bool) -> _Session:
    if ray.is_initialized():
        if address not in (None, "auto", "local"):
            _check_address(str(address))
        return _Session(_connection(), opened_here=False)
    what = "RAY_ADDRESS" if address is None else "address"
    address = os.environ.get("RAY_ADDRESS", "") if address is None else address
    if address and address != "local":
        if "://" in address:
            raise TransportError(f"{what}={address}: {_NO_CLIENT}")
        _check_token(what, address)
        try:
            ray.init(address=address, configure_logging=False, log_to_driver=log_to_driver)
        except Exception as cause:
            raise TransportError(f"cannot connect to Ray at {what}={address}: {cause}") from cause
        return _Session(_connection(), opened_here=True)
    return _start(store_bytes, log_to_driver)


def _check_token(what: str, address: str) -> None:
    """Raises: TransportError where the Ray at `address` ("host:port") wants another token than this process has. Ray
    itself only says, after half a minute, that it could not connect."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _REACH_S):
            pass
        _gcs.GcsClient(address=address)
    except rex.AuthenticationError as cause:
        mode = os.environ.get("RAY_AUTH_MODE", "not set")
        raise TransportError(
            f"the Ray at {what}={address} does not take this process's token (RAY_AUTH_MODE is {mode}): set"
            " RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what the cluster has, before the"
            " program starts"
        ) from cause
    except Exception as cause:
        log.debug("not known before connecting: %s", cause)  # connecting tells


def _check_address(address: str) -> None:
    """Raises: TransportError unless this process is connected to the Ray at `address` (host:port)."""
    connected = str(ray.get_runtime_context().gcs_address)
    if address != connected:
        raise TransportError(f"this process is connected to the Ray at {connected}, not to address={address}")


def _start(store_bytes: int | None, log_to_driver: bool) -> _Session:
    if store_bytes is not None and store_bytes < _SMALLEST_STORE_BYTES:
        raise OptionError(
            f"store_bytes must be at least {_SMALLEST_STORE_BYTES}, not {store_bytes}", phase="prepare"
        )
    # A directory of our own: nothing stays in /tmp/ray, and no bare ray.init() elsewhere finds this Ray by accident.
    # Socket paths in it must stay below 108 bytes, so it is short whatever TMPDIR says.
    base = tempfile.gettempdir()
    directory = Path(tempfile.mkdtemp(prefix="hray-", dir=base if len(base) < 24 else "/tmp"))
    session = _Session("", opened_here=True, directory=directory, environment=_set_token())
    shared_memory = _free_bytes("/dev/shm")
    store = _store_bytes(shared_memory) if store_bytes is None else store_bytes
    arguments: dict[str, Any] = {
        "address": "local",
        "include_dashboard": False,
        "configure_logging": False,
        "log_to_driver": log_to_driver,
        "num_cpus": len(os.sched_getaffinity(0)),
        "object_store_memory": store,
        "_temp_dir": str(directory),
        "_system_config": {**HEALTH_CHECKS, **NICENESS},  # Ray writes into it
    }
    if store > shared_memory:
        arguments["_plasma_directory"] = str(directory)  # slower, but Ray refuses to start otherwise
    try:
        ray.init(**arguments)
        session.connection = _connection()
    except BaseException as cause:
        ray.shutdown(**WAIT)
        session.end()
        if isinstance(cause, Exception):
            raise TransportError(f"cannot start a local Ray: {cause}") from cause
        raise
    return session


def _set_token() -> dict[str, str | None]:
    """Turn on token authentication with a token that is written to no file, unless the environment says otherwise.

    Ray listens on all interfaces; left to itself it writes a token into the home directory and tells the log about it.
    """
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(os.environ.get(name) for name in names):
        return {}
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = process_token()
    _gcs.Config.initialize("")  # Ray read the mode when it was imported
    return {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None}


_kept_token: list[str] = []


def process_token() -> str:
    """This process's token: Ray reads it once per process, so the next local Ray must use the same."""
    if not _kept_token:
        _kept_token.append(secrets.token_hex(32))
    return _kept_token[0]


def _store_bytes(shared_memory_bytes: int) -> int:
    """A store of 30 % of the free memory, in shared memory where a useful one fits there."""
    wanted = max(_SMALLEST_STORE_BYTES, int(0.3 * _free_memory_bytes()))
    fits = int(0.9 * shared_memory_bytes)
    return min(wanted, fits) if fits >= _SMALLEST_STORE_BYTES else _SMALLEST_STORE_BYTES


def _free_bytes(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def _free_memory_bytes() -> int:
    """Memory that is free for us: the machine's, or less where a control group sets a limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def remove_directory(directory: Path, patience_s: float = 2.0) -> None:
    """Remove a session's directory; workers that are still on their way out may write a last line into it."""
    deadline = time.monotonic() + patience_s
    while True:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _stop_at_exit() -> None:
    """At exit nobody needs a lease any more; runs before Ray's own hook, which was registered first."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is not None:
            session.end()


atexit.register(_stop_at_exit)
