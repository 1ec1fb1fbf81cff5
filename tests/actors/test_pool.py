"""Children on a real local Ray: same bits as inline, errors and deaths that reach the caller, nothing left behind."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from ray.util import placement_group_table

from actors.cluster import RayLease
from actors.pool import RayChildren, start_children
from hetero.errors import (
    ChildDiedError,
    ClosedError,
    KernelError,
    ProviderError,
    StepTimeoutError,
    TransportError,
)
from hetero.executor import HeterogeneousExecutor, plan
from hetero.options import RuntimeOptions
from hetero.providers.base import ProviderConfig
from tests.actors.conftest import STORE_BYTES

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
CHAIN = HEAD + (
    "g (float[n, 4] x, int64[k] i) => (float[n, 4] y, float[k, 4] z) {"
    " a = Exp(x) b = Softmax<axis=1>(a) c = Gather<axis=0>(b, i) d = Exp(b) y = Add(d, x) z = Neg(c) }"
)
# Counts to the trip count on cpu:0; what comes out goes through cpu:1.
COUNTER = HEAD + (
    "g (int64 trips, float[n] x) => (float[n] y) {"
    " more = Constant<value = bool {1}>()"
    " c = Loop(trips, more, x) <body = b (int64 k, bool go, float[n] s) => (bool on, float[n] t)"
    " { on = Identity(go) t = Neg(s) }>"
    " y = Exp(c) }"
)
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax", "Neg"]}), "cpu"]
TWO: list[Any] = [("cpu:0", {"except_ops": ["Exp"]}), ("cpu:1", {"ops": ["Exp"]})]
FOREVER = {"trips": np.array(10**12), "x": np.ones(3, np.float32)}
ONCE = {"trips": np.array(1), "x": np.ones(3, np.float32)}


def executor(text: str, providers: list[Any], **keywords: Any) -> HeterogeneousExecutor:
    return HeterogeneousExecutor(onnx.parser.parse_model(text), providers, **keywords)


def feeds(n: int = 3, seed: int = 0, at: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return {"x": x, "i": np.array([n - 1, at])}


def pool(ex: HeterogeneousExecutor) -> RayChildren:
    children = ex._children
    assert isinstance(children, RayChildren)
    return children


def pids(ex: HeterogeneousExecutor) -> dict[str, int]:
    return {device: stats["pid"] for device, stats in ex.stats()["children"].items()}


def until(reached: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def live_groups() -> int:
    return sum(g["state"] != "REMOVED" for g in placement_group_table().values())


@pytest.fixture(scope="module")
def chain(local_ray: RayLease) -> Iterator[HeterogeneousExecutor]:
    with executor(CHAIN, SPLIT, options=RuntimeOptions(trace=True)) as ex:
        yield ex


@pytest.fixture
def counter() -> Iterator[HeterogeneousExecutor]:
    """An executor that does not recover."""
    with executor(COUNTER, TWO, options=RuntimeOptions(recover=False)) as ex:
        yield ex


def test_actors_give_the_same_bits_as_inline_children(chain: HeterogeneousExecutor) -> None:
    assert len(chain.plan.partitions) > 2
    with executor(CHAIN, SPLIT, children="inline") as inline:
        for n in (1, 3, 70_000):  # the last one goes through the object store
            got, want = chain.run(feeds(n)), inline.run(feeds(n))
            assert list(got) == list(want)
            for name in want:
                assert got[name].dtype == want[name].dtype
                assert got[name].tobytes() == want[name].tobytes()
                assert got[name].flags.writeable


def test_sequences_strings_and_absent_values_cross_between_actors() -> None:
    text = HEAD + (
        "g (float[n] x, string[m] s) => (seq(float[n]) q, string[m] t) {"
        " a = Neg(x) q = SequenceConstruct(a, x) t = Identity(s) }"
    )
    with executor(text, [("cpu:0", {"ops": ["Neg", "Identity"]}), "cpu:1"]) as ex:
        out = ex.run({"x": np.arange(2, dtype=np.float32), "s": np.array(["a", "ü"], dtype=object)})
    assert [a.tolist() for a in out["q"]] == [[0, -1], [0, 1]]
    assert out["t"].tolist() == ["a", "ü"]


def test_steps_in_flight_come_back_in_order(chain: HeterogeneousExecutor) -> None:
    batches = [feeds(2, seed) for seed in range(12)]
    with executor(CHAIN, SPLIT, children="inline") as inline:
        for got, want in zip(chain.map(batches), map(inline.run, batches), strict=True):
            assert got["y"].tobytes() == want["y"].tobytes()


def test_an_error_of_a_child_keeps_its_class_attributes_and_traceback(chain: HeterogeneousExecutor) -> None:
    """The failing partition's output goes through another child, so the error is wrapped twice on its way."""
    with pytest.raises(KernelError) as caught:
        chain.run(feeds(3, at=9))
    error = caught.value
    assert type(error) is KernelError
    assert (error.op, error.device) == ("Gather", "sim:0")
    assert error.step is not None
    assert "Traceback" in str(error.__cause__) or "in run" in str(error.__cause__)
    chain.run(feeds(3))
    assert all(c["resident_steps"] == 0 for c in chain.stats()["children"].values())


def test_an_error_that_crosses_no_other_child_is_the_same() -> None:
    text = HEAD + "g (float[n] x, int64[k] i) => (float[k] y) { y = Gather(x, i) }"
    with executor(text, ["cpu"], transport="objects") as ex:
        with pytest.raises(KernelError) as caught:
            ex.run({"x": np.ones(1, np.float32), "i": np.array([4])})
        assert type(caught.value) is KernelError
        assert (caught.value.op, caught.value.device, caught.value.step) == ("Gather", "cpu", 1)
        assert "in run" in str(caught.value.__cause__), "the traceback over there"


def test_a_failure_that_sends_nothing_still_fails_the_step() -> None:
    """z is lost on cpu:0 before it is needed there again; the step's later partition reports the first error."""
    text = HEAD + (
        "g (float[n] x, int64[k] i) => (float[n] y) { a = Gather(x, i) b = Neg(x) c = Exp(b) y = Add(c, a) }"
    )
    with executor(text, TWO) as ex:
        assert ex.run({"x": np.ones(1, np.float32), "i": np.array([0])})["y"].shape == (1,)
        with pytest.raises(KernelError) as caught:
            ex.run({"x": np.ones(1, np.float32), "i": np.array([4])})
        assert caught.value.op == "Gather"


def test_stats_and_spans_come_from_every_actor(chain: HeterogeneousExecutor, tmp_path: Path) -> None:
    chain.run(feeds())
    stats = chain.stats()["children"]
    assert set(stats) == {"sim:0", "cpu"}
    assert len({s["pid"] for s in stats.values()} | {os.getpid()}) == 3
    for child in stats.values():
        assert child["alive"]
        assert child["calls"] > 0
        assert child["threads"] == child["library_threads"]["openblas"]
    assert {s.track for s in pool(chain).take_spans()} == {"sim:0", "cpu"}


def test_an_actor_answers_while_it_runs_and_a_deadline_ends_the_step() -> None:
    with executor(COUNTER, TWO, options=RuntimeOptions(step_timeout_s=3.0, recover=False)) as ex:
        assert ex.run(ONCE)["y"].tolist() == pytest.approx([np.exp(-1)] * 3)
        with pytest.raises(StepTimeoutError):
            ex.run(FOREVER)
        stats = ex.stats()["children"]
        assert stats["cpu:0"]["running"]["step"] == 2
        assert not stats["cpu:1"]["answered"]  # it has a call that waits for cpu:0
        assert stats["cpu:1"]["calls"] == 0  # as last known
        assert pool(ex).health.alive() == {"cpu:0": True, "cpu:1": True}
        (victim,) = [pid for device, pid in pids(ex).items() if device == "cpu:0"]
        os.kill(victim, signal.SIGKILL)  # else close would wait for it


def test_a_killed_actor_is_a_typed_error_now_downstream_and_later(counter: HeterogeneousExecutor) -> None:
    counter.run(ONCE)
    victim = pids(counter)["cpu:0"]
    future = counter.submit(FOREVER)  # its output comes from cpu:1, which waits for cpu:0
    children = pool(counter)
    until(lambda: children.stats()["cpu:0"].get("running", {}).get("step") == 2)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(ChildDiedError) as caught:
        future.result(timeout=20)
    assert time.monotonic() - killed < 5
    assert caught.value.device == "cpu:0"
    assert "cpu:0" in caught.value.message
    assert "SIGKILL" in caught.value.message
    assert children.health.alive() == {"cpu:0": False, "cpu:1": True}
    started = time.monotonic()
    with pytest.raises(ChildDiedError, match="cpu:0"):
        counter.run(ONCE)
    assert time.monotonic() - started < 5
    stats = counter.stats()["children"]
    assert not stats["cpu:0"]["alive"]
    assert "SIGKILL" in stats["cpu:0"]["error"]
    assert stats["cpu:1"]["alive"]


def test_the_death_of_an_idle_actor_is_noticed_without_a_call(counter: HeterogeneousExecutor) -> None:
    children = pool(counter)
    assert children.health.alive() == {"cpu:0": True, "cpu:1": True}
    os.kill(pids(counter)["cpu:1"], signal.SIGKILL)
    until(lambda: not children.health.alive()["cpu:1"])
    with pytest.raises(ChildDiedError) as caught:
        counter.run(ONCE)
    assert caught.value.device == "cpu:1"


def test_closing_leaves_no_actor_and_no_placement_group() -> None:
    before = live_groups()
    ex = executor(COUNTER, TWO)
    assert live_groups() == before + 1
    processes = list(pids(ex).values())
    ex.close()
    ex.close()
    until(lambda: all(map(gone, processes)), limit_s=5)
    assert live_groups() == before
    with pytest.raises(ClosedError):
        ex.run(ONCE)


def test_closing_is_quick_when_the_actors_are_dead_already() -> None:
    ex = executor(COUNTER, TWO)
    for pid in pids(ex).values():
        os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    ex.close()
    assert time.monotonic() - started < 5


def test_an_executor_that_is_never_closed_is_cleaned_up_when_it_is_collected() -> None:
    before = live_groups()
    ex = executor(COUNTER, TWO)
    processes = list(pids(ex).values())
    del ex
    gc.collect()
    until(lambda: all(map(gone, processes)) and live_groups() == before, limit_s=10)


def test_a_child_that_cannot_be_prepared_stops_those_that_were() -> None:
    the_plan = plan(onnx.parser.parse_model(COUNTER), TWO)
    broken = replace(the_plan, providers=(the_plan.providers[0], ProviderConfig("cpu:1", (("threads", -3),))))
    before = live_groups()
    children = start_children(the_plan.providers, RuntimeOptions())
    with pytest.raises(ProviderError, match="threads") as caught:
        children.start(broken, {"more": np.array(True)})
    assert "create" in str(caught.value.__cause__)
    assert live_groups() == before
    with pytest.raises(ClosedError):
        children.call(0, 0, 1, [], 0, "primary")


def test_children_that_take_too_long_to_start_are_named() -> None:
    before = live_groups()
    with pytest.raises(TransportError, match=r"within 0\.[34]\S* s") as caught:
        executor(COUNTER, TWO, options=RuntimeOptions(start_timeout_s=0.4))
    assert "cpu:0" in caught.value.message
    assert live_groups() == before


def test_holding_the_outputs_of_100_runs_neither_blocks_nor_changes_them(
    chain: HeterogeneousExecutor,
) -> None:
    """384 MB of outputs, three times what the store holds."""
    held = [chain.run(feeds(60_000 * 4, seed % 3))["y"] for seed in range(100)]
    want = [chain.run(feeds(60_000 * 4, seed))["y"].tobytes() for seed in range(3)]
    assert all(y.tobytes() == want[seed % 3] for seed, y in enumerate(held))


def test_outputs_of_twice_the_store_complete() -> None:
    count, nbytes = 2 * STORE_BYTES // (8 << 20), 8 << 20
    names = [f"y{k}" for k in range(count)]
    nodes = "".join(f" {name} = {'Exp' if k % 2 else 'Neg'}(a)" for k, name in enumerate(names))
    outputs = ", ".join(f"float[n] {name}" for name in names)
    with executor(HEAD + f"g (float[n] x) => ({outputs}) {{ a = Neg(x){nodes} }}", TWO) as ex:
        out = ex.run({"x": np.zeros(nbytes // 4, np.float32)})
    assert sum(y.nbytes for y in out.values()) == 2 * STORE_BYTES
    assert all((out[name] == k % 2).all() for k, name in enumerate(names))


@pytest.mark.parametrize("map_weights", [True, False], ids=["a file", "the store"])
def test_weights_lie_in_one_place_and_are_mapped_by_every_child(map_weights: bool) -> None:
    rng = np.random.default_rng(0)
    big = rng.standard_normal((1 << 20, 8)).astype(np.float32)  # 32 MiB
    small = np.ones(8, np.float32)
    text = HEAD + (
        "g (int64[k] i) => (float[k, 8] y, float[k, 8] z) {"
        " a = Gather<axis=0>(w, i) y = Add(a, s)"
        " u = Unsqueeze(i, one) j = Expand(u, wide) c = GatherElements<axis=0>(w, j) z = Mul(c, s) }"
    )
    model = onnx.parser.parse_model(text)
    for name, value in (("w", big), ("s", small), ("one", np.array([1])), ("wide", np.array([1, 8]))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    providers: list[Any] = [("cpu:0", {"ops": ["Gather"]}), ("cpu:1", {"ops": ["GatherElements"]}), "cpu:2"]
    with HeterogeneousExecutor(model, providers, options=RuntimeOptions(map_weights=map_weights)) as ex:
        held = pool(ex)._held.weights
        assert held is not None
        ((names, users),) = [(n, who) for n, who in (*held.stored, *held.mapped) if "w" in n]
        assert len(users) == 2
        assert (names in held.refs) is not map_weights
        i = np.arange(0, 1 << 20, 997)
        out = ex.run({"i": i})
        assert out["z"].tobytes() == (big[i] * small).tobytes()
        # cpu:2 has no use for w. Had another a copy of its own, it would have 32 MiB more that nobody shares.
        own = {device: private_bytes(pid) for device, pid in pids(ex).items()}
        assert max(own["cpu:0"], own["cpu:1"]) - own["cpu:2"] < 24 << 20


def private_bytes(pid: int) -> int:
    """Memory that the process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private"))


def test_the_caller_may_change_its_feeds_as_soon_as_the_run_is_over(chain: HeterogeneousExecutor) -> None:
    x = feeds(70_000)
    want = {name: value.copy() for name, value in x.items()}
    first = chain.run(x)["y"].copy()
    x["x"][:] = 0
    assert chain.run(want)["y"].tobytes() == first.tobytes()


def test_threads_may_share_an_executor(chain: HeterogeneousExecutor) -> None:
    got: dict[int, bytes] = {}

    def work(seed: int) -> None:
        got[seed] = chain.run(feeds(5, seed))["y"].tobytes()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {seed: chain.run(feeds(5, seed))["y"].tobytes() for seed in range(6)}


def test_the_log_is_spared_errors_that_reach_the_caller_but_no_others() -> None:
    logger = logging.getLogger("ray._private.worker")

    def shown(message: str) -> bool:
        return bool(logger.filter(logger.makeRecord(logger.name, logging.ERROR, "", 0, message, (), None)))

    assert not shown("Unhandled error (suppress with …): ray::ChildActor.run() (pid=1)")
    assert shown("Unhandled error (suppress with …): ray::theirs() (pid=1)")
    assert shown("ray::ChildActor.run() is slow")
