"""Values bound as state stay on their child between steps, grow in place, and come back when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import InputError, KernelError, OptionError, StateError
from hetero.runtime.state import StateChange

HEAD = '<ir_version: 10, opset_import: ["" : 24]> '
CACHE = HEAD + (
    "g (float[b, n, 4] x, float[b, 2, past, 4] past_k, int64[k] pick) =>"
    " (float[b, 2, n, 4] y, float[b, 2, total, 4] present_k, float[k, 2, n, 4] z) {"
    " ones = Constant<value_ints=[0, 0, 2, 4]>() ends = Constant<value_ints=[1]>() wide = Unsqueeze(x, ends)"
    " two = Concat<axis=1>(wide, wide) new = Tanh(two) present_k = Concat<axis=2>(past_k, new)"
    " kt = Transpose<perm=[0, 1, 3, 2]>(present_k) scores = MatMul(new, kt) p = Softmax<axis=-1>(scores)"
    " y = MatMul(p, present_k) z = Gather<axis=0>(y, pick) }"
)
SUM = (
    HEAD
    + "g (float[b, 3] x, float[b, 3] h) => (float[b, 3] y, float[b, 3] h2) { s = Add(x, h) h2 = Tanh(s) y = Neg(h2) }"
)
SCATTER = HEAD + (
    "g (float[b, 1, 2] x, float[b, 8, 2] cache, int64[b] at) => (float[b, 8, 2] y, float[b, 8, 2] cache2) {"
    " cache2 = TensorScatter<axis=1>(cache, x, at) y = Mul(cache2, cache2) }"
)
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax", "Tanh"]}), "cpu"]
PROVIDERS: dict[str, list[Any]] = {"cpu": ["cpu"], "sim": ["sim:0", "cpu"], "split": SPLIT}
PAIR = {"past_k": "present_k"}


def executor(text: str, providers: Sequence[Any], **options: Any) -> HeterogeneousExecutor:
    model = onnx.parser.parse_model(text)
    return HeterogeneousExecutor(model, providers, children="inline", options=RuntimeOptions(**options))


def tokens(b: int = 1, n: int = 1, seed: int = 0) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal((b, n, 4)).astype(np.float32)
    return {"x": x, "pick": np.array([0])}


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def providers(request: pytest.FixtureRequest) -> list[Any]:
    chosen: list[Any] = request.param
    return chosen


class Fed:
    """The same model with the past fed by hand."""

    def __init__(self, providers: Sequence[Any], b: int = 1) -> None:
        self.ex = executor(CACHE, providers)
        self.past = np.zeros((b, 2, 0, 4), np.float32)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        out = self.ex.run({**feeds, "past_k": self.past})
        self.past = out.pop("present_k")
        return out


def same(got: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    return got.keys() == want.keys() and all(got[k].tobytes() == want[k].tobytes() for k in want)


def copied(ex: HeterogeneousExecutor) -> int:
    return sum(child["state_bytes_copied"] for child in ex.stats()["children"].values())


@pytest.mark.parametrize(
    "options", [{}, {"capture": False, "decode_memo": False}, {"stage_bytes": 0}], ids=str
)
def test_a_cache_grows_in_place_and_gives_what_feeding_it_gives(
    providers: list[Any], options: dict[str, Any]
) -> None:
    fed = Fed(providers)
    with executor(CACHE, providers, **options) as ex, fed.ex:
        ex.bind_state(PAIR, capacity=64)
        assert same(ex.run(tokens(n=5)), fed.run(tokens(n=5)))
        for k in range(40):
            assert same(ex.run(tokens(seed=k)), fed.run(tokens(seed=k)))
            assert ex.state_length() == 6 + k
        assert copied(ex) == 0
        (state,) = ex.read_state().values()
        assert state.tobytes() == fed.past.tobytes()


def test_a_rewound_cache_goes_on_from_there(providers: list[Any]) -> None:
    fed = Fed(providers)
    with executor(CACHE, providers) as ex, fed.ex:
        ex.bind_state(PAIR, capacity=64)
        for k, back in enumerate((0, 2, 0, 0, 5, 1, 0, 0, 3)):
            assert same(ex.run(tokens(n=3, seed=k)), fed.run(tokens(n=3, seed=k)))
            ex.rewind_state(ex.state_length() - back)
            fed.past = fed.past[:, :, : fed.past.shape[2] - back]
        with pytest.raises(StateError, match="cannot go back to 100"):
            ex.rewind_state(100)


def test_before_the_first_step_and_after_a_reset_there_are_no_rows_and_going_back_to_none_is_fine(
    providers: list[Any],
) -> None:
    with executor(CACHE, providers) as ex:
        ex.bind_state(PAIR)
        for _ in range(2):
            assert ex.state_length() == 0
            ex.rewind_state(0)
            with pytest.raises(StateError, match="has 0 rows, and cannot go back to 1"):
                ex.rewind_state(1)
            ex.run(tokens(n=3))
            assert ex.state_length() == 3
            ex.reset_state()


def test_a_buffer_without_a_capacity_doubles_and_a_fixed_one_refuses(providers: list[Any]) -> None:
    fed = Fed(providers)
    with executor(CACHE, providers) as ex, fed.ex:
        ex.bind_state(PAIR)
        for k in range(3):
            assert same(ex.run(tokens(n=200, seed=k)), fed.run(tokens(n=200, seed=k)))
        ex.bind_state(PAIR, capacity=8)
        ex.run(tokens(n=5))
        with pytest.raises(StateError, match="needs 10 rows along axis 2, and its buffer has 8"):
            ex.run(tokens(n=5))
        assert ex.state_length() == 5, "the step that failed left nothing"
        ex.run(tokens(n=3))
        assert ex.state_length() == 8


def test_a_step_that_fails_leaves_the_state_as_it_was(providers: list[Any]) -> None:
    fed = Fed(providers)
    with executor(CACHE, providers) as ex, fed.ex:
        ex.bind_state(PAIR, capacity=32)
        for k in range(8):
            with pytest.raises(KernelError, match="indices"):
                ex.run({**tokens(seed=99), "pick": np.array([7])})
            assert ex.state_length() == k
            assert same(ex.run(tokens(seed=k)), fed.run(tokens(seed=k)))


def test_a_state_of_one_shape_is_replaced_by_each_good_step(providers: list[Any]) -> None:
    h = np.zeros((2, 3), np.float32)
    with executor(SUM, providers) as ex, executor(SUM, providers) as fed:
        ex.bind_state({"h": "h2"})
        for k in range(6):
            x = np.random.default_rng(k).standard_normal((2, 3)).astype(np.float32)
            want = fed.run({"x": x, "h": h})
            h = want.pop("h2")
            assert same(ex.run({"x": x}), want)
        assert ex.read_state()["h"].tobytes() == h.tobytes()
        ex.write_state({"h": np.ones((2, 3), np.float32)})
        want = fed.run({"x": x, "h": np.ones((2, 3), np.float32)})
        assert same(ex.run({"x": x}), {"y": want["y"]})


def test_a_fixed_cache_is_updated_in_place(providers: list[Any]) -> None:
    cache = np.zeros((2, 8, 2), np.float32)
    with executor(SCATTER, providers) as ex:
        ex.bind_state({"cache": "cache2"})
        for k in range(8):
            x = np.full((2, 1, 2), k + 1, np.float32)
            cache[:, k] = k + 1
            assert np.array_equal(ex.run({"x": x, "at": np.array([k, k])})["y"], cache**2)
        assert copied(ex) == 0
        assert all(c["sections_built"] <= 2 for c in ex.stats()["children"].values()), "nothing is bound anew"


def test_state_is_read_and_written_and_begins_anew(providers: list[Any]) -> None:
    with executor(CACHE, providers) as ex:
        ex.bind_state(PAIR, capacity=32)
        assert ex.read_state() == {}
        first = [ex.run(tokens(seed=k)) for k in range(4)]
        saved = ex.read_state()
        after = ex.run(tokens(seed=9))
        ex.write_state(saved)
        assert ex.state_length() == 4
        assert same(ex.run(tokens(seed=9)), after)
        ex.reset_state()
        assert all(same(ex.run(tokens(seed=k)), want) for k, want in enumerate(first))
        ex.reset_state()
        ex.run(tokens(b=3))  # another batch: another state
        assert ex.state_length() == 1
        ex.bind_state({})
        assert "present_k" in ex.run({**tokens(), "past_k": np.zeros((1, 2, 0, 4), np.float32)})


def test_feeds_of_another_batch_size_lose_no_state(providers: list[Any]) -> None:
    with executor(CACHE, providers) as ex:
        ex.bind_state(PAIR, capacity=32)
        with pytest.raises(KernelError):
            ex.run({**tokens(b=2), "pick": np.array([9])})  # a step that fails leaves nothing to lose
        for k in range(3):
            ex.run(tokens(seed=k))
        saved = ex.read_state()
        message = r"b = 1, and the feeds have b = 3; reset_state\(\) begins a new one"
        for _ in range(2):
            with pytest.raises(StateError, match=message):
                ex.run(tokens(b=3))
        assert ex.state_length() == 3
        assert all(np.array_equal(saved[name], value) for name, value in ex.read_state().items())
        after = ex.run(tokens(seed=3))
        ex.write_state(saved)
        with pytest.raises(StateError, match=message):
            ex.run(tokens(b=3))
        assert same(ex.run(tokens(seed=3)), after)
        ex.reset_state()
        ex.run(tokens(b=3))
        assert ex.state_length() == 1


def test_what_cannot_be_bound_fed_or_asked_for_is_refused() -> None:
    with executor(CACHE, ["cpu"]) as ex:
        for pairs, message in (
            ({"nothing": "present_k"}, "no such value.*nothing"),
            ({"past_k": "nothing"}, "no such value.*nothing"),
            ({"x": "present_k"}, "cannot be the next"),
            ({"pick": "y"}, "cannot be the next"),
        ):
            with pytest.raises(StateError, match=message):
                ex.bind_state(pairs)
        with pytest.raises(OptionError, match="capacity"):
            ex.bind_state(PAIR, capacity=0)
        with pytest.raises(StateError, match="no state is bound"):
            ex.state_length()
        ex.bind_state(PAIR)
        with pytest.raises(InputError, match="cannot be fed"):
            ex.run({**tokens(), "past_k": np.zeros((1, 2, 0, 4), np.float32)})
        with pytest.raises(InputError, match="read_state returns them"):
            ex.run(tokens(), output_names=["present_k"])
        with pytest.raises(StateError, match="must be float32"):
            ex.write_state({"past_k": np.zeros((1, 2, 0), np.float32)})
        with pytest.raises(StateError, match="not bound"):
            ex.write_state({"x": np.zeros(1)})


def test_submitted_steps_take_turns_in_order() -> None:
    fed = Fed(["cpu"])
    with executor(CACHE, ["cpu"]) as ex, fed.ex:
        ex.bind_state(PAIR)
        futures = [ex.submit(tokens(seed=k)) for k in range(8)]
        assert all(same(f.result(timeout=60), fed.run(tokens(seed=k))) for k, f in enumerate(futures))


def test_a_step_that_outgrew_a_buffer_draws_what_it_draws_with_room_enough() -> None:
    text = HEAD + (
        "g (float[b, n, 4] x, float[b, past, 4] old) => (float[b, n, 4] y, float[b, total, 4] new) {"
        " r = RandomUniformLike(x) y = Add(x, r) new = Concat<axis=1>(old, y) }"
    )
    with executor(text, ["cpu"]) as elastic, executor(text, ["cpu"]) as roomy:
        elastic.bind_state({"old": "new"})
        roomy.bind_state({"old": "new"}, capacity=2000)
        for _ in range(4):
            x = {"x": np.zeros((1, 300, 4), np.float32)}
            assert same(elastic.run(x), roomy.run(x))


def test_a_copy_of_all_that_a_child_keeps_brings_it_back() -> None:
    from hetero.runtime.children import InlineChildren

    with executor(CACHE, ["sim:0", "cpu"]) as ex:
        ex.bind_state(PAIR)  # of 256 rows, and doubled
        ex.run(tokens(n=200))
        ex.run(tokens(n=100))
        children = ex._children
        assert isinstance(children, InlineChildren)
        (child,) = (c for c in children._children.values() if c.stats()["state_bytes"])
        copied = child.copy_state()
        want = ex.read_state()["past_k"].tobytes()
        assert [s.spec.shape[2] for s in copied.specs] == [512]
        ex.run(tokens(n=7))
        child.restore_state(copied)  # into the same buffers
        assert child.change_state(StateChange(read=True))["past_k"].tobytes() == want
        child.bind_state((), ())
        child.restore_state(copied)  # into new ones
        assert child.change_state(StateChange(read=True))["past_k"].tobytes() == want


@pytest.mark.parametrize(
    "chosen",
    [["cpu"], [("cpu", {"except_ops": ["Neg"]}), "sim:0"], [("sim:0", {"except_ops": ["Neg"]}), "cpu"]],
    ids=["cpu", "made on cpu", "made on sim"],
)
def test_a_past_may_be_read_elsewhere_too_and_returned_as_it_is(chosen: list[Any]) -> None:
    text = HEAD + (
        "g (float[1, n, 4] x, float[1, past, 4] old) => (float[1, past, 4] y, float[1, past, 4] z,"
        " float[1, total, 4] new) { new = Concat<axis=1>(old, x) y = Neg(old) z = Identity(old) }"
    )
    with executor(text, chosen) as ex:
        ex.bind_state({"old": "new"}, capacity=16)
        old = np.zeros((1, 0, 4), np.float32)
        for k in range(10):
            x = np.full((1, 1, 4), k + 1, np.float32)
            assert same(ex.run({"x": x}), {"y": -old, "z": old})
            old = np.concatenate([old, x], axis=1)
