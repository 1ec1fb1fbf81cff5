"""Obligations: what operators demand of input extents is known before anything runs, and says who said what."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero
from hetero.errors import GuardError

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'


def executor(text: str, providers: tuple[Any, ...] = ("cpu",)) -> hetero.HeterogeneousExecutor:
    return hetero.HeterogeneousExecutor(onnx.parser.parse_model(HEAD + text), providers, children="inline")


def refused(text: str, **shapes: tuple[int, ...]) -> str:
    """The guard's message for inputs of these shapes; nothing has run."""
    with executor(text, ("sim:0", "cpu")) as ex:
        with pytest.raises(GuardError) as caught:
            ex.run({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
        assert all(child["calls"] == 0 for child in ex.stats()["children"].values())
    return str(caught.value)


CASES = {
    "a reshape that cannot divide": (
        "g (float[n, 4] x) => (y) { s = Constant<value = int64[2] {3, -1}>() [bad] y = Reshape(x, s) }",
        {"x": (2, 4)},
        "a reshape cannot divide: the elements of 'x' is 4*n = 8, what the target shape asks for is 3; "
        "n is 2 by input 'x' axis 0 [node 'bad', op Reshape]",
    ),
    "a target shape that is computed": (
        "g (float[n, m] x, float[k] w) => (y) { s = Shape(w) one = Constant<value = int64[1] {2}>()"
        " t = Concat<axis = 0>(s, one) [bad] y = Reshape(x, t) }",
        {"x": (2, 3), "w": (4,)},
        "a reshape cannot keep the elements: the elements of 'x' is m*n = 6, what the target shape asks for is "
        "2*copied(k, n) = 8; k is 4 by input 'w' axis 0, m is 3 by input 'x' axis 1, n is 2 by input 'x' axis 0",
    ),
    "extents that do not broadcast": (
        "g (float[n] a, float[m] b) => (y) { c = Concat<axis = 0>(a, a) [bad] y = Add(c, b) }",
        {"a": (2,), "b": (3,)},
        "extents do not broadcast: axis 0 of 'c' is 2*n = 4, axis 0 of 'b' is m = 3; "
        "m is 3 by input 'b' axis 0, n is 2 by input 'a' axis 0 [node 'bad', op Add]",
    ),
    "a product": (
        "g (float[n, k] a, float[m, n] b) => (y) { [bad] y = MatMul(a, b) }",
        {"a": (2, 3), "b": (4, 2)},
        "inner extents of a product differ: axis 1 of 'a' is k = 3, axis 0 of 'b' is m = 4; "
        "k is 3 by input 'a' axis 1, m is 4 by input 'b' axis 0",
    ),
    "an extent without a name": (
        "g (float[?] a, float[5] b) => (y) { y = Add(a, b) }",
        {"a": (2,), "b": (5,)},
        "extents do not broadcast: axis 0 of 'a' is a[0] = 2, axis 0 of 'b' is 5; a[0] is 2 by input 'a' axis 0",
    ),
    "a declared output": (
        "g (float[n] x) => (float[n] y) { [cat] y = Concat<axis = 0>(x, x) }",
        {"x": (2,)},
        "the model declares another shape of 'y': axis 0 of 'y' is 2*n = 4, the declared one is n = 2; "
        "n is 2 by input 'x' axis 0 [node 'cat', op Concat]",
    ),
    "a declared output whose symbol another input holds": (
        "g (float[n] x, float[m] z) => (float[m] y, float[m] w) { y = Neg(x) w = Neg(z) }",
        {"x": (2,), "z": (3,)},
        "axis 0 of 'y' is n = 2, the declared one is m = 3",
    ),
    "a declared output that is an expression": (
        'g (float[n] x) => (float["n + 1"] y) { y = Concat<axis = 0>(x, x) }',
        {"x": (2,)},
        "axis 0 of 'y' is 2*n = 4, the declared one is n + 1 = 3",
    ),
    "a declared value inside": (
        "g (float[n] x) => (y) <float[n] c> { c = Concat<axis = 0>(x, x) y = Neg(c) }",
        {"x": (2,)},
        "axis 0 of 'c' is 2*n = 4, the declared one is n = 2",
    ),
    "a window": (
        "g (float[1, 2, h] x, float[3, 2, 5] w) => (y) { y = Conv(x, w) }",
        {"x": (1, 2, 4), "w": (3, 2, 5)},
        "a window does not fit: axis 2 of 'x' is h = 4, the least it may be is 5",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_contradiction_names_both_values_and_where_they_come_from(case: str) -> None:
    text, shapes, message = CASES[case]
    assert message in refused(text, **shapes)


def test_numbers_that_an_exporter_left_behind_are_not_held_against_the_inputs() -> None:
    text = "g (float[n] x) => (float[4] y) <float[2] c> { c = Neg(x) y = Concat<axis = 0>(c, c) }"
    with executor(text) as ex:
        assert ex.run({"x": np.zeros(3, np.float32)})["y"].shape == (6,)


def test_what_only_the_data_tell_is_left_to_the_run() -> None:
    text = "g (float[n] x, int64[2] s) => (y) { y = Reshape(x, s) }"
    with executor(text) as ex:
        assert ex.run({"x": np.zeros(6, np.float32), "s": np.array([2, 3])})["y"].shape == (2, 3)


def test_a_feed_that_was_refused_leaves_the_executor_usable() -> None:
    text = "g (float[n] a, float[m] b) => (y) { y = Add(a, b) }"
    with executor(text) as ex:
        for a, b in ((2, 2), (2, 3), (3, 3), (2, 3), (1, 3)):
            feeds = {"a": np.ones(a, np.float32), "b": np.ones(b, np.float32)}
            if a in (b, 1):
                assert ex.run(feeds)["y"].shape == (b,)
            else:
                with pytest.raises(GuardError, match="broadcast"):
                    ex.run(feeds)
