"""A step that fails: the error says where, goes through pickle, leaves nothing behind and the executor usable."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from hetero.errors import GuardError, HeteroError, InputError, KernelError, MemoryLimitError
from tests.acceptance.harness import NAMES, PROVIDERS, executor, held

BROKEN = {
    "index out of range": ("y = Gather(a, i)", [0], [7]),
    "index far below zero": ("y = Gather(a, i)", [-1], [-7]),
    "reshape that does not divide": ("y = Reshape(a, i)", [-1], [-1, 2]),
    "reshape with two unknowns": ("y = Reshape(a, i)", [-1], [-1, -1]),
    "reshape to less than nothing": ("y = Reshape(a, i)", [-1], [-5]),
    "expand that does not broadcast": ("y = Expand(a, i)", [1], [4]),
    "negative fill": ("y = ConstantOfShape(i)", [1], [-2]),
    "fill beyond memory": ("y = ConstantOfShape(i)", [1], [2**40, 2**20]),
    "tile beyond memory": ("y = Tile(a, i)", [1], [2**50]),
    "range that never ends": ("s = Squeeze(i) o = Constant<value_int=0>() y = Range(o, s, o)", None, [3]),
    "more than there is": ("y, z = TopK(a, i)", [1], [10]),
    "parts that do not add up": ("y = SplitToSequence(a, i)", [1, 2], [1, 1]),
    "an axis twice": ("y = Unsqueeze(a, i)", [0], [0, 0]),
    "an axis that is not there": ("y = Unsqueeze(a, i)", [0], [9]),
    "an axis that is not 1": ("y = Squeeze(a, i)", None, [0]),
    "pads for another rank": ("y = Pad(a, i)", [1, 1], [1]),
    "a step of zero": ("o = Constant<value_ints=[0]>() y = Slice(a, o, i, o, i)", [1], [0]),
    "scatter out of range": ("u = Constant<value_floats=[1.0]>() y = ScatterElements(a, i, u)", [0], [7]),
    "no such element": ("s = SequenceConstruct(a, a) p = Squeeze(i) y = SequenceAt(s, p)", [0], [3]),
    "lengths that meet nowhere": ("z = NonZero(i) f = Cast<to=1>(z) w = Squeeze(f) y = Add(a, w)", [1, 1, 1], [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("providers", PROVIDERS, ids=NAMES)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_kernel_that_fails_is_named_and_leaves_nothing_behind(broken: str, providers: list[Any]) -> None:
    nodes, good, bad = BROKEN[broken]
    x = np.arange(3, dtype=np.float32)
    with executor(f"g (float[m] x, int64[k] i) => (y) {{ a = Exp(x) {nodes} }}", providers) as ex:
        levels = []
        for _ in range(3):
            if good is not None:
                ex.run({"x": x, "i": np.array(good)})
            with pytest.raises((KernelError, MemoryLimitError, GuardError)) as caught:
                ex.run({"x": x, "i": np.array(bad)})
            error = caught.value
            assert error.node
            assert error.op
            assert error.device in ("cpu", "sim:0")
            assert error.step
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
            del caught, error, again
            levels.append(held(ex))
        assert levels[1] == levels[2]
        assert all(steps == 0 for steps, _ in levels[2].values())


def test_work_that_a_failed_step_left_on_the_stream_does_not_fail_the_next_step() -> None:
    text = "g (float[m] x, int64[k] i, int64[j] s) => (float[k] y, z) { y = Gather(x, i) z = Reshape(x, s) }"
    x = np.ones(3, np.float32)
    with executor(text, ["sim:0"]) as ex:
        ex.run({"x": x, "i": np.array([0]), "s": np.array([3])})
        before = held(ex)
        for index, shape, op in (
            ([9], [-7], "Reshape"),
            ([0], [3], None),
            ([9], [3], "Gather"),
        ):
            feeds = {"x": x, "i": np.array(index), "s": np.array(shape)}
            if op is None:
                ex.run(feeds)
            else:
                with pytest.raises(KernelError) as caught:
                    ex.run(feeds)
                assert caught.value.op == op
                del caught
            assert held(ex) == before


def test_a_step_beyond_a_devices_memory_names_what_did_not_fit_and_gives_the_rest_back() -> None:
    text = "g (float[n] x) => (float[n] y) { a = Exp(x) b = Tanh(a) c = Add(a, b) y = Sub(c, a) }"
    with executor(text, [("sim:0", {"memory_limit_bytes": 8000})]) as ex:
        ex.run({"x": np.ones(100, np.float32)})
        level = held(ex)
        for n, operand in ((1000, None), (10000, "x"), (600, None)):
            with pytest.raises(MemoryLimitError) as caught:
                ex.run({"x": np.ones(n, np.float32)})
            assert caught.value.device == "sim:0"
            assert caught.value.op or caught.value.operand == operand
            assert isinstance(pickle.loads(pickle.dumps(caught.value)), MemoryLimitError)
            del caught
            ex.run({"x": np.ones(100, np.float32)})
            assert held(ex) == level


@pytest.mark.parametrize("names", ["y", 5, ["nothing"], [None]])
def test_output_names_that_cannot_be_meant_are_an_input_error(names: Any) -> None:
    with (
        executor("g (float[n] x) => (float[n] y) { y = Neg(x) }") as ex,
        pytest.raises(InputError, match="output"),
    ):
        ex.run({"x": np.ones(2, np.float32)}, output_names=names)


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((2, 3), ">f4"), np.ones((2, 3), object), np.ones((2, 3)), np.ones(3, np.float32),
        np.ones((2, 4), np.float32),
        np.ma.masked_array(np.ones((2, 3), np.float32), mask=True), None, "x", {}, np.ones((2, 3), np.complex64),
    ],
    ids=["byte order", "objects", "float64", "rank", "extent", "masked", "None", "text", "dict", "complex"],
)  # fmt: skip
def test_a_feed_that_does_not_fit_is_refused_before_anything_runs(bad: Any) -> None:
    with executor("g (float[n, 3] x) => (float[n, 3] y) { y = Neg(x) }", ["sim:0"]) as ex:
        with pytest.raises(HeteroError, match="'x'") as caught:
            ex.run({"x": bad})
        assert isinstance(caught.value, InputError)
        assert ex.stats()["children"]["sim:0"]["calls"] == 0
