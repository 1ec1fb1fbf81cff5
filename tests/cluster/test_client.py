"""Executors of callers that only have a Ray Client connection: they live on the cluster, and go with their caller."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
import ray
from ray.util import placement_group_table

from cluster import LocalCluster
from hetero import HeterogeneousExecutor
from hetero.errors import ClosedError, InputError, ModelError, ProviderError, StateError, TransportError
from hetero.providers.registry import resolve
from tests.actors.test_pool import gone
from tests.faults.harness import CHAIN, DECODER, Beside, bits, until

with_client = pytest.mark.skipif(find_spec("grpc") is None, reason="Ray Client needs ray[client]")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray leaves the logs of its client server to the garbage collector, and gRPC its sockets.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
NO_CPU: dict[str, Any] = {"cpus_per_child": 0}
NEG = '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        # Unlike a driver's, a client's search path is not its actors': they import the tests' operators by this one.
        known = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", str(ROOT) if known is None else f"{ROOT}{os.pathsep}{known}")
        with LocalCluster(1, connect=False, client=True) as made:
            yield made


@pytest.fixture
def connected(cluster: LocalCluster) -> Iterator[None]:
    for attempt in range(3):
        try:
            ray.init(cluster.client_address, log_to_driver=False)
            break
        except ConnectionError:  # a new cluster's agents may take longer than Ray waits for them
            if attempt == 2:
                raise
    yield
    ray.shutdown()


def caller(address: str, **environment: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A caller of its own, and what it says."""
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.client", address],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    line = next(line for line in started.stdout if line.startswith("{"))
    return started, json.loads(line)


@with_client
@pytest.mark.usefixtures("connected")
def test_steps_errors_and_what_an_executor_tells_come_through() -> None:
    with Beside(CHAIN, ray_options=NO_CPU) as both:
        both.steps(3)
        large = {"x": np.ones((100_000, 4), np.float32)}
        assert bits(both.ex.run(large)) == bits(both.calm.run(large))
        batches = [both.feeds(n) for n in (3, 1, 3, 2, 3, 1)]
        got = list(both.ex.map(batches, max_in_flight=3))
        assert [bits(g) for g in got] == [bits(both.calm.run(b)) for b in batches]
        assert bits(both.ex.run(batches[0], ["y"])) == bits(both.calm.run(batches[0], ["y"]))
        assert both.ex.plan == both.calm.plan
        binding, y = both.ex.io_binding(), np.empty((3, 4), np.float32)
        binding.bind_input("x", batches[0]["x"])
        binding.bind_output("y", y)
        both.ex.run_with_binding(binding)
        assert y.tobytes() == both.calm.run(batches[0])["y"].tobytes()
        stats = both.ex.stats()
        assert stats["steps"] == 12
        assert stats["children"].keys() == {"sim:0", "cpu"}
        for run in (both.ex.run, lambda feeds: both.ex.submit(feeds).result(timeout=60)):
            with pytest.raises(InputError, match="missing 'x'"):
                run({"y": y})
        with pytest.raises(InputError, match="unknown outputs"):
            both.ex.run(batches[0], ["q"])
        with pytest.raises(InputError, match="device buffers cannot be reached"):
            both.ex.device_buffer("cpu", (2, 2))
        both.step()
    with pytest.raises(ClosedError):
        both.ex.run(batches[0])
    with pytest.raises(ClosedError):
        both.ex.stats()


@with_client
@pytest.mark.usefixtures("connected")
def test_state_is_bound_changed_and_made_again_when_an_actor_is_killed() -> None:
    with Beside(DECODER, ray_options=NO_CPU, checkpoint_every=2) as both:
        with pytest.raises(StateError, match="no state is bound"):
            both.ex.reset_state()
        both.bind(capacity=64)
        pairs = [both.submit(n) for n in (3, 1, 2, 1)]  # in turn, each on what the one before has left
        assert [bits(future.result(timeout=60)) for future, _ in pairs] == [want for _, want in pairs]
        assert both.ex.state_length() == both.calm.state_length()
        for ex in (both.ex, both.calm):
            ex.rewind_state(2)
        both.steps(2)
        pid = both.ex.stats()["children"]["sim:0"]["pid"]
        os.kill(pid, signal.SIGKILL)
        both.steps(2)
        assert both.ex.stats()["recovery"]["losses"] == 1
        state = both.ex.read_state()
        assert bits(state) == bits(both.calm.read_state())
        for ex in (both.ex, both.calm):
            ex.write_state(state)
        both.steps(1)
        for ex in (both.ex, both.calm):
            ex.reset_state()
        both.steps(1)


@with_client
@pytest.mark.usefixtures("connected")
def test_a_model_is_sent_with_the_files_that_its_weights_lie_in(tmp_path: Path) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 17]> g (float[n, 64] x) => (float[n, 64] y) { y = MatMul(x, w) }'
    )
    proto = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = tmp_path / "m.onnx"
    onnx.save_model(
        onnx.ModelProto.FromString(proto.SerializeToString()),
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    x = {"x": np.ones((2, 64), np.float32)}
    want = bits(HeterogeneousExecutor(path, ["cpu"], children="inline").run(x))
    for model in (path, str(path), proto, proto.SerializeToString()):
        with HeterogeneousExecutor(model, ["cpu"], ray_options=NO_CPU) as ex:
            assert bits(ex.run(x)) == want
    with pytest.raises(ModelError, match=r"nothing\.onnx"):
        HeterogeneousExecutor(tmp_path / "nothing.onnx", ["cpu"])
    with pytest.raises(ProviderError, match="providers are named"):
        HeterogeneousExecutor(path, resolve(["cpu"]))
    with pytest.raises(ProviderError, match="unknown"):
        HeterogeneousExecutor(path, ["nowhere:0"])


@with_client
@pytest.mark.usefixtures("connected")
def test_where_the_executor_itself_is_killed_its_caller_is_told() -> None:
    with HeterogeneousExecutor(onnx.parser.parse_model(NEG), ["cpu"], ray_options=NO_CPU) as ex:
        stats = ex.stats()
        os.kill(stats["gateway"]["pid"], signal.SIGKILL)
        with pytest.raises(TransportError, match="the executor's actor on the cluster is gone"):
            ex.run({"x": np.ones(3, np.float32)})
        child = stats["children"]["cpu"]["pid"]
        until(lambda: gone(child), LIMIT_S)


@with_client
def test_a_caller_that_is_killed_leaves_nothing(cluster: LocalCluster) -> None:
    started, told = caller(cluster.client_address)
    with started:
        assert not any(map(gone, told["pids"]))
        os.kill(started.pid, signal.SIGSTOP)  # it has no chance to clean up
        started.kill()
    killed = time.monotonic()
    until(lambda: all(map(gone, told["pids"])), LIMIT_S)
    assert time.monotonic() - killed < LIMIT_S
    with_driver = {"address": cluster.address, "configure_logging": False, "log_to_driver": False}
    ray.init(**with_driver)
    try:
        until(lambda: {g["state"] for g in placement_group_table().values()} <= {"REMOVED"}, LIMIT_S)
    finally:
        ray.shutdown()


@with_client
def test_a_wrong_token_is_refused(cluster: LocalCluster) -> None:
    started, told = caller(cluster.client_address, RAY_AUTH_TOKEN=secrets.token_hex(32))
    with started:
        started.kill()
    assert told["error"] == "TransportError"
    assert "RAY_AUTH_MODE has to be token (it is token), and RAY_AUTH_TOKEN" in told["message"]


@pytest.mark.skipif(find_spec("grpc") is not None, reason="there is gRPC")
def test_without_grpc_the_error_says_what_to_install() -> None:
    options: dict[str, Any] = {"address": "ray://127.0.0.1:10001"}
    with pytest.raises(TransportError, match=r'pip install "ray\[client\]"'):
        HeterogeneousExecutor(onnx.parser.parse_model(NEG), ["cpu"], ray_options=options)
