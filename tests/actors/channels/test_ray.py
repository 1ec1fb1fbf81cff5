"""Channels between real actors: the same bits as objects, errors whole, deaths named, nothing left behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

from actors import roads as roads_module
from actors.roads import STEADY_STEPS, Roads
from hetero.errors import ChildDiedError, KernelError, OptionError, StepTimeoutError, TransportError
from hetero.executor import HeterogeneousExecutor
from hetero.options import RuntimeOptions
from tests.actors.test_pool import CHAIN, COUNTER, FOREVER, HEAD, ONCE, SPLIT, TWO, gone, pids, pool, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

THREE: list[Any] = [
    ("sim:0", {"except_ops": ["Softmax", "Neg", "Add"]}),
    ("cpu:0", {"except_ops": ["Neg"]}),
    "cpu:1",
]


def executor(text: str, providers: list[Any], **keywords: Any) -> HeterogeneousExecutor:
    return HeterogeneousExecutor(onnx.parser.parse_model(text), providers, **keywords)


def feeds(n: int = 3, seed: int = 0, at: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return {"x": x, "i": np.array([n - 1, at])}


def bits(outputs: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def road(ex: HeterogeneousExecutor) -> str:
    name: str = ex.stats()["transport"]["road"]
    return name


@pytest.fixture(scope="module")
def chain(local_ray: Any) -> Iterator[HeterogeneousExecutor]:
    with executor(CHAIN, THREE, transport="channels", options=RuntimeOptions(trace=True)) as ex:
        yield ex


@pytest.fixture(scope="module")
def inline() -> Iterator[HeterogeneousExecutor]:
    with executor(CHAIN, THREE, children="inline") as ex:
        yield ex


def test_three_actors_over_channels_give_the_same_bits_as_inline_children(
    chain: HeterogeneousExecutor, inline: HeterogeneousExecutor
) -> None:
    assert len({p.child for p in chain.plan.partitions}) == 3
    for n in (1, 3, 70_000):  # the last one goes through shared memory
        got, want = chain.run(feeds(n)), inline.run(feeds(n))
        assert bits(got) == bits(want)
        assert all(value.flags.writeable for value in got.values())
    stats = chain.stats()
    assert stats["transport"]["road"] == "channels"
    assert sum(c["channels"]["blocks_made"] for c in stats["children"].values()) > 0
    assert all(c["channels"]["refused"] == 0 for c in stats["children"].values())


def test_steps_in_flight_come_back_in_order_over_channels(
    chain: HeterogeneousExecutor, inline: HeterogeneousExecutor
) -> None:
    batches = [feeds(2 + 5_000 * (seed % 2), seed) for seed in range(24)]
    for got, want in zip(chain.map(batches, max_in_flight=8), map(inline.run, batches), strict=True):
        assert bits(got) == bits(want)


def test_an_error_keeps_its_class_node_and_traceback_over_channels(chain: HeterogeneousExecutor) -> None:
    with pytest.raises(KernelError) as caught:
        chain.run(feeds(3, at=9))
    error = caught.value
    assert type(error) is KernelError
    assert (error.op, error.device) == ("Gather", "sim:0")
    assert error.node is not None
    assert error.step is not None
    assert "in run" in str(error.__cause__)
    chain.run(feeds(3))
    assert all(c["resident_steps"] == 0 for c in chain.stats()["children"].values())


def test_sequences_strings_and_partitions_that_send_nothing_go_over_channels() -> None:
    text = HEAD + (
        "g (float[n] x, string[m] s) => (seq(float[n]) q, string[m] t) {"
        " a = Neg(x) q = SequenceConstruct(a, x) t = Identity(s) }"
    )
    with executor(text, [("cpu:0", {"ops": ["Neg", "Identity"]}), "cpu:1"], transport="channels") as ex:
        out = ex.run({"x": np.arange(2, dtype=np.float32), "s": np.array(["a", "ü"], dtype=object)})
    assert [a.tolist() for a in out["q"]] == [[0, -1], [0, 1]]
    assert out["t"].tolist() == ["a", "ü"]
    text = HEAD + (
        "g (float[n] x, int64[k] i) => (float[n] y) { a = Gather(x, i) b = Neg(x) c = Exp(b) y = Add(c, a) }"
    )
    with executor(text, TWO, transport="channels") as ex:
        assert ex.run({"x": np.ones(1, np.float32), "i": np.array([0])})["y"].shape == (1,)
        with pytest.raises(KernelError) as caught:
            ex.run({"x": np.ones(1, np.float32), "i": np.array([4])})
        assert caught.value.op == "Gather"


def test_state_stays_on_its_child_over_channels() -> None:
    text = HEAD + (
        "g (float[past, 2] p, float[1, 2] x) => (float[all, 2] q, float[1, 2] y) {"
        " q = Concat<axis=0>(p, x) s = ReduceSum<keepdims=1>(q, a) y = Exp(s) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "a"))
    got = []
    for where in ({"children": "inline"}, {"transport": "channels"}):
        with HeterogeneousExecutor(model, TWO, **where) as ex:  # type: ignore[arg-type]
            ex.bind_state({"p": "q"})
            got.append([ex.run({"x": np.full((1, 2), k, np.float32)})["y"].tobytes() for k in range(4)])
            got[-1].append(ex.read_state()["p"].tobytes())
            assert ex.state_length() == 4
    assert got[0] == got[1]


def test_auto_goes_from_objects_to_channels_and_back_where_they_break_with_the_same_bits() -> None:
    with executor(CHAIN, SPLIT) as ex, executor(CHAIN, SPLIT, children="inline") as inline:
        seen = []
        for k in range(STEADY_STEPS + 4):
            seen.append(road(ex))
            if k == STEADY_STEPS + 2:
                channel = pool(ex)._held.roads.channel
                assert channel is not None
                channel._end(TransportError("the channel between a and b broke"))
            for n in (3, 20_000):
                assert bits(ex.run(feeds(n, k))) == bits(inline.run(feeds(n, k)))
        assert [name for name, _ in itertools.groupby(seen)] == ["objects", "channels", "objects"]
        stats = ex.stats()
        assert "broke" in stats["transport"]["reason"]
        assert not any("channels" in child for child in stats["children"].values())  # closed there too
        pool(ex)._held.roads.open()
        assert bits(ex.run(feeds())) == bits(inline.run(feeds()))
        assert road(ex) == "channels"


def test_channels_that_were_asked_for_and_broke_between_steps_are_opened_again() -> None:
    with executor(CHAIN, SPLIT, transport="channels") as ex:
        want = bits(ex.run(feeds(20_000)))
        channel = pool(ex)._held.roads.channel
        assert channel is not None
        channel._end(TransportError("the channel between a and b broke"))
        seen = []
        for _ in range(STEADY_STEPS + 2):
            assert bits(ex.run(feeds(20_000))) == want
            seen.append(road(ex))
        assert [name for name, _ in itertools.groupby(seen)] == ["objects", "channels"]
        assert ex.stats()["transport"]["generation"] == 2
        assert ex.stats()["failed_steps"] == 0


def test_auto_stays_with_objects_where_channels_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roads_module, "node_address", lambda: "203.0.113.7")  # nobody's here
    with executor(CHAIN, SPLIT) as ex:
        for k in range(STEADY_STEPS + 2):
            ex.run(feeds(3, k))
        transport = ex.stats()["transport"]
        assert transport["road"] == "objects"
        assert "203.0.113.7" in transport["reason"]
        with pytest.raises(TransportError, match=r"203\.0\.113\.7"):
            pool(ex)._held.roads.open()


def test_channels_that_one_child_does_not_reach_are_closed_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with executor(CHAIN, SPLIT, transport="objects") as ex:
        roads = pool(ex)._held.roads
        answers = roads_module._answers

        def unreachable(calls: Any, deadline: float) -> list[Any]:
            found = answers(calls, deadline)
            if not isinstance(found[0], roads_module.Card):
                raise TransportError("no channel to cpu: it refused the connection")
            return found

        monkeypatch.setattr(roads_module, "_answers", unreachable)
        with pytest.raises(TransportError, match="refused"):
            roads.open()
        assert ex.run(feeds())["y"].shape == (3, 4)
        assert road(ex) == "objects"
        assert not any("channels" in child for child in ex.stats()["children"].values())


def test_channels_can_be_opened_again_with_a_new_generation(chain: HeterogeneousExecutor) -> None:
    want = bits(chain.run(feeds(30_000)))
    roads: Roads = pool(chain)._held.roads
    before = roads.generation
    roads.open()
    assert bits(chain.run(feeds(30_000))) == want
    assert chain.stats()["transport"]["generation"] == before + 1


def test_a_killed_actor_fails_the_step_in_flight_at_once_and_is_named() -> None:
    with executor(COUNTER, TWO, transport="channels", options=RuntimeOptions(recover=False)) as ex:
        ex.run(ONCE)
        future = ex.submit(FOREVER)
        until(lambda: pool(ex).stats()["cpu:0"].get("running", {}).get("step") == 2)
        killed = time.monotonic()
        os.kill(pids(ex)["cpu:0"], signal.SIGKILL)
        with pytest.raises(ChildDiedError) as caught:
            future.result(timeout=20)
        assert time.monotonic() - killed < 5
        assert caught.value.device == "cpu:0"
        assert caught.value.step == 2
        assert "SIGKILL" in caught.value.message
        with pytest.raises(ChildDiedError, match="cpu:0"):
            ex.run(ONCE)
        assert pool(ex).health.alive() == {"cpu:0": False, "cpu:1": True}


def test_a_deadline_ends_a_step_over_channels() -> None:
    with executor(
        COUNTER, TWO, transport="channels", options=RuntimeOptions(step_timeout_s=2.0, recover=False)
    ) as ex:
        ex.run(ONCE)
        with pytest.raises(StepTimeoutError):
            ex.run(FOREVER)
        os.kill(pids(ex)["cpu:0"], signal.SIGKILL)  # else close would wait for it


def test_closing_leaves_no_process_no_thread_and_no_shared_memory() -> None:
    def channel_threads() -> int:
        return sum(t.name == "hetero-channels" for t in threading.enumerate())

    def memory() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "hetero" in name}

    before = channel_threads()
    ex = executor(CHAIN, SPLIT, transport="channels")
    ex.run(feeds(70_000))
    assert channel_threads() == before + 1
    processes = list(pids(ex).values())
    ex.close()
    until(lambda: all(map(gone, processes)), limit_s=5)
    assert channel_threads() == before
    assert memory() == set()


def test_channels_go_with_actors_only() -> None:
    with pytest.raises(OptionError, match="channels"):
        executor(CHAIN, SPLIT, children="inline", transport="channels")
    with pytest.raises(OptionError, match="transport"):
        executor(CHAIN, SPLIT, transport="pigeons")
