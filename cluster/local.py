"""A Ray cluster of several nodes in one machine: declared GPUs and labels, nodes that come, go and die."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import ray
from ray import _raylet
from ray.cluster_utils import Cluster

from actors.cluster import HEALTH_CHECKS, WAIT, process_token, remove_directory
from cluster.processes import Family
from hetero.errors import ClosedError, OptionError, TransportError

_Cluster: Any = Cluster  # whose methods have no types

STORE_BYTES = 128 << 20
"""Object store of each node; they all lie in the one /dev/shm."""
_BREAKPOINT = "PYTHONBREAKPOINT"
"""Ray sets it in whoever connects, and leaves it."""
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
START_S = 60.0
"""How long nodes may take to come up."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalNode:
    """A node of a LocalCluster. `id`: as in `ray.nodes()` and in the executor's stats. Node 0 is the head."""

    number: int
    id: str
    raylet_pid: int
    _ray: Any


class LocalCluster:
    """Brings up Ray nodes in this machine, connects this process to them, and takes all of it down again.

    Executors made inside use it, since this process is connected to it; others in other processes with
    `RAY_ADDRESS=<address>` or `ray_options={"address": …}`, and the token, if there is one, in RAY_AUTH_TOKEN.

    Args:
        nodes: how many, the head (which this process belongs to) included.
        cpus_per_node, gpus_per_node: what each declares; GPUs need not exist.
        labels, resources: of node 0, 1, …; nodes beyond the end of the list have none.
        store_bytes: object store of each node.
        token: whether only holders of a token, random and written to no file, may talk to it. Ray listens on all
            interfaces of the machine.
        connect: connect this process.
        client: take Ray Clients as well (`client_address`); that needs `ray[client]`.

    A dead node is noticed within about 2 s. Not thread-safe.
    Raises: OptionError for values that cannot be meant; TransportError where Ray does not start, or this process is
    connected to another one. Nothing is left running then, nor after an exception or Ctrl-C in the `with` block.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        cpus_per_node: float = 2,
        gpus_per_node: int = 0,
        labels: Sequence[Mapping[str, str]] = (),
        resources: Sequence[Mapping[str, float]] = (),
        store_bytes: int = STORE_BYTES,
        token: bool = True,
        connect: bool = True,
        client: bool = False,
    ) -> None:
        if nodes < 1:
            raise OptionError(f"a cluster has at least one node, not {nodes}", operand="nodes")
        for what, given in (("labels", labels), ("resources", resources)):
            if len(given) > nodes:
                raise OptionError(f"{what} are given for {len(given)} nodes of {nodes}", operand=what)
        self._wanted = nodes
        self._defaults = {
            "num_cpus": cpus_per_node,
            "num_gpus": gpus_per_node,
            "object_store_memory": store_bytes,
        }
        self._labels = [dict(row) for row in labels]
        self._resources = [dict(row) for row in resources]
        self._token = token
        self._connect = connect
        self._client_port = free_port() if client else None
        self._cluster: Any = None
        self._directory: Path | None = None
        self._environment: dict[str, str | None] = {}
        self._nodes: dict[int, LocalNode] = {}
        self._made = 0
        self._family = Family()

    # -- coming and going ----------------------------------------------------------------------------------------
    def start(self) -> LocalCluster:
        """Bring it up. Takes 3 to 4 s for the head and 1 to 3 s for each further node."""
        if self._cluster is not None:
            return self
        if ray.is_initialized():
            raise TransportError("this process is connected to another Ray: ray.shutdown() first")
        # In a folder of its own, with a short name: socket paths in it must stay below 108 bytes.
        base = tempfile.gettempdir()
        self._directory = Path(tempfile.mkdtemp(prefix="hray-", dir=base if len(base) < 20 else "/tmp"))
        atexit.register(self.close)
        try:
            self._set_environment()
            self._cluster = _Cluster()
            for _ in range(self._wanted):
                self._add(wait=False)
            self._cluster.wait_for_nodes(START_S)
            if self._connect:
                ray.init(address=self.address, configure_logging=False, log_to_driver=False)
        except BaseException as cause:
            self.close()
            if isinstance(cause, Exception):
                raise TransportError(f"cannot start a local cluster: {cause}") from cause
            raise
        return self

    def close(self) -> None:
        """Leave and stop everything, dead nodes' orphans included. A second call does nothing."""
        directory, self._directory = self._directory, None
        if directory is None:
            return
        atexit.unregister(self.close)
        # Ctrl-C once more must not leave half of it running; only the main thread may say so.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        cluster, self._cluster = self._cluster, None
        nodes = self.nodes
        self._nodes.clear()
        try:
            if self._connect and ray.is_initialized():
                ray.shutdown(**WAIT)
            if cluster is not None:
                self._family.add(node.raylet_pid for node in nodes)
                head = cluster.head_node  # none where it did not start
                servers = () if head is None else head.all_processes.get("ray_client_server", ())
                self._family.add(server.process.pid for server in servers)
                # The head last. Nothing on them is worth a grace period.
                for node in reversed(cluster.list_all_nodes()):
                    cluster.remove_node(node, allow_graceful=False)
        finally:
            self._family.end(directory)
            remove_directory(directory)
            for name, value in self._environment.items():
                _set(name, value)
            self._environment.clear()
            _read_environment()
            if before is not None:
                signal.signal(signal.SIGINT, before)

    def __enter__(self) -> LocalCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_environment(self) -> None:
        """What Ray's processes inherit: the mode of authentication, always said, since Ray's own choice differs between
        its ways to start; and where its files go, so that none tells a bare `ray.init()` elsewhere of this cluster."""
        assert self._directory is not None, "called while starting"
        (self._directory / "ray").mkdir()
        wanted: dict[str, str | None] = dict.fromkeys(_AUTHENTICATION)
        wanted["RAY_AUTH_MODE"] = "token" if self._token else "disabled"
        if self._token:
            wanted["RAY_AUTH_TOKEN"] = process_token()
        wanted["RAY_TMPDIR"] = str(self._directory)
        wanted[_BREAKPOINT] = os.environ.get(_BREAKPOINT)
        for name, value in wanted.items():
            self._environment[name] = os.environ.get(name)
            _set(name, value)
        _read_environment()

    # -- nodes ---------------------------------------------------------------------------------------------------
    @property
    def address(self) -> str:
        """host:port, for RAY_ADDRESS and `ray_options`."""
        return str(self._running().address)

    @property
    def client_address(self) -> str:
        """ray://host:port, for Ray Client. Raises: OptionError where the cluster was made without `client`."""
        if self._client_port is None:
            raise OptionError("this cluster takes no Ray Clients: make it with client=True", operand="client")
        return f"ray://{self.address.rpartition(':')[0]}:{self._client_port}"

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        """The nodes that were neither removed nor killed, by number."""
        return tuple(self._nodes[number] for number in sorted(self._nodes))

    def add_node(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> LocalNode:
        """One more node, alive when this returns; its number is one more than any before.

        `changes`: num_cpus, num_gpus, object_store_memory, for this node alone.
        """
        return self._add(labels or {}, resources or {}, changes, wait=True)

    def _add(
        self,
        labels: Mapping[str, str] = MappingProxyType({}),
        resources: Mapping[str, float] = MappingProxyType({}),
        changes: Mapping[str, Any] = MappingProxyType({}),
        *,
        wait: bool,
    ) -> LocalNode:
        cluster, number = self._running(), self._made
        given = {**self._defaults, **changes}
        mine = self._labels[number] if number < len(self._labels) else {}
        given["labels"] = {**mine, **labels}
        own = self._resources[number] if number < len(self._resources) else {}
        given["resources"] = {**own, **resources}
        if number == 0:
            given["_system_config"] = dict(HEALTH_CHECKS)
            given["include_dashboard"] = False
            given["ray_client_server_port"] = self._client_port
        made = cluster.add_node(wait, **given)
        processes = made.all_processes["raylet"]
        node = LocalNode(number, str(made.node_id), int(processes[0].process.pid), made)
        self._nodes[number] = node
        self._made += 1
        return node

    def remove_node(self, node: LocalNode | int) -> None:
        """Take a node out in good order: Ray is told, and its actors end. Not the head."""
        found = self._movable(node)
        self._family.add([found.raylet_pid])
        self._running().remove_node(found._ray, allow_graceful=True)
        del self._nodes[found.number]

    def kill_raylet(self, node: LocalNode | int) -> None:
        """Kill a node's raylet (SIGKILL), as when a machine dies; its workers may go on for a while. Not the head's."""
        found = self._movable(node)
        self._family.add([found.raylet_pid])
        found._ray.kill_raylet()
        del self._nodes[found.number]

    def _movable(self, node: LocalNode | int) -> LocalNode:
        number = node if isinstance(node, int) else node.number
        found = self._nodes.get(number)
        if found is None or (isinstance(node, LocalNode) and found is not node):
            raise OptionError(f"there is no node {number}; there are: {sorted(self._nodes)}", operand="node")
        if number == 0:
            raise OptionError("the head cannot go: this process and the cluster depend on it", operand="node")
        return found

    def _running(self) -> Any:
        if self._cluster is None:
            raise ClosedError("this cluster is not running", phase="transport")
        return self._cluster


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _read_environment() -> None:
    """Ray reads its settings when it is imported; have it read them again."""
    refresh: Any = _raylet  # compiled, and without types
    refresh.Config.initialize("")
