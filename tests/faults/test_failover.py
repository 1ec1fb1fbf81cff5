"""A provider that cannot come back: its nodes go to the others, and the caller only reads of it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx.parser
import pytest

from actors import chaos
from benchmarks.models import encoder
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import ChildDiedError, TransportError, UnsupportedNodeError
from tests.faults.harness import ALL, CHAIN, DECODER, HEAD, TEXT_IDS, TEXTS, Beside, bits

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]
THREE: list[Any] = [
    ("sim:0", {"except_ops": ["Softmax", "Max"]}),
    ("sim:1", {"except_ops": ["Softmax", "Max", "Exit", "Add"]}),
    "cpu",
]
"""What sim:0 has goes to sim:1 and to the CPU."""
SENT_BACK = HEAD + (
    "g (float[n, 4] x, float[n, 4] w) => (float[n, 4] y, float[n, 4] z) {"
    " y = Exp(x) a = Softmax<axis=1>(y) z = Mul(a, w) }"
)


def lose(both: Beside, point: str = "partition 2, before run", n: int = 2) -> None:
    """Lose sim:0 for good in the middle of a step, which must give what it gives without."""
    with chaos.broken("prepare sim:0", "no such device"), both.stopped(point, n):
        chaos.kill("sim:0", both.ex)


@pytest.mark.parametrize("transport", ["objects", "channels"] if ALL else ["auto"])
@pytest.mark.parametrize("text", TEXTS, ids=TEXT_IDS)
def test_what_a_lost_provider_had_goes_to_several_others(
    text: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Beside(text, THREE, max_restarts=1, checkpoint_every=3, transport=transport) as both:
        if text == DECODER:
            both.bind(capacity=64)
        both.steps(7, n=2)
        assert both.ex.stats()["degraded"] == {}
        assert both.ex.stats()["children"].keys() == {"sim:0", "cpu"}
        pid = both.ex.stats()["children"]["cpu"]["pid"]
        with caplog.at_level(logging.WARNING):
            lose(both)
        both.steps(3, n=1)
        stats = both.ex.stats()
        assert stats["degraded"] == {"sim:0": ["sim:1", "cpu"]}
        assert stats["children"].keys() == {"sim:1", "cpu"}
        assert stats["children"]["cpu"]["pid"] == pid, "who lives goes on in its process"
        assert stats["recovery"]["lost"] == {}
        assert "provider sim:0 is lost" in caplog.text
        assert "its nodes go to sim:1, cpu" in caplog.text
        assert "no such device" in caplog.text
        assert "lost while the model ran" in both.ex.plan.explain(nodes=True)
        both.ready()
        for device in ("sim:1", "cpu"):  # where it all is now, everyone comes back as ever
            chaos.kill(device, both.ex)
            both.steps(2, n=1)
        assert both.ex.stats()["degraded"] == {"sim:0": ["sim:1", "cpu"]}


@pytest.mark.parametrize("steps", [1, 5], ids=["recording", "replaying"])
def test_it_is_lost_in_a_kernel_while_graphs_are_recorded_or_replayed(steps: int) -> None:
    with Beside(DECODER, THREE, max_restarts=1, checkpoint_every=2) as both:
        both.bind()
        both.steps(steps, n=1)
        lose(both, "in Stop", n=1)
        both.steps(4, n=1)


def test_without_checkpoints_state_is_made_from_its_beginning_rewinding_and_writing_included() -> None:
    with Beside(DECODER, THREE, max_restarts=1, checkpoint_every=0) as both:
        both.bind(capacity=64)
        both.steps(3)
        for ex in (both.ex, both.calm):
            ex.rewind_state(4)
        both.steps(2, n=2)
        lose(both)
        both.steps(2)
        read, want = both.ex.read_state(), both.calm.read_state()
        assert bits(read) == bits(want)
        for ex in (both.ex, both.calm):
            ex.write_state(want)
            ex.rewind_state(2)
        both.steps(2)
        for ex in (both.ex, both.calm):
            ex.reset_state()
        both.steps(2)


def test_what_happens_to_the_state_first_notices_the_loss() -> None:
    with Beside(DECODER, THREE, max_restarts=1) as both:
        both.bind(capacity=64)
        both.steps(3)
        with chaos.broken("prepare sim:0", "no such device"):
            chaos.kill("sim:0", both.ex)
            for ex in (both.ex, both.calm):
                ex.rewind_state(5)
        assert both.ex.stats()["degraded"] == {"sim:0": ["sim:1", "cpu"]}
        both.steps(2)


def test_providers_are_lost_one_after_the_other() -> None:
    with Beside(DECODER, THREE, max_restarts=1, checkpoint_every=2) as both:
        both.bind()
        both.steps(4)
        lose(both)
        both.steps(3)
        with chaos.broken("prepare sim:1", "none left"), both.stopped("in Stop", 1):
            chaos.kill("sim:1", both.ex)
        both.steps(3)
        assert both.ex.stats()["degraded"] == {"sim:0": ["cpu"], "sim:1": ["cpu"]}
        assert both.ex.stats()["plan"]["partitions"] == 1


def test_several_steps_in_flight_go_on_and_what_the_caller_gave_is_dealt_anew() -> None:
    """Inputs that went to two children in two parcels go to one in one; large ones lie in the store."""
    providers: list[Any] = ["sim:0", "cpu"]
    overrides = {"Softmax*": "cpu", "Mul*": "cpu"}
    with Beside(SENT_BACK, providers, max_restarts=1, planning={"overrides": overrides}) as both:
        rng = np.random.default_rng(0)
        feeds = [
            {name: rng.standard_normal((n, 4)).astype(np.float32) for name in ("x", "w")}
            for n in (8000, 2, 8000)
        ]
        both.ex.run(feeds[0])
        with chaos.broken("prepare sim:0", "no such device"):
            with chaos.gate("partition 0, before run") as gate:
                futures = [both.ex.submit(f) for f in feeds]
                gate.wait_reached()
                chaos.kill("sim:0", both.ex)
                gate.open()
            for future, fed in zip(futures, feeds, strict=True):
                assert bits(future.result(timeout=60)) == bits(both.calm.run(fed))
        assert both.ex.stats()["degraded"] == {"sim:0": ["cpu"]}
        assert [p.values for p in both.ex.plan.parcels if p.producer < 0] == [("x", "w")]


def test_every_shape_class_is_placed_anew() -> None:
    """Steps of one row run the other way about, over the same children."""
    classes = {"one": {"when": {"n": 1}, "overrides": {"Exp*": "cpu"}}}
    with Beside(CHAIN, THREE, max_restarts=1, planning={"shape_classes": classes}) as both:
        for n in (1, 2, 1, 3):
            both.step(n)
        lose(both, "partition 1, before run")
        for n in (1, 2, 1, 3):
            both.step(n)
        stats = both.ex.stats()
        assert stats["degraded"] == {"sim:0": ["sim:1", "cpu"]}
        assert stats["steps_by_class"] == {"one": 4}


def test_where_nobody_else_takes_a_node_every_step_says_so_and_the_rest_goes_on_to_be_used() -> None:
    providers: list[Any] = [
        ("sim:0", {"except_ops": ["Softmax"]}),
        ("sim:1", {"except_ops": ["Exp", "Softmax"]}),
        ("cpu", {"except_ops": ["Exp"]}),
    ]
    with Beside(CHAIN, providers, max_restarts=1) as both:
        both.step()
        with chaos.broken("prepare sim:0", "no such device"):
            chaos.kill("sim:0", both.ex)
            for _ in range(2):
                with pytest.raises(
                    ChildDiedError, match=r"cannot be started again: .*no such device"
                ) as caught:
                    both.ex.run(both.feeds())
                assert caught.value.device == "sim:0"
                assert caught.value.op == "Exp"
                assert caught.value.node
                assert "sim:1: " in str(caught.value)
                assert "cpu: " in str(caught.value)
                assert isinstance(caught.value.__cause__, UnsupportedNodeError)
        stats = both.ex.stats()
        assert not stats["children"]["sim:0"]["alive"]
        assert stats["children"]["cpu"]["alive"]


def test_a_buffer_on_a_lost_device_is_lost_and_others_stay() -> None:
    model = onnx.parser.parse_model(SENT_BACK)
    options = RuntimeOptions(max_restarts=1)
    overrides = {"Exp*": "sim:0", "Softmax*": "sim:1", "Mul*": "sim:1"}
    with HeterogeneousExecutor(model, ["sim:0", "sim:1"], options=options, overrides=overrides) as ex:
        fed = {name: np.ones((2, 4), np.float32) for name in ("x", "w")}
        want = ex.run(fed)
        mine, lost = ex.device_buffer("sim:1", (2, 4)), ex.device_buffer("sim:0", (2, 4))
        mine.write(fed["w"] * 3)
        with chaos.broken("prepare sim:0", "no such device"):
            chaos.kill("sim:0", ex)
            assert bits(ex.run(fed)) == bits(want)
        assert (mine.read() == 3).all()
        with pytest.raises(TransportError, match="sim:0 is lost, and its nodes are elsewhere"):
            lost.read()
        binding = ex.io_binding()
        binding.bind_input("x", fed["x"])
        binding.bind_input("w", fed["w"])
        binding.bind_output("z", mine)
        ex.run_with_binding(binding)
        assert mine.read().tobytes() == want["z"].tobytes()


@pytest.mark.parametrize("map_weights", [True, False])
def test_stages_are_dealt_anew_and_weights_come_along(map_weights: bool) -> None:
    model = encoder(layers=3, hidden=256, heads=4)  # some MB: enough to be written to a file
    options = RuntimeOptions(max_restarts=1, map_weights=map_weights)
    providers = ["sim:0", "sim:1", "sim:2", "cpu"]
    rng = np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((2, 6, 256)).astype(np.float32)} for _ in range(6)]
    with (
        HeterogeneousExecutor(model, providers, stages="auto", options=options) as ex,
        HeterogeneousExecutor(model, ["cpu"], children="inline") as calm,
    ):
        want = [bits(calm.run(b)) for b in batches]
        assert [bits(got) for got in ex.map(batches)] == want
        assert [s.child for s in ex.plan.stages] == [0, 1, 2]
        with chaos.broken("prepare sim:1", "no such device"):
            with chaos.gate("partition 1, before run") as gate:
                futures = [ex.submit(b) for b in batches]
                gate.wait_reached()
                chaos.kill("sim:1", ex)
            assert [bits(future.result(timeout=100)) for future in futures] == want
        assert [s.child for s in ex.plan.stages] == [0, 2]
        assert ex.stats()["degraded"].keys() == {"sim:1"}
        chaos.kill("sim:2", ex)  # which has to find the weights that it has now
        assert [bits(got) for got in ex.map(batches)] == want
