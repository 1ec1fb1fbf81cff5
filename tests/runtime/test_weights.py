"""Weights: mapped once on the host, uploaded at first use on a device, and within a budget there with the same bits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import hetero
from hetero.errors import DeviceError, MemoryLimitError
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.providers.base import ProviderConfig
from hetero.providers.simulated import SimulatedProvider
from hetero.runtime.assignment import assignment
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.residency import plan_residency
from hetero.runtime.weight_uses import weight_uses
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'


def chain(widths: list[int], *, dims: Any = 2) -> onnx.ModelProto:
    """x (dims, widths[0]) times one weight after the other, Tanh in between."""
    nodes, weights = [], []
    for k, (a, b) in enumerate(pairwise(widths)):
        w = np.random.default_rng(k).standard_normal((a, b)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        nodes.append(helper.make_node("MatMul", [f"t{k}", f"w{k}"], [f"m{k}"], name=f"n{k}"))
        nodes.append(helper.make_node("Tanh", [f"m{k}"], [f"t{k + 1}"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [dims, widths[0]])],
        [helper.make_tensor_value_info(f"t{len(widths) - 1}", TensorProto.FLOAT, [dims, widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feed(width: int, rows: int = 2, seed: int = 0) -> dict[str, Any]:
    return {"t0": np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)}


def executor(model: Any, provider: Any = "sim:0", **options: Any) -> hetero.HeterogeneousExecutor:
    return hetero.HeterogeneousExecutor(
        model, providers=[provider], children="inline", options=RuntimeOptions(**options)
    )


def weights_of(ex: hetero.HeterogeneousExecutor) -> dict[str, Any]:
    (child,) = ex.stats()["children"].values()
    found: dict[str, Any] = child["weights"]
    return found


def results(model: Any, feeds: list[dict[str, Any]], provider: Any = "sim:0", **options: Any) -> list[Any]:
    with executor(model, provider, **options) as ex:
        return [list(ex.run(f).values()) for f in feeds]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(
        x.tobytes() == y.tobytes() for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


# -- host --------------------------------------------------------------------------------------------------
@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weights lie beside it in one file."""
    path = tmp_path / "m.onnx"
    onnx.save(chain([8, 8, 8]), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


@contextlib.contextmanager
def opened(name: str) -> Iterator[list[str]]:
    """Counts how often a file of this name is opened in this process."""
    seen: list[str] = []
    on = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if on and event == "open" and isinstance(args[0], str) and Path(args[0]).name == name:
            seen.append(event)

    sys.addaudithook(hook)  # which cannot be removed
    try:
        yield seen
    finally:
        on.clear()


def test_a_data_file_is_opened_once_and_its_bytes_are_never_copied_on_the_host(external: Path) -> None:
    with opened("w.bin") as seen, executor(external, "cpu") as ex:
        first = ex.run(feed(8))
        second = ex.run(feed(8))
        assert seen == ["open"]
        assert first["t2"].tobytes() == second["t2"].tobytes()
        mapped = ex._weights["w0"]
        child = next(iter(ex._children._children.values()))
        slots = child._context.constants
        for name in ("w0", "w1"):
            assert np.shares_memory(slots[name].array, ex._weights[name])
            assert (
                slots[name].array.__array_interface__["data"] == ex._weights[name].__array_interface__["data"]
            )
        whole = mapped
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        assert np.shares_memory(whole, ex._weights["w1"])
        assert not mapped.flags.writeable
        assert weights_of(ex)["uploads"] == 0


def test_a_data_file_is_mapped_once_and_no_page_of_it_is_the_process_own(external: Path) -> None:
    with executor(external, "cpu") as ex:
        ex.run(feed(8))
        regions = Path("/proc/self/smaps").read_text().split("VmFlags:")
        (mine,) = [r for r in regions if str(external.parent / "w.bin") in r]
    lines = mine.splitlines()
    (head,) = [line for line in lines if str(external.parent) in line]
    assert head.split()[1] == "r--s"
    assert [line.split()[1] for line in lines if line.startswith("Anonymous:")] == ["0"]


def test_a_budget_changes_nothing_on_the_host(external: Path) -> None:
    with executor(external, "cpu", weight_budget_bytes=1, prefetch_nodes=2) as ex:
        got = [list(ex.run(feed(8)).values()) for _ in range(3)]
        assert weights_of(ex)["paged"] == []
    assert same(got, results(external, [feed(8)] * 3, "cpu"))


# -- first use ---------------------------------------------------------------------------------------------
def test_nothing_is_uploaded_before_the_first_run_and_each_weight_once(external: Path) -> None:
    with executor(external) as ex:
        assert weights_of(ex)["uploads"] == 0
        assert ex.stats()["children"]["sim:0"]["memory"]["uploads"] == 0
        for _ in range(4):
            ex.run(feed(8))
        assert weights_of(ex)["uploads"] == 2
        assert weights_of(ex)["upload_bytes"] == weights_of(ex)["resident_bytes"] == 2 * 8 * 8 * 4


def test_other_shapes_and_folded_weights_bring_no_further_uploads() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[n, 2] x) => (float[n, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
        " { t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t) }"
    )
    with executor(model) as ex:
        for rows in (1, 2, 3, 1, 2):
            ex.run({"x": np.ones((rows, 2), np.float32)})
        assert weights_of(ex)["uploads"] == 1


BRANCHES = HEAD + (
    "g (bool c, float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { y = If(c) <"
    " then_branch = t () => (float[2] p) { p = Add(x, a) },"
    " else_branch = e () => (float[2] q) { q = Mul(x, b) }> }"
)


def test_the_weights_of_a_branch_that_is_not_taken_stay_on_the_host() -> None:
    x = np.array([10, 20], np.float32)
    with executor(onnx.parser.parse_model(BRANCHES)) as ex:
        assert ex.run({"c": np.array(True), "x": x})["y"].tolist() == [11, 22]
        assert weights_of(ex)["uploads"] == 1
        assert ex.run({"c": np.array(False), "x": x})["y"].tolist() == [30, 80]
        assert weights_of(ex)["uploads"] == 2


def test_an_upload_that_fails_is_made_again_by_the_next_run() -> None:
    provider = ("sim:0", {"faults": (("upload", 2, "error"),)})
    with executor(chain([4, 4]), provider) as ex:
        with pytest.raises(DeviceError):
            ex.run(feed(4))
        got = ex.run(feed(4))["t1"]
        artifacts = ex.stats()["children"]["sim:0"]["artifacts"]["weights"]
        assert (artifacts["failed"], artifacts["completed"], artifacts["states"]) == (1, 1, {"complete": 1})
    assert same([[got]], results(chain([4, 4]), [feed(4)]))


# -- budget ------------------------------------------------------------------------------------------------
@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=3, max_size=6),
    st.integers(0, 60),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_budget_never_changes_a_bit_and_is_never_passed(
    widths: list[int], slack: int, ahead: int, capture: bool
) -> None:
    model = chain(widths, dims="n")
    budget = max(a * b * 4 for a, b in pairwise(widths)) + 4 * slack
    feeds = [feed(widths[0], rows, seed) for seed, rows in enumerate((2, 2, 2, 3, 2, 3))]
    options = {"weight_budget_bytes": budget, "prefetch_nodes": ahead, "capture": capture}
    with executor(model, **options) as ex:
        got = [list(ex.run(f).values()) for f in feeds]
        found = weights_of(ex)
    assert same(got, results(model, feeds, weight_budget_bytes=0))
    assert found["peak_resident_bytes"] <= budget
    assert found["refill_bytes"] <= len(feeds) * found["step_bytes"] + found["staging_bytes"] * len(widths)


def test_paged_weights_are_copied_once_a_step_and_counted() -> None:
    model, size = chain([8] * 5), 8 * 8 * 4
    with executor(model, weight_budget_bytes=2 * size) as ex:
        for _ in range(5):
            ex.run(feed(8))
        found = weights_of(ex)
    assert found["uploads"] == 1
    assert len(found["paged"]) == 3
    assert (found["step_bytes"], found["refills"]) == (3 * size, 5 * 3)
    assert found["evictions"] == 5 * 3 - 1
    assert found["peak_resident_bytes"] == found["resident_bytes"] == 2 * size


def test_a_refill_takes_no_device_memory_of_its_own() -> None:
    size = 64 * 64 * 4
    model = chain([64] * 9)
    provider = ("sim:0", {"memory_limit_bytes": 2 * size + (1 << 14)})
    with executor(model, provider, weight_budget_bytes=2 * size) as ex:
        for _ in range(3):
            got = list(ex.run(feed(64)).values())
    assert same([got], results(model, [feed(64)]))


def test_refills_are_seams_between_captured_segments() -> None:
    with executor(chain([4] * 4), weight_budget_bytes=2 * 64) as ex:
        for _ in range(4):
            ex.run(feed(4))
        slot = ex.stats()["children"]["sim:0"]["graph_slots"]["primary"]
    assert slot["replays"] == 3
    assert slot["seams"][SeamReason.WEIGHT_PAGED] == 2
    assert slot["segments"] >= 2


def test_one_weight_read_in_every_iteration_of_a_loop_is_copied_once() -> None:
    text = HEAD + (
        "g (int64 m, float[2, 2] x) => (float[2, 2] y)"
        " <float[2, 2] w = {1, 2, 3, 4}, float[2, 2] v = {1, 0, 0, 1}, bool go = {1}> {"
        " s = MatMul(x, v) l = Loop(m, go, s) < body = b (int64 i, bool p, float[2, 2] h)"
        " => (bool q, float[2, 2] r) { q = Identity(p) r = MatMul(h, w) } > y = MatMul(l, v) }"
    )
    model = onnx.parser.parse_model(text)
    feeds = [{"m": np.array(k), "x": np.eye(2, dtype=np.float32)} for k in (3, 5, 0, 3)]
    with executor(model, weight_budget_bytes=17) as ex:  # one of them, and the condition
        got = [list(ex.run(f).values()) for f in feeds]
        found = weights_of(ex)
    assert same(got, results(model, feeds))
    assert found["paged"] == ["v", "w"]
    assert found["refills"] == 2 * 3 + 1  # v, w, and v again; v is still there when a step begins


def test_an_upload_that_fails_names_the_weight() -> None:
    model = chain([4] * 4)
    for nth in (2, 4):
        provider = ("sim:0", {"faults": (("upload", nth, "error"),)})
        with executor(model, provider, weight_budget_bytes=128) as ex, pytest.raises(DeviceError) as caught:
            ex.run(feed(4))
        assert caught.value.operand in ("w0", "w1", "w2")


def test_weights_that_views_results_and_handles_need_stay() -> None:
    text = HEAD + (
        "g (float[2] x, int64[1] n) => (float[2] y, float[a] z) <float[4] w = {1, 2, 3, 4}, float[2] u = {5, 6},"
        " int64[1] zero = {0}> { part = Slice(w, zero, n) z = Neg(part) y = Add(x, u) }"
    )
    r = rig(text, "sim:0")
    uses = weight_uses([r.runner])
    assert "w" in uses.pinned
    assert "u" not in uses.pinned
    assert ("u",) in uses.steps


@pytest.mark.parametrize("pin", [True, False])  # what is not pinned is copied rather than viewed
@pytest.mark.parametrize(
    "layout",
    [
        "Identity(w)",
        "Cast<to=1>(w)",
        "Transpose<perm=[1, 0]>(w)",
        "Dropout(w)",
        "Flatten(w)",
        "Squeeze(w)",
        "Expand(w, two)",
    ],
)
def test_what_rearranges_a_paged_weight_has_the_right_bits_when_it_is_read_later(
    layout: str, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + (
        "g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2, 2] v = {5, 6, 7, 8},"
        " float[2, 2] u = {2, 0, 0, 3}, int64[2] two = {2, 2}>"
        f" {{ t = {layout} a = MatMul(x, v) b = MatMul(a, u) c = MatMul(b, t) y = MatMul(c, v) }}"
    )
    model, feeds = onnx.parser.parse_model(text), [{"x": np.eye(2, dtype=np.float32)}] * 4
    want = results(model, feeds, fold_constants=False)
    if not pin:
        monkeypatch.setattr(
            "hetero.runtime.weights.plan_residency",
            lambda steps, sizes, pinned, budget, spare: plan_residency(steps, sizes, (), budget, spare=spare),
        )
    with executor(
        model, fold_constants=False, weight_budget_bytes=48 if pin and "two" in layout else 32
    ) as ex:
        got = [list(ex.run(f).values()) for f in feeds]
        assert weights_of(ex)["paged"]
    assert same(got, want)


def test_folded_weights_count_and_what_they_came_from_does_not() -> None:
    text = HEAD + (
        "g (float[n, 2] x) => (float[n, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
        " { [turn] t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t) }"
    )
    uses = weight_uses([rig(text, "sim:0").runner])
    ((name,),) = uses.steps
    assert name.startswith("turn")
    assert {n: v.nbytes for n, v in uses.values.items()} == {name: 24}


def test_a_weight_that_no_budget_holds_is_named_before_anything_runs() -> None:
    with pytest.raises(MemoryLimitError, match="'w1'") as caught:
        executor(chain([4, 4, 16]), weight_budget_bytes=100)
    assert (caught.value.operand, caught.value.device) == ("w1", "sim:0")


def test_a_failed_refill_leaves_nothing_behind_that_a_later_run_takes_for_the_weight() -> None:
    model = chain([4] * 4)
    provider = ("sim:0", {"faults": (("upload", 4, "error"),)})
    with executor(model, provider, weight_budget_bytes=64) as ex:
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(list(ex.run(feed(4)).values()))
            except DeviceError:
                outcomes.append([])
    assert [] in outcomes
    (right,) = results(model, [feed(4)])
    assert all(same([got], [right]) for got in outcomes if got)


def test_preparing_anew_gives_the_staging_memory_back() -> None:
    model = chain([8] * 4)
    with executor(model, weight_budget_bytes=256) as ex:
        child = next(iter(ex._children._children.values()))
        ex.run(feed(8))
        before = child.provider.stats()["live_bytes"]
        child.prepare(assignment(ex.plan, 0), ex._weights)
        assert child.stats()["weights"]["uploads"] == child.stats()["weights"]["refills"] == 0
        ex.run(feed(8))
        assert child.provider.stats()["live_bytes"] <= before


GROWING = HEAD + (
    "g (float[1, 4] q, float[t, 4] past, float[1, 4] new) => (float[1, 4] y, float[u, 4] present)"
    " <float[4, 4] a = {" + ", ".join(map(str, range(16))) + "},"
    " float[4, 4] b = {" + ", ".join(map(str, range(16, 32))) + "}> {"
    " present = Concat<axis=0>(past, new) p = MatMul(q, a) s = Tanh(p) kt = Transpose<perm=[1, 0]>(present)"
    " scores = MatMul(s, kt) w = Softmax<axis=-1>(scores) mixed = MatMul(w, present) m = MatMul(mixed, b)"
    " n = Tanh(m) o = Neg(n) r = Abs(o) v = Exp(r) z = Sub(v, r) y = Mul(z, v) }"
)


def test_steps_that_grow_take_a_section_over_with_its_refills() -> None:
    model = onnx.parser.parse_model(GROWING)
    draw = np.random.default_rng(3)
    feeds = [
        {
            "q": draw.standard_normal((1, 4)).astype(np.float32),
            "past": draw.standard_normal((t, 4)).astype(np.float32),
            "new": draw.standard_normal((1, 4)).astype(np.float32),
        }
        for t in range(3, 30)
    ]
    options = {"weight_budget_bytes": 64, "prefetch_nodes": 2, "verify_decode_memo": True}
    with executor(model, **options) as ex:
        got = [list(ex.run(f).values()) for f in feeds]
        assert ex.stats()["children"]["sim:0"]["memo_replayed"] > 10
        assert weights_of(ex)["refills"] == 2 * len(feeds)
    assert same(got, results(model, feeds))


def test_experts_are_paged_as_whole_banks_with_the_same_bits() -> None:
    draw = np.random.default_rng(5)
    banks = [
        numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("first", (3, 5, 4)), ("second", (3, 4, 5)), ("last", (4, 30)))
    ]
    float_, value = TensorProto.FLOAT, helper.make_tensor_value_info
    moe = helper.make_node("MoE", ["x", "r", "first", "", "second"], ["h"], domain="com.microsoft", k=2)
    graph = helper.make_graph(
        [moe, helper.make_node("MatMul", ["h", "last"], ["y"])],
        "g",
        [value("x", float_, ["n", 4]), value("r", float_, ["n", 3])],
        [value("y", float_, ["n", 30])],
        banks,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = [
        {n: draw.standard_normal((rows, w)).astype(np.float32) for n, w in (("x", 4), ("r", 3))}
        for rows in (2, 2, 2, 5)
    ]
    with executor(model, weight_budget_bytes=4 * (2 * 60 + 60)) as ex:
        got = [list(ex.run(f).values()) for f in feeds]
        found = weights_of(ex)
    assert same(got, results(model, feeds))
    assert found["paged"]
    assert found["expert_banks"] == {"first": 3, "second": 3}


# -- prefetch ----------------------------------------------------------------------------------------------
class Logged(SimulatedProvider):
    """Notes in which order kernels and weights are enqueued."""

    def __init__(self) -> None:
        super().__init__(ProviderConfig("sim:0"))
        self.log: list[str] = []

    def upload_into(self, array: Any, target: Any) -> None:
        self.log.append(f"copy {array.shape[1]}")
        super().upload_into(array, target)

    def bind(self, compiled: Any, inputs: Any, outputs: Any, workspace: Any) -> Any:
        call = super().bind(compiled, inputs, outputs, workspace)

        def noted() -> None:
            if compiled.op.id == "MatMul":
                self.log.append(f"use {inputs[1].shape[1]}")
            call()

        return noted


@pytest.mark.parametrize(
    ("ahead", "first", "then"),
    [
        (0, "copy 5, use 5, copy 6, use 6, copy 7, use 7", "copy 5, use 5, copy 6, use 6, copy 7, use 7"),
        # in the second step, the one in the middle is still in the other buffer
        (2, "copy 5, copy 6, use 5, copy 7, use 6, use 7", "copy 5, use 5, copy 7, use 6, use 7"),
    ],
)
def test_with_prefetch_a_weight_is_on_its_way_before_the_one_before_it_is_used(
    ahead: int, first: str, then: str
) -> None:
    model, provider = chain([4, 5, 6, 7]), Logged()
    largest = 4 * 6 * 7
    options = {"weight_budget_bytes": largest * (2 if ahead else 1), "prefetch_nodes": ahead}
    with executor(model, provider, **options, capture=False) as ex:
        ex.run(feed(4))
        assert ", ".join(provider.log) == first
        provider.log.clear()
        got = list(ex.run(feed(4)).values())
        assert ", ".join(provider.log) == then
    assert same([got], results(model, [feed(4)]))


def test_prefetched_weights_have_the_right_bits_over_a_slow_link() -> None:
    slept: list[float] = []
    provider = SimulatedProvider(ProviderConfig("sim:0", (("link_latency_s", 0.5),)), sleep=slept.append)
    model = chain([6] * 6)
    with executor(model, provider, weight_budget_bytes=3 * 144, prefetch_nodes=3) as ex:
        got = [list(ex.run(feed(6, seed=s)).values()) for s in range(4)]
        assert weights_of(ex)["refills"] > 0
    assert same(got, results(model, [feed(6, seed=s) for s in range(4)]))
    assert slept


def test_the_weights_of_a_model_are_the_ones_that_were_loaded(external: Path) -> None:
    weights = load_model(external).weights
    with executor(external) as ex:
        got = ex.run(feed(8))["t2"]
    want = np.tanh(np.tanh(feed(8)["t0"] @ weights["w0"]) @ weights["w1"])
    np.testing.assert_allclose(got, want, rtol=1e-5)
