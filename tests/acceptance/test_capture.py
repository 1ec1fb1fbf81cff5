"""Capture as a caller sees it: what is replayed gives what an eager step gives, whatever lies between."""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hetero
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import HeteroError
from hetero.extensions import ExtensionContext, unregister
from hetero.kernels.base import Call
from hetero.program.operation import Operation
from hetero.providers.base import ProviderConfig
from hetero.providers.simulated import SimulatedProvider
from tests.acceptance.graphs import rich_models
from tests.dealing import shuffled
from tests.properties.graphs import N, RandomModel

HEAD = '<ir_version: 9, opset_import: ["": 18, "local": 1]>\n'
MIXED: list[Any] = [("sim:0", {"except_ops": ["Exp"]}), "cpu"]
PROVIDERS: list[list[Any]] = [["cpu"], ["sim:0", "cpu"], MIXED]
everywhere = pytest.mark.parametrize("providers", PROVIDERS, ids=["cpu", "device", "mixed"])
WEIGHT = "<float[4, 4] w = {0.5, 1, 0, 0, 0, 0.5, 1, 0, 0, 0, 0.5, 1, 1, 0, 0, 0.5}>"


def chain(first: str, last: str, prefix: str, n: int = 12) -> str:
    """`n` MatMuls from value `first` to value `last`."""
    names = [first, *(f"{prefix}{k}" for k in range(n - 1)), last]
    return " ".join(f"{b} = MatMul({a}, w)" for a, b in itertools.pairwise(names))


def text(body: str, inputs: str = "float[n, 4] x", outputs: str = "y") -> str:
    return f"g ({inputs}) => ({outputs}) {WEIGHT} {{ {body} }}"


def executor(model: str, providers: Any = ("cpu",), **options: Any) -> HeterogeneousExecutor:
    proto = onnx.parser.parse_model(HEAD + model)
    return HeterogeneousExecutor(proto, list(providers), children="inline", options=RuntimeOptions(**options))


def x(seed: int = 0, rows: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def bits(outputs: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def slots(ex: HeterogeneousExecutor, name: str = "primary") -> dict[str, dict[str, Any]]:
    """What the graph slot did, by child."""
    found = ((child, about["graph_slots"].get(name)) for child, about in ex.stats()["children"].items())
    return {child: slot for child, slot in found if slot is not None}


def graphs(ex: HeterogeneousExecutor) -> int:
    return sum(c["memory"]["graphs"] for c in ex.stats()["children"].values())


# -- seams -----------------------------------------------------------------------------------------------------------
MIDDLES = {
    "NonZero": "p = Relu(a) z = NonZero(p) f = Cast<to=1>(z) s = ReduceSum<keepdims=0>(f) t = Tanh(s) b = Add(a, t)",
    "sequence": "at = Constant<value_int=1>() s0 = SequenceConstruct(a, x) s1 = SequenceInsert(s0, x)"
    " c = SequenceAt(s1, at) b = Add(c, a)",
    "If": "zero = Constant<value_float=0.0>() s = ReduceSum<keepdims=0>(a) go = Greater(s, zero)"
    " b = If(go) <then_branch = t () => (float[n, 4] u) { u = Neg(a) },"
    " else_branch = e () => (float[n, 4] v) { v = Abs(a) }>",
    "Loop": "two = Constant<value_int=2>() true = Constant<value=bool {1}>()"
    " b = Loop(two, true, a) <body = l (int64 i, bool c, float[n, 4] u) => (bool d, float[n, 4] v)"
    " { d = Identity(c) v = Add(u, a) }>",
    "Range": "k = ReduceMax<keepdims=0>(a) j = Tanh(k) i = Cast<to=7>(j) five = Constant<value_int=5>()"
    " c = Add(i, five) zero = Constant<value_int=0>() one = Constant<value_int=1>() r = Range(zero, c, one)"
    " f = Cast<to=1>(r) s = ReduceSum<keepdims=0>(f) t = Tanh(s) b = Mul(a, t)",
    "Exp on the other side": "t = Tanh(a) e = Exp(t) b = Add(e, a)",
}


@everywhere
@pytest.mark.parametrize("middle", MIDDLES.values(), ids=MIDDLES)
def test_seams_between_segments_see_what_each_step_is_fed(providers: list[Any], middle: str) -> None:
    model = text(f"{chain('x', 'a', 'p')} {middle} {chain('b', 'y', 'q')}", outputs="y, b")
    with executor(model, providers) as ex, executor(model, capture=False) as eager:
        seen = set()
        for seed in range(14):
            got = ex.run({"x": x(seed)})
            assert bits(got) == bits(eager.run({"x": x(seed)}))
            seen.add(got["b"].tobytes())
        assert len(seen) == 14, "the first step's result is not returned for ever"
        apart = 1 if "Exp" in middle and len(ex.plan.partitions) == 1 else 2
        assert sum(s["segments"] for s in slots(ex).values()) >= apart
        assert all(s["replays"] > s["recordings"] for s in slots(ex).values() if s["segments"])
        assert slots(eager) == {}


@pytest.fixture
def local() -> Iterator[None]:
    """Extensions of the domain "local" are forgotten after the test."""
    yield
    for name in ("Stubborn", "Willing", "Picky"):
        unregister("local", name)


class _Counting(hetero.Extension):
    """y = x times the number of this run: what was replayed from a recording of the first would be seen."""

    domain = "local"
    kinds = ("cpu", "sim")
    in_session = True

    def outputs(self, op: Operation, inputs: Any) -> Any:
        return list(inputs)

    def run(self, state: Any, inputs: Any, outputs: Any, context: ExtensionContext) -> None:
        context.cache["runs"] = context.cache.get("runs", 0) + 1
        context.xp.multiply(inputs[0], np.float32(context.cache["runs"]), out=outputs[0])


class _Stubborn(_Counting):
    name = "Stubborn"


class _Willing(_Counting):
    name = "Willing"
    in_capture = True


class _Picky(_Counting):
    """Fails where the first element is negative."""

    name = "Picky"
    in_capture = True

    def run(self, state: Any, inputs: Any, outputs: Any, context: ExtensionContext) -> None:
        if inputs[0].reshape(-1)[0] < 0:
            raise ValueError("a negative first element")
        outputs[0][...] = inputs[0]


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("provider", ["cpu", "sim:0"])
@pytest.mark.parametrize("kind", [_Stubborn, _Willing])
def test_an_extension_runs_in_every_step_whether_it_is_recorded_or_not(provider: str, kind: Any) -> None:
    hetero.register_extension(kind)
    model = text(f"{chain('x', 'a', 'p')} b = local.{kind.name}(a) {chain('b', 'y', 'q')}")
    plain = text(f"{chain('x', 'a', 'p')} b = Identity(a) {chain('b', 'y', 'q')}", outputs="b, y")
    with executor(model, [provider]) as ex, executor(plain, capture=False) as eager:
        for run in range(1, 7):
            # scaled by a power of two only, so that the products scale exactly
            (got,), want = ex.run({"x": x(run)}).values(), eager.run({"x": x(run)})["y"]
            if run in (1, 2, 4):
                assert got.tobytes() == (want * np.float32(run)).tobytes()
        (slot,) = slots(ex).values()
        opts_out = {} if kind.in_capture else {"kernel-opts-out": 1}
        assert slot["seams"] == opts_out
        assert slot["segments"] == (1 if kind.in_capture else 2)
        assert slot["quarantine"] == {}


class _Strict(SimulatedProvider):
    """A device on which extensions wait for the stream in their calls, as on a GPU, where calls run as recorded."""

    def record(self, call: Call, op: Operation | None = None) -> None:
        if op is not None and op.domain == "local":
            self.synchronize()
        super().record(call, op)


@pytest.mark.usefixtures("local")
def test_an_extension_that_waits_while_it_is_recorded_is_kept_out_and_the_rest_is_replayed() -> None:
    hetero.register_extension(_Willing)
    model = text(f"{chain('x', 'a', 'p')} b = local.Willing(a) {chain('b', 'y', 'q')}")
    with executor(model, [_Strict(ProviderConfig("sim:0"))]) as ex:
        first = ex.run({"x": x()})["y"]
        for run in (2, 3, 4):
            got = ex.run({"x": x()})["y"]
            if run != 3:
                assert got.tobytes() == (first * np.float32(run)).tobytes()
        (slot,) = slots(ex).values()
        assert list(slot["quarantine"]) == ["local::Willing"]
        assert "synchronize" in slot["quarantine"]["local::Willing"]
        assert slot["seams"] == {"recording-failed": 1}
        assert (slot["failed_recordings"], slot["recordings"], slot["segments"]) == (1, 1, 2)
        ex.run({"x": x()}, graph_slot="verify")
        ex.run({"x": x(1, 5)})
        ex.run({"x": x(1, 5)})
        (slot,) = slots(ex).values()
        assert slot["failed_recordings"] == 1, "other shapes know already"


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("provider", ["cpu", "sim:0"])
def test_a_kernel_that_fails_in_a_segment_is_named_and_the_executor_goes_on(provider: str) -> None:
    hetero.register_extension(_Picky)
    model = text(f"[picky] a = local.Picky(x) {chain('a', 'y', 'q')}")
    good, bad = np.abs(x()), -np.abs(x())
    with executor(model, [provider], stage_bytes=64 << 10) as ex:
        want = ex.run({"x": good})["y"].tobytes()
        for _ in range(3):
            assert ex.run({"x": good})["y"].tobytes() == want
            with pytest.raises(HeteroError, match="negative first element") as caught:
                ex.run({"x": bad})
            assert (caught.value.op, caught.value.node) == ("local::Picky", "picky")
            assert caught.value.device == provider
        assert ex.run({"x": good})["y"].tobytes() == want
        (slot,) = slots(ex).values()
        assert slot["captured_calls"] == 13
        assert slot["recordings"] == 1


# -- memory of the caller's ------------------------------------------------------------------------------------------
@everywhere
def test_what_a_step_returned_stays_as_it_was_also_where_it_is_fed_back(providers: list[Any]) -> None:
    model = text(
        f"t = Tanh(x) e = Exp(t) {chain('e', 'a', 'p')} y = Tanh(a) z = Transpose(a)", outputs="y, z"
    )
    with executor(model, providers) as ex, executor(model, capture=False) as eager:
        value = want = x()
        kept: list[tuple[dict[str, np.ndarray], dict[str, bytes]]] = []
        for _ in range(8):
            got, expected = ex.run({"x": value}), eager.run({"x": want})
            assert bits(got) == bits(expected)
            kept.append((got, bits(got)))
            value, want = got["y"], expected["y"]
        assert all(bits(outputs) == before for outputs, before in kept)


@everywhere
def test_an_array_that_the_caller_changes_in_place_is_read_again(providers: list[Any]) -> None:
    model = text(f"t = Tanh(x) e = Exp(t) {chain('e', 'y', 'p')}")
    with executor(model, providers) as ex, executor(model, capture=False) as eager:
        mine = x()
        for seed in range(6):
            mine[...] = x(seed)
            assert bits(ex.run({"x": mine})) == bits(eager.run({"x": x(seed)}))
            assert mine.tobytes() == x(seed).tobytes()


@everywhere
def test_bound_buffers_that_move_are_followed_at_once(providers: list[Any]) -> None:
    model = text(f"t = Tanh(x) e = Exp(t) {chain('e', 'y', 'p')}")
    with executor(model, providers) as ex, executor(model, capture=False) as eager:
        pairs = [(np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)) for _ in range(3)]
        for step, k in enumerate([0, 0, 0, 1, 0, 1, 1, 2, 0, 2, 2, 1]):
            source, target = pairs[k]
            source[...] = x(step)
            binding = ex.io_binding()
            binding.bind_input("x", source)
            binding.bind_output("y", target)
            others = [b.tobytes() for j, (_, b) in enumerate(pairs) if j != k]
            got = ex.run_with_binding(binding)
            assert bits(got) == bits(eager.run({"x": x(step)})) == {"y": target.tobytes()}
            assert others == [b.tobytes() for j, (_, b) in enumerate(pairs) if j != k]


# -- graph slots -----------------------------------------------------------------------------------------------------
@everywhere
def test_driving_verify_never_disturbs_primary(providers: list[Any]) -> None:
    model = text(f"t = Tanh(x) e = Exp(t) {chain('e', 'y', 'p')}")
    with executor(model, providers) as ex, executor(model, capture=False) as eager:
        for seed in range(3):
            ex.run({"x": x(seed)})
        before = slots(ex)
        for slot in ("verify", "mine"):
            for rows in range(1, 30):
                for seed in range(2):
                    got = ex.run({"x": x(seed, rows)}, graph_slot=slot)
                    assert bits(got) == bits(eager.run({"x": x(seed, rows)}))
        assert slots(ex) == before
        assert bits(ex.run({"x": x(5)})) == bits(eager.run({"x": x(5)}))
        for child, slot_after in slots(ex).items():
            assert slot_after["recordings"] == before[child]["recordings"], "it still has its graph"
        assert slots(ex, "verify").keys() == slots(ex, "mine").keys() == before.keys()


# -- bounds ----------------------------------------------------------------------------------------------------------
@everywhere
def test_hundreds_of_shapes_leave_graphs_and_memory_bounded(providers: list[Any]) -> None:
    model = text(f"t = Tanh(x) e = Exp(t) {chain('e', 'y', 'p')}")
    with executor(model, providers, max_specializations=4, kernel_cache_size=64) as ex:

        def sweep(offset: int) -> tuple[int, int, int]:
            for k in range(110):
                value = x(k, 1 + offset + 3 * k)
                ex.run({"x": value})
                ex.run({"x": value})
            gc.collect()
            children = ex.stats()["children"].values()
            live = sum(c["memory"]["live_bytes"] for c in children)
            return graphs(ex), live, tracemalloc.get_traced_memory()[0]

        sweep(0)
        tracemalloc.start()
        try:
            first, second = sweep(1), sweep(2)
        finally:
            tracemalloc.stop()
        partitions = len(ex.plan.partitions)
        assert first[0] <= 4 * partitions
        assert second[0] <= 4 * partitions
        assert second[1] <= 2 * first[1]
        assert second[2] - first[2] < 200_000
        for child in ex.stats()["children"].values():
            assert child["sections_evicted"] > 300
            slot = child["graph_slots"]["primary"]
            assert slot["retired"] <= slot["recordings"]


@everywhere
def test_eight_threads_on_one_executor_get_what_one_thread_gets(providers: list[Any]) -> None:
    places = "p = Relu(a) z = NonZero(p) f = Cast<to=1>(z) s = ReduceSum<keepdims=0>(f) b = Add(a, s)"
    model = text(f"t = Tanh(x) e = Exp(t) {chain('e', 'a', 'p')} {places} {chain('b', 'y', 'q')}")
    with executor(model, capture=False) as alone:
        want = {(s, n): bits(alone.run({"x": x(s, n)})) for s in range(4) for n in (2, 3)}
    wrong: list[Any] = []
    start = threading.Barrier(8)
    with executor(model, providers) as ex:

        def work(seed: int) -> None:
            try:
                start.wait()
                for k in range(40):
                    s, n = (seed + k) % 4, 2 + (seed + k // 3) % 2
                    got = ex.run({"x": x(s, n)}, graph_slot=("primary", "verify")[seed % 2])
                    if bits(got) != want[s, n]:
                        wrong.append((s, n))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []
        for name in ("primary", "verify"):
            assert sum(s["replays"] for s in slots(ex, name).values()) > 100


# -- state -----------------------------------------------------------------------------------------------------------
DECODER = text(
    f"{chain('x', 'q', 'p')} present = Concat<axis=0>(past, q) t = Transpose<perm=[1, 0]>(present)"
    f" scores = MatMul(q, t) p = Softmax<axis=-1>(scores) m = MatMul(p, present) e = Exp(p)"
    f" s = ReduceSum<keepdims=0>(e) n = Tanh(m) b = Add(n, s) {chain('b', 'y', 'r')}",
    "float[past_rows, 4] past, float[rows, 4] x",
    "float[rows, 4] y, float[all_rows, 4] present",
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["primary", "verify"]), st.integers(1, 3), st.integers(1, 6)),
        st.tuples(st.just("rewind"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
    ),
    min_size=2,
    max_size=10,
)


@everywhere
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts=ACTS, capacity=st.sampled_from([None, 64]))
def test_decoding_and_verifying_over_one_state_give_the_bits_of_eager_steps(
    providers: list[Any], acts: list[tuple[str, int, int]], capacity: int | None
) -> None:
    with (
        executor(DECODER, providers, verify_decode_memo=True) as ex,
        executor(DECODER, capture=False, decode_memo=False) as eager,
    ):
        for each in (ex, eager):
            each.bind_state({"past": "present"}, capacity=capacity)
        seed = 0
        for act, rows, repeats in acts:
            if act == "reset":
                ex.reset_state()
                eager.reset_state()
                continue
            if act == "rewind":
                length = max(0, ex.state_length() - rows)
                ex.rewind_state(length)
                eager.rewind_state(length)
                continue
            for _ in range(repeats):
                if capacity is not None and ex.state_length() + rows > capacity:
                    break
                seed += 1
                got = ex.run({"x": x(seed, rows)}, graph_slot=act)
                assert bits(got) == bits(eager.run({"x": x(seed, rows)})), (act, rows, seed)
        assert ex.state_length() == eager.state_length()
        assert bits(ex.read_state()) == bits(eager.read_state())


@everywhere
def test_what_grows_with_a_state_is_a_seam_and_the_rest_is_replayed(providers: list[Any]) -> None:
    with executor(DECODER, providers) as ex, executor(DECODER, capture=False) as eager:
        for each in (ex, eager):
            each.bind_state({"past": "present"}, capacity=32)
        for seed in range(20):
            assert bits(ex.run({"x": x(seed, 1)})) == bits(eager.run({"x": x(seed, 1)}))
        found = list(slots(ex).values())
        assert any("growing-symbol" in slot["seams"] for slot in found)
        assert max(slot["replays"] for slot in found) >= 8
        assert max(slot["recordings"] for slot in found) < 12


# -- anything --------------------------------------------------------------------------------------------------------
STEPS = st.lists(
    st.tuples(st.sampled_from(["primary", "verify", "mine"]), st.sampled_from([1, 2, 3]), st.integers(1, 4)),
    min_size=2,
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rich_models(max_steps=8), STEPS, st.booleans(), st.sampled_from([0, 64 << 10]), st.sampled_from([2, 16])
)
def test_graph_slots_that_take_turns_with_shapes_that_come_and_go_give_the_bits_of_eager_steps(
    model: RandomModel, steps: list[tuple[str, int, int]], split: bool, stage_bytes: int, kept: int
) -> None:
    providers: list[Any] = shuffled(model.proto) if split else ["cpu"]
    options = RuntimeOptions(stage_bytes=stage_bytes, max_specializations=kept, verify_decode_memo=True)
    plain = RuntimeOptions(capture=False, decode_memo=False)
    with (
        HeterogeneousExecutor(model.proto, providers, children="inline", options=options) as ex,
        HeterogeneousExecutor(model.proto, ["cpu"], children="inline", options=plain) as eager,
    ):
        batch: dict[str, int] = {}
        returned: list[tuple[dict[str, Any], dict[str, bytes]]] = []
        mine: dict[tuple[str, int], np.ndarray] = {}
        for seed, (slot, start, repeats) in enumerate(steps):
            for k in range(repeats):
                # a slot grows from where it stood, or begins again
                batch[slot] = start if start < 3 else batch.get(slot, 0) + 1
                n, draw = batch[slot], np.random.default_rng(seed * 10 + k)
                feeds = {}
                for name in ("x", "y", "unused"):
                    feeds[name] = mine.setdefault((name, n), np.empty((n, N, N), np.float32))
                    feeds[name][...] = draw.standard_normal((n, N, N))
                got = ex.run(feeds, graph_slot=slot)
                assert bits(got) == bits(eager.run(feeds)), (slot, n)
                # what only rearranges a feed may share its memory
                own = {
                    o: v for o, v in got.items() if not any(np.shares_memory(v, f) for f in feeds.values())
                }
                returned.append((own, bits(own)))
        assert all(bits(outputs) == before for outputs, before in returned)
