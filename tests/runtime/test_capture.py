"""Capture: what is recorded and replayed, what runs between, and who is kept out of recordings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import CaptureError, HeteroError, KernelError
from hetero.kernels.base import Call
from hetero.program.operation import Operation
from hetero.providers.base import Provider, ProviderConfig
from hetero.providers.cpu import CpuProvider
from hetero.providers.registry import resolve
from hetero.providers.simulated import SimulatedProvider
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.capture.schedule import Piece, cut
from hetero.types import TensorSpec
from tests.runtime.harness import Rig, rig

HEAD = '<ir_version: 10, opset_import: ["" : 21, "test" : 1]> '
everywhere = pytest.mark.parametrize("provider", ["cpu", "sim:0"])


def chain(first: str, last: str, prefix: str = "v", n: int = 9) -> str:
    """`n` MatMuls from value `first` to value `last`, which no tape takes, so that they are calls of their own."""
    names = [first, *(f"{prefix}{k}" for k in range(n - 1)), last]
    return " ".join(f"{b} = MatMul({a}, w)" for a, b in itertools.pairwise(names))


WEIGHT = "<float[4, 4] w = {0.5, 1, 0, 0, 0, 0.5, 1, 0, 0, 0, 0.5, 1, 1, 0, 0, 0.5}>"


def model(body: str, inputs: str = "float[n, 4] x", outputs: str = "y") -> str:
    return f"{HEAD} g ({inputs}) => ({outputs}) {WEIGHT} {{ {body} }}"


def x(seed: int = 0, rows: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def slot_of(r: Rig, name: str = "primary") -> GraphSlot:
    return r.runner.context.graph_slots[name]


def bits(values: list[Any]) -> list[bytes]:
    return [v.tobytes() for v in values]


# -- the schedule ----------------------------------------------------------------------------------------------------
@given(
    st.lists(st.sampled_from([None, SeamReason.SEQUENCE, SeamReason.CALLERS_MEMORY]), max_size=40),
    st.sets(st.integers(0, 39)),
    st.integers(1, 5),
)
def test_pieces_cover_all_calls_in_order_and_segments_hold_only_what_may_be_recorded(
    seams: list[SeamReason | None], barred: set[int], shortest: int
) -> None:
    pieces = cut(seams, lambda k: SeamReason.RECORDING_FAILED if k in barred else None, shortest)
    assert [k for p in pieces for k in range(p.first, p.last)] == list(range(len(seams)))
    assert all(a.reason is not b.reason for a, b in itertools.pairwise(pieces))
    for piece in pieces:
        calls = range(piece.first, piece.last)
        if piece.reason is None:
            assert len(piece) >= shortest
            assert all(seams[k] is None and k not in barred for k in calls)
        elif piece.reason is SeamReason.TOO_SHORT:
            assert all(seams[k] is None and k not in barred for k in calls)
        elif piece.reason is SeamReason.RECORDING_FAILED:
            assert all(seams[k] is None and k in barred for k in calls)
        else:
            assert all(seams[k] is piece.reason for k in calls)


def test_neighbours_that_are_too_short_for_a_segment_stay_with_their_reasons() -> None:
    seams = [None, None, SeamReason.SEQUENCE, None, None, None]
    assert cut(seams, lambda k: None, 3) == (
        Piece(0, 2, SeamReason.TOO_SHORT),
        Piece(2, 3, SeamReason.SEQUENCE),
        Piece(3, 6),
    )


# -- eager, record, replay -------------------------------------------------------------------------------------------
@everywhere
def test_the_first_run_is_eager_the_second_records_and_later_ones_replay(provider: str) -> None:
    r = rig(model(chain("x", "y")), provider)
    eager = rig(model(chain("x", "y")), provider, capture=False)
    seen = []
    for seed in range(4):
        assert bits(r(x(seed))) == bits(eager(x(seed)))
        s = slot_of(r)
        seen.append((s.eager_runs, s.recordings, s.replays, s.segments, s.captured_calls))
    assert seen == [(1, 0, 0, 0, 0), (1, 1, 1, 1, 9), (1, 1, 2, 1, 9), (1, 1, 3, 1, 9)]
    assert r.provider.stats()["graphs"] == 1
    assert r.provider.stats()["graph_launches"] == 3
    r.runner.close()
    assert r.provider.stats()["graphs"] == 0
    assert slot_of(r).retired == 1


@everywhere
def test_what_was_bound_before_it_ever_ran_is_warmed_up_before_it_is_recorded(provider: str) -> None:
    text = model(chain("x", "y"), "float[3, 4] x")
    r, eager = rig(text, provider), rig(text, provider, capture=False)
    r.runner.prepare()
    bound = r.runner.statistics.sections_built
    assert bound == (provider == "cpu")  # a device waits for its weights
    seen = []
    for seed in range(3):
        assert bits(r(x(seed))) == bits(eager(x(seed)))
        seen.append((slot_of(r).recordings, slot_of(r).replays))
    assert seen == [(0, 0), (1, 1), (1, 2)]


@everywhere
def test_a_captured_loop_of_results_fed_back_never_changes_what_was_returned(provider: str) -> None:
    r = rig(model(chain("x", "y")), provider)
    eager = rig(model(chain("x", "y")), provider, capture=False)
    value = want = x()
    kept = []
    for _ in range(6):
        (value,), (want,) = r(value), eager(want)
        kept.append((value, value.tobytes()))
        assert value.tobytes() == want.tobytes()
    assert all(array.tobytes() == before for array, before in kept)


@everywhere
@pytest.mark.parametrize("stage_bytes", [0, 64 << 10], ids=["in place", "staged"])
def test_an_array_that_its_owner_changes_is_read_again(provider: str, stage_bytes: int) -> None:
    r = rig(model(chain("x", "y")), provider, stage_bytes=stage_bytes)
    eager = rig(model(chain("x", "y")), provider, capture=False)
    mine = x()
    for k in range(5):
        mine[...] = x(k)
        assert bits(r(mine)) == bits(eager(x(k)))
        assert mine.tobytes() == x(k).tobytes()


# -- seams -----------------------------------------------------------------------------------------------------------
def replayed(r: Rig, eager: Rig, make: Callable[[int], list[Any]], runs: int = 5) -> GraphSlot:
    """Run both on inputs that differ in every run; their bits are the same. Returns the slot."""
    for seed in range(runs):
        assert bits(r(*make(seed))) == bits(eager(*make(seed))), seed
    return slot_of(r)


def around(middle: str) -> str:
    """A segment, what is under test (from value `a` to value `b`), and another segment."""
    return f"{chain('x', 'a', 'p', 12)} {middle} {chain('b', 'y', 'q', 12)}"


BRANCH = (
    "zero = Constant<value_float=0.0>() s = ReduceSum<keepdims=0>(a) go = Greater(s, zero)"
    " b = If(go) <then_branch = t () => (float[n, 4] u) { u = Neg(a) },"
    " else_branch = e () => (float[n, 4] v) { v = Abs(a) }>"
)
LOOP = (
    "two = Constant<value_int=2>() true = Constant<value=bool {1}>()"
    " b = Loop(two, true, a) <body = l (int64 i, bool c, float[n, 4] u) => (bool d, float[n, 4] v)"
    " { d = Identity(c) v = Add(u, a) }>"
)
ITEMS = (
    "at = Constant<value_int=1>() s0 = SequenceConstruct(a, x) s1 = SequenceInsert(s0, x)"
    " c = SequenceAt(s1, at) b = Add(c, a)"
)
PLACES = "p = Relu(a) z = NonZero(p) f = Cast<to=1>(z) s = ReduceSum<keepdims=0>(f) t = Tanh(s) b = Add(a, t)"
UNKNOWN = (
    "m = Abs(a) k = ReduceMax<keepdims=0>(m) big = Constant<value_float=9.0>() j = Min(k, big)"
    " one = Constant<value_int=1>() i = Cast<to=7>(j) c = Add(i, one) zero = Constant<value_int=0>()"
    " steps = Range(zero, c, one) f = Cast<to=1>(steps) s = ReduceSum<keepdims=0>(f) t = Tanh(s) b = Mul(a, t)"
)


@everywhere
@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (BRANCH, SeamReason.HOST_CONTROL_FLOW),
        (LOOP, SeamReason.HOST_CONTROL_FLOW),
        (ITEMS, SeamReason.SEQUENCE),
        (PLACES, SeamReason.DATA_DEPENDENT_SHAPE),
        (UNKNOWN, SeamReason.UNKNOWN_OPERAND),
    ],
    ids=["If", "Loop", "SequenceAt", "NonZero", "Range"],
)
def test_what_only_the_host_or_the_data_decide_runs_every_time_between_segments(
    provider: str, middle: str, reason: SeamReason
) -> None:
    r, eager = rig(model(around(middle)), provider), rig(model(around(middle)), provider, capture=False)
    slot = replayed(r, eager, lambda seed: [x(seed)], runs=12)
    assert slot.seams[reason] > 0
    assert slot.segments >= 2
    assert slot.replays > slot.recordings


@everywhere
def test_memory_of_the_callers_is_a_seam_between_segments(provider: str) -> None:
    text = model(f"{chain('x', 'y')} b = Add(y, c)", "float[n, 4] x, float[n, 4] c", "y, b")
    r, eager = rig(text, provider, stage_bytes=0), rig(text, provider, capture=False)
    slot = replayed(r, eager, lambda seed: [x(seed), x(seed + 9)])
    assert slot.seams[SeamReason.CALLERS_MEMORY] > 0
    assert slot.replays == (4 if slot.segments else 0)


def test_few_calls_in_a_row_are_called_one_by_one_where_a_launch_costs_more() -> None:
    r = rig(model(chain("x", "y", n=3)))
    slot = replayed(r, rig(model(chain("x", "y", n=3)), capture=False), lambda seed: [x(seed)])
    assert slot.seams == {SeamReason.TOO_SHORT: 3}
    assert (slot.segments, slot.replays, slot.eager_runs) == (0, 0, 5)


@everywhere
def test_what_grows_is_a_seam_and_the_rest_is_not_recorded_again(provider: str) -> None:
    text = model(
        f"p = Concat<axis=0>(past, x) s = Softmax<axis=0>(p) {chain('x', 'y')}",
        "float[t, 4] past, float[1, 4] x",
        "s, y",
    )
    r, eager = rig(text, provider), rig(text, provider, capture=False, decode_memo=False)
    for t in range(1, 9):
        feeds = [x(t, t), x(t, 1)]
        assert bits(r(*feeds)) == bits(eager(*feeds))
    slot = slot_of(r)
    assert slot.seams[SeamReason.GROWING_SYMBOL] > 0
    assert slot.recordings < 3
    assert slot.replays >= 3


# -- other shapes ----------------------------------------------------------------------------------------------------
@everywhere
def test_another_shape_is_right_at_once_and_shapes_that_alternate_both_replay(provider: str) -> None:
    r, eager = rig(model(chain("x", "y")), provider), rig(model(chain("x", "y")), provider, capture=False)
    for seed, rows in enumerate([3, 3, 3, 7, 7, 3, 7, 3, 7, 1, 3]):
        assert bits(r(x(seed, rows))) == bits(eager(x(seed, rows)))
    slot = slot_of(r)
    assert (slot.eager_runs, slot.recordings, slot.replays) == (3, 2, 8)
    assert slot.retired == 0


@everywhere
def test_another_dtype_is_right_at_once(provider: str) -> None:
    body = "a = Neg(x) b = Abs(a) c = Neg(b) d = Abs(c) e = Neg(d) f = Abs(e) g = Neg(f) h = Sign(g) y = Mul(h, x)"
    text = f"{HEAD} g (float[n] x) => (float[n] y) {{ {body} }}"
    r, eager = rig(text, provider), rig(text, provider, capture=False)
    for dtype in (np.float32, np.float32, np.int64, np.float32, np.int64, np.float64, np.float32):
        value = np.arange(-3, 3).astype(dtype)
        (got,), (want,) = r(value), eager(value)
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()


@everywhere
@pytest.mark.parametrize("decode_memo", [True, False])
def test_a_thousand_shapes_leave_a_bounded_number_of_graphs_and_sections(
    provider: str, decode_memo: bool
) -> None:
    options = {"max_specializations": 4, "kernel_cache_size": 64, "decode_memo": decode_memo}
    r = rig(model(chain("x", "y")), provider, **options)
    arena = []
    for k in range(1000):
        rows = 1 + (k * 37) % 1009  # every one of them once, in no order that grows
        for _ in range(2):
            (got,) = r(x(k, rows))
        assert got.shape == (rows, 4)
        assert len(r.runner.roots.sections) <= 4
        assert r.provider.stats()["graphs"] <= 4
        arena.append(r.runner.context.arena(0).nbytes)
    slot = slot_of(r)
    assert slot.recordings == slot.replays == 1000
    assert r.runner.statistics.sections_evicted == slot.retired == 996
    largest = 1009 * 16
    assert max(arena) <= 4 * 8 * largest


# -- graph slots -----------------------------------------------------------------------------------------------------
@everywhere
def test_a_graph_slot_has_counters_recordings_and_shapes_of_its_own(provider: str) -> None:
    r, eager = rig(model(chain("x", "y")), provider), rig(model(chain("x", "y")), provider, capture=False)
    for seed in range(3):
        assert bits(r(x(seed))) == bits(eager(x(seed)))
    before = slot_of(r).statistics()
    for name in ("verify", "draft of mine"):
        r.runner.context.drive(name)
        for seed in range(4):
            for rows in (3, 5):
                assert bits(r(x(seed, rows))) == bits(eager(x(seed, rows)))
        assert slot_of(r, name).replays > 0
    assert slot_of(r).statistics() == before
    r.runner.context.drive("primary")
    assert bits(r(x(9))) == bits(eager(x(9)))
    after = slot_of(r)
    assert (after.recordings, after.replays, after.eager_runs) == (1, before["replays"] + 1, 1)


@everywhere
def test_shapes_of_one_graph_slot_do_not_evict_those_of_another(provider: str) -> None:
    r = rig(model(chain("x", "y")), provider, max_specializations=3, decode_memo=False)
    for seed in range(3):
        r(x(seed))
    r.runner.context.drive("verify")
    for rows in range(4, 20):
        r(x(0, rows))
        r(x(1, rows))
    assert r.runner.statistics.sections_evicted == 14
    assert slot_of(r).retired == 0
    r.runner.context.drive("primary")
    r(x(4))
    assert (slot_of(r).recordings, slot_of(r).replays) == (1, 3)


@everywhere
@pytest.mark.parametrize("stage_bytes", [0, 64 << 10])
def test_growth_of_one_graph_slot_leaves_what_another_stands_on_as_it_is(
    provider: str, stage_bytes: int
) -> None:
    text = model(
        f"p = Concat<axis=0>(past, x) s = Softmax<axis=0>(p) {chain('x', 'y')}",
        "float[t, 4] past, float[1, 4] x",
        "s, y",
    )
    r = rig(text, provider, stage_bytes=stage_bytes, verify_decode_memo=True)
    eager = rig(text, provider, capture=False, decode_memo=False)
    for name, lengths in (
        ("primary", (1, 2, 3, 4, 5)),
        ("verify", (10, 11, 12, 13, 14, 5, 6)),  # meets primary's last length, and would grow it
        ("primary", (5, 5, 6, 7, 8)),
        ("verify", (6, 7, 8, 9)),
        ("primary", (8, 9)),
    ):
        r.runner.context.drive(name)
        for t in lengths:
            feeds = [x(t, t), x(t, 1)]
            assert bits(r(*feeds)) == bits(eager(*feeds)), (name, t)
    assert r.runner.statistics.memo_replayed > 0
    assert r.runner.statistics.memo_ineligible > 0


# -- ownership -------------------------------------------------------------------------------------------------------
@everywhere
def test_two_children_of_one_provider_never_meet_each_others_graphs(provider: str) -> None:
    (shared,) = resolve([provider])
    text = model(chain("x", "y"))
    a, b, eager = rig(text, shared), rig(text, shared), rig(text, provider, capture=False)
    for seed in range(4):
        assert bits(a(x(seed))) == bits(b(x(seed))) == bits(eager(x(seed)))
    assert shared.stats()["graphs"] == 2
    token = next(iter(a.runner.roots.sections.values())).captured["primary"].tokens[0]
    a.runner.close()
    assert shared.stats()["graphs"] == 1
    with pytest.raises(CaptureError, match="stale"):
        shared.launch(token)
    assert bits(b(x(9))) == bits(eager(x(9)))
    assert (slot_of(b).recordings, slot_of(b).replays) == (1, 4)


@everywhere
def test_a_shape_that_the_data_decide_is_recorded_when_it_comes_again(provider: str) -> None:
    text = model(f"p = Relu(x) z = NonZero(p) t = Transpose<perm=[1, 0]>(z) g = GatherND(x, t) {chain('x', 'y')}",
                 outputs="g, y")  # fmt: skip
    r, eager = rig(text, provider), rig(text, provider, capture=False)
    inputs = [np.where(np.arange(12).reshape(3, 4) < k, 1, -1).astype(np.float32) for k in (3, 5)]
    for k in (0, 1, 0, 1, 0, 0, 1, 1):
        feeds = inputs[k] * np.float32(k + 2)
        assert bits(r(feeds)) == bits(eager(feeds))
    assert r.runner.statistics.sections_built == 3, "before NonZero, and after it for each of two counts"
    assert slot_of(r).retired == 0


# -- quarantine ------------------------------------------------------------------------------------------------------
class _Breaking(Provider):
    """Operators of the types in `breaks` do something while they are recorded."""

    breaks: dict[str, Callable[[Provider], object]]

    def record(self, call: Call, op: Operation | None = None) -> None:
        if op is not None and op.op_type in self.breaks:
            self.breaks[op.op_type](self)
        super().record(call, op)  # type: ignore[safe-super]  # the provider's own, by the order of bases


class _BreakingCpu(_Breaking, CpuProvider):
    pass


class _BreakingSimulated(_Breaking, SimulatedProvider):
    pass


def breaking(name: str, **breaks: Callable[[Provider], object]) -> Provider:
    kind: Any = _BreakingCpu if name == "cpu" else _BreakingSimulated
    made: Any = kind(ProviderConfig(name))
    made.breaks = breaks
    return made  # type: ignore[no-any-return]


def fail(provider: Provider) -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


SPEC = TensorSpec(np.dtype(np.float32), (4,))
BREAKS: dict[str, Callable[[Provider], object]] = {
    "waits": lambda p: p.synchronize(),
    "takes": lambda p: p.take(64),
    "allocates": lambda p: p.empty(SPEC),
    "uploads": lambda p: p.upload(np.zeros(4, np.float32)),
    "fails": fail,
}


@everywhere
@pytest.mark.parametrize("what", BREAKS)
def test_an_operator_that_breaks_a_recording_is_kept_out_of_it_and_the_rest_is_recorded(
    provider: str, what: str
) -> None:
    text = model(around("t = Softmax(a) b = Mul(t, a)"))
    device = breaking(provider, Softmax=BREAKS[what])
    r, eager = rig(text, device), rig(text, provider, capture=False)
    slot = replayed(r, eager, lambda seed: [x(seed)])
    assert list(slot.quarantine) == ["Softmax"]
    assert slot.seams[SeamReason.RECORDING_FAILED] == 1
    assert (slot.failed_recordings, slot.recordings, slot.replays, slot.segments) == (1, 1, 4, 2)
    assert device.stats()["graphs"] == 2
    device.synchronize()  # would be refused while a recording is open
    device.give(device.take(64))


@everywhere
def test_two_operators_that_break_recordings_are_both_found(provider: str) -> None:
    text = model(around("t = Softmax(a) b = Elu(t)"))
    device = breaking(provider, Softmax=fail, Elu=lambda p: p.synchronize())
    slot = replayed(rig(text, device), rig(text, provider, capture=False), lambda seed: [x(seed)])
    assert set(slot.quarantine) == {"Softmax", "Elu"}
    assert "capturing" in slot.quarantine["Softmax"]
    assert (slot.failed_recordings, slot.recordings) == (2, 1)


@everywhere
def test_quarantine_lasts_for_other_shapes_and_is_the_graph_slots_own(provider: str) -> None:
    text = model(around("b = Softmax(a)"))
    tries: list[None] = []

    def counted(device: Provider) -> None:
        tries.append(None)
        fail(device)

    r = rig(text, breaking(provider, Softmax=counted))
    for rows in (3, 5):
        for seed in range(3):
            r(x(seed, rows))
    assert len(tries) == 1
    assert slot_of(r).failed_recordings == 1
    r.runner.context.drive("verify")
    r(x())
    assert len(tries) == 2
    assert slot_of(r, "verify").quarantine.keys() == slot_of(r).quarantine.keys()
    assert slot_of(r).failed_recordings == 1


@everywhere
def test_where_every_operator_breaks_recordings_all_run_eagerly(provider: str) -> None:
    device = breaking(provider, MatMul=fail)
    r, eager = rig(model(chain("x", "y")), device), rig(model(chain("x", "y")), provider, capture=False)
    slot = replayed(r, eager, lambda seed: [x(seed)])
    assert (slot.segments, slot.replays, slot.eager_runs) == (0, 0, 5)
    assert device.stats()["graphs"] == 0


class _StopError(BaseException):
    """Not an Exception: as Ctrl-C."""


@everywhere
def test_an_interrupt_while_recording_leaves_no_recording_open_and_blames_nobody(provider: str) -> None:
    def stop(device: Provider) -> None:
        raise _StopError

    device: Any = breaking(provider, Softmax=stop)
    text = model(around("b = Softmax(a)"))
    r = rig(text, device)
    r(x())
    with pytest.raises(_StopError):
        r(x())
    assert device.stats()["graphs"] == 0
    device.breaks = {}
    assert bits(r(x(3))) == bits(rig(text, provider, capture=False)(x(3)))
    assert slot_of(r).quarantine == {}
    assert (slot_of(r).recordings, slot_of(r).replays) == (1, 1)


# -- failures --------------------------------------------------------------------------------------------------------
@everywhere
def test_a_kernel_that_fails_in_a_segment_is_named_and_the_next_run_is_right(provider: str) -> None:
    body = f"{chain('x', 'a')} [pick] b = Gather(a, i) {chain('b', 'y', 'q')}"
    text = model(body, "float[n, 4] x, int64[2] i")
    r, eager = rig(text, provider), rig(text, provider, capture=False)
    good = np.array([2, 0])
    for seed in range(3):
        assert bits(r(x(seed), good)) == bits(eager(x(seed), good))
    assert slot_of(r).captured_calls == 19
    with pytest.raises(KernelError, match=r"pick|Gather") as caught:
        r(x(), np.array([0, 7]))
    assert (caught.value.op, caught.value.node) == ("Gather", "pick")
    for seed in range(3):
        assert bits(r(x(seed), good)) == bits(eager(x(seed), good))
    assert slot_of(r).recordings == 1


def test_a_fault_of_the_device_in_a_replay_is_its_runs_error_and_the_next_run_is_right() -> None:
    device = ("sim:0", {"faults": [("replay", 2, "error")]})
    r, eager = rig(model(chain("x", "y")), device), rig(model(chain("x", "y")), capture=False)
    r(x())
    r(x())
    with pytest.raises(HeteroError, match="replay 2"):
        r(x())
    assert bits(r(x(5))) == bits(eager(x(5)))


# -- bodies ----------------------------------------------------------------------------------------------------------
@everywhere
def test_each_branch_is_captured_for_itself_and_a_flipped_condition_holds_at_once(provider: str) -> None:
    text = model(
        "y = If(go) <then_branch = t () => (float[n, 4] u) {" + chain("x", "u", "t", 12) + "},"
        " else_branch = e () => (float[n, 4] v) { n0 = Neg(x) " + chain("n0", "v", "e", 12) + "}>",
        "float[n, 4] x, bool go",
    )
    r, eager = rig(text, provider, memo_if_bytes=0), rig(text, provider, capture=False, memo_if_bytes=0)
    for seed, go in enumerate([1, 1, 1, 0, 1, 0, 0, 0, 1, 0]):
        feeds = [x(seed), np.array(bool(go))]
        assert bits(r(*feeds)) == bits(eager(*feeds)), seed
    slot = slot_of(r)
    assert slot.segments == 2, "one per branch"
    assert slot.captured_calls >= 20, "all but those that touch what lies outside"
    assert slot.seams[SeamReason.HOST_CONTROL_FLOW] == 1


@everywhere
def test_a_loops_body_is_captured_once_and_replayed_in_every_iteration(provider: str) -> None:
    text = model(
        "y = Loop(n, go, x) <body = l (int64 i, bool c, float[m, 4] u) => (bool d, float[m, 4] v)"
        " { d = Identity(c) k = Cast<to=1>(i) s = Add(u, k) " + chain("s", "v", "l") + " }>",
        "float[m, 4] x, int64 n, bool go",
    )
    r, eager = rig(text, provider), rig(text, provider, capture=False)
    for seed, trips in enumerate([4, 1, 0, 6, 3]):
        feeds = [x(seed), np.array(trips), np.array(True)]
        assert bits(r(*feeds)) == bits(eager(*feeds)), seed
    slot = slot_of(r)
    assert slot.replays >= 10
    assert slot.segments <= 3
