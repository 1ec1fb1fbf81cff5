"""The way to an executor from a process that only has a Ray Client connection: the executor lives in an actor on the
cluster, which ends when its client does.

Ray Client has neither streaming calls nor a store that it shares with its process, so children cannot be driven through
it; plain calls of one actor can.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ray
import ray.exceptions as rex
from ray.util import client

from actors.child import node_id
from actors.elements import value_brought
from actors.failures import how_it_went, root_cause, translated
from actors.parcels import INLINE_BYTES
from hetero.errors import ClosedError, TransportError
from hetero.model.shipping import unpacked
from hetero.types import HostArray

BEAT_S = 1.5
"""Between two signs of life of the client."""
SILENCE_S = 7.0
"""After so long without any it is taken for dead."""
ABANDON_S = 2.0
"""How long letting go of the cluster may take then."""
_NO_GRPC = 'Ray Client needs gRPC on this side: pip install "ray[client]"'
_remote: Any = ray.remote
_client: Any = client.ray
_lock = threading.Lock()
_connected: dict[str, int] = {}
"""How many executors use the connection that was made here, by its address."""

log = logging.getLogger("hetero.ray")


class GatewayActor:
    """One executor. Steps that are submitted, and what happens to the state, come in the order of the calls."""

    def __init__(self, silence_s: float) -> None:
        self._executor: Any = None
        self._steps: dict[int, Future[dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._heard = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(silence_s,), name="hetero-client", daemon=True).start()

    def _watch(self, silence_s: float) -> None:
        """End this process, and with it all that it owns, when the client is gone. A placement group would stay for as
        long as what Ray Client keeps for one that might come back."""
        while not self._over.wait(silence_s / 8):
            if time.monotonic() - self._heard > silence_s:
                threading.Timer(ABANDON_S, os._exit, (0,)).start()
                if self._executor is not None:
                    self._executor._children.abandon()
                os._exit(0)

    @ray.method(concurrency_group="watch")
    def beat(self) -> None:
        """The client lives."""
        self._heard = time.monotonic()

    @ray.method(concurrency_group="steps")
    def start(self, make: Callable[..., Any], files: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Make the executor: of a model of these files, which lie in the store. Raises: what it raises."""
        content: dict[str, HostArray] = dict(zip(files, ray.get(list(files.values())), strict=True))
        with tempfile.TemporaryDirectory(prefix="hgate-") as directory:
            # Weights stay mapped when the names are gone, which nobody could remove after a kill; a child that comes
            # later gets them from the store.
            self._executor = make(unpacked(content, Path(directory)), **options)

    @ray.method(concurrency_group="steps")
    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call the executor in turn."""
        return getattr(self._ready(), method)(*arguments, **named)

    @ray.method(concurrency_group="control")
    def look(self, what: str) -> Any:
        """How the executor is: "stats", "spans", or the bytes of its "plan"."""
        found = getattr(self._ready(), what)
        if what == "plan":
            return found.to_bytes()
        return (
            {**found(), "gateway": {"pid": os.getpid(), "node_id": node_id()}} if what == "stats" else found()
        )

    @ray.method(concurrency_group="results")
    def run(self, feeds: Mapping[str, Any], names: Sequence[str] | None, slot: str) -> dict[str, Any]:
        """A step at once."""
        return _sent(self._ready().run(feeds, names, slot))

    @ray.method(concurrency_group="steps")
    def begin(self, number: int, feeds: Mapping[str, Any], names: Sequence[str] | None, slot: str) -> None:
        """A step in turn; `result` has what comes of it, errors of this call too."""
        step: Future[dict[str, Any]]
        try:
            step = self._ready().submit(feeds, names, slot)
        except Exception as error:
            step = Future()
            step.set_exception(error)
        with self._changed:
            self._steps[number] = step
            self._changed.notify_all()

    @ray.method(concurrency_group="results")
    def result(self, number: int) -> dict[str, Any]:
        """The outputs of a step that was begun, or is about to be. Once."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._steps)
            step = self._steps.pop(number)
        return _sent(step.result())

    @ray.method(concurrency_group="steps")
    def forget(self, number: int) -> None:
        """Nobody will ask for this step's outputs."""
        step = self._steps.pop(number, None)
        if step is not None:
            step.cancel()

    @ray.method(concurrency_group="steps")
    def close(self) -> None:
        """Close the executor. A second call does nothing."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()
        self._over.set()

    def _ready(self) -> Any:
        if self._executor is None:
            raise ClosedError("this executor is closed")
        return self._executor


def _sent(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_brought(value) for name, value in outputs.items()}


class Gateway:
    """The client's end. Thread-safe. Errors are those that the executor raised; TransportError where it, or the way to
    it, is gone."""

    def __init__(
        self,
        make: Callable[..., Any],
        files: Mapping[str, HostArray],
        options: Mapping[str, Any],
        max_in_flight: int,
        address: str | None,
    ) -> None:
        """`make(path, **options)` makes the executor on the cluster. `address`: "ray://…", to which to connect if this
        process is connected to nothing."""
        self._address = _connect(address)
        self._numbers = itertools.count()
        self._closed = False
        groups = {"steps": 1, "results": 2 * max_in_flight, "control": 1, "watch": 1}
        actor = _remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=groups)
        try:
            self._actor = actor(GatewayActor).remote(SILENCE_S)
            threading.Thread(
                target=_beat, args=(weakref.ref(self),), name="hetero-client", daemon=True
            ).start()
            refs = {name: ray.put(content) for name, content in files.items()}
            self._get(lambda: self._actor.start.remote(make, refs, options))
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of the executor returns, in its turn."""
        return self._get(lambda: self._actor.ask.remote(method, *arguments, **named))

    def look(self, what: str) -> Any:
        """As GatewayActor.look."""
        return self._get(lambda: self._actor.look.remote(what))

    def run(self, feeds: Mapping[str, Any], names: Sequence[str] | None, slot: str) -> dict[str, Any]:
        """A step."""
        found: dict[str, Any] = self._get(lambda: self._actor.run.remote(_given(feeds), names, slot))
        return found

    def begin(
        self, feeds: Mapping[str, Any], names: Sequence[str] | None, slot: str
    ) -> tuple[Callable[[], dict[str, Any]], Callable[[], None]]:
        """Have a step begin in its turn; returns what waits for its outputs, and what gives them up."""
        number = next(self._numbers)
        self._checked(lambda: self._actor.begin.remote(number, _given(feeds), names, slot))

        def forget() -> None:
            self._checked(lambda: self._actor.forget.remote(number))

        return lambda: self._get(lambda: self._actor.result.remote(number)), forget

    def close(self) -> None:
        """Close the executor and end its actor. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if hasattr(self, "_actor") and _client.is_connected():
                try:
                    ray.get(self._actor.close.remote())
                except (rex.RayError, ConnectionError) as error:
                    log.info("the executor is gone already: %s", error)
                ray.kill(self._actor)
        finally:
            _disconnect(self._address)

    def _get(self, call: Callable[[], Any]) -> Any:
        return self._checked(lambda: ray.get(call()))

    def _checked(self, act: Callable[[], Any]) -> Any:
        if self._closed:
            raise ClosedError("this executor is closed")
        try:
            return act()
        except rex.RayError as error:
            root = root_cause(error)
            if isinstance(root, rex.RayActorError):
                raise TransportError(
                    f"the executor's actor on the cluster is gone: {how_it_went(root)}"
                ) from error
            raise translated(error, {})  # noqa: B904 - `translated` has set the cause
        except ConnectionError as error:
            raise TransportError(f"the connection through Ray Client is lost: {error}") from error


def _given(feeds: Mapping[str, Any]) -> Any:
    """What is small travels in the call, which Ray Client wants below some MB; the rest lies in the store before."""
    small = sum(getattr(value, "nbytes", 0) for value in feeds.values()) <= INLINE_BYTES
    return dict(feeds) if small else ray.put(dict(feeds))


def _beat(known: weakref.ref[Gateway]) -> None:
    pause = threading.Event()
    while True:
        gateway = known()
        if gateway is None or gateway._closed:
            return
        try:
            gateway._actor.beat.remote()
        except Exception as error:  # whoever uses it is told
            log.info("the executor cannot be reached: %s", error)
            return
        del gateway
        pause.wait(BEAT_S)


def _connect(address: str | None) -> str | None:
    """Use the connection that there is, or make one. Raises: TransportError where there is none to be had."""
    with _lock:
        if _client.is_connected():
            known = next(iter(_connected), None)
        else:
            if find_spec("grpc") is None:
                raise TransportError(f"{address}: {_NO_GRPC}")
            try:
                ray.init(address)
            except Exception as cause:
                mode = os.environ.get("RAY_AUTH_MODE", "not set")
                raise TransportError(
                    f"cannot connect to Ray at {address}: {cause}. Where the cluster asks for a token,"
                    f" RAY_AUTH_MODE has to be token (it is {mode}), and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH what"
                    " the cluster has, before the program starts"
                ) from cause
            known = address
            _connected.clear()
        if known is not None:
            _connected[known] = _connected.get(known, 0) + 1
        return known


def _disconnect(address: str | None) -> None:
    """Leave the connection that was made here, when nobody uses it any more."""
    with _lock:
        if address in _connected:
            _connected[address] -= 1
            if not _connected[address]:
                del _connected[address]
                if _client.is_connected():
                    ray.shutdown()
