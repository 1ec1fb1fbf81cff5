"""What declared types already contradict in If, Loop and Scan is refused before anything runs, with names."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor
from hetero.errors import HeteroError
from hetero.program.control import conflict
from hetero.types import DataType, OptionalType, SequenceType, TensorType

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'


def build(text: str) -> HeterogeneousExecutor:
    return HeterogeneousExecutor(onnx.parser.parse_model(HEAD + text), providers=["cpu"], children="inline")


def loop(outputs: str, nodes: str, *, inputs: str = "int64 i, bool c, float[2] a", M: str = "int64 M") -> str:
    return (
        f"g ({M}, bool t, float[2] x) => (float[2] y) {{ [walk] y = Loop (M, t, x)"
        f" <body = body ({inputs}) => ({outputs}) {{ {nodes} }}> }}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (loop("bool c, float[2] q, float[2] z", "q = Add(a, a) z = Neg(a)"), "wrong output count 1"),
        (loop("bool c", ""), "wrong output count 1"),
        (loop("float[2] q, float[2] r", "q = Add(a, a) r = Neg(a)"), "condition 'q' must be one bool"),
        (loop("bool[2] q, float[2] r", "q = IsNaN(a) r = Neg(a)"), r"condition 'q' must be one bool, but is bool\[2\]"),
        (loop("bool c, int64[2] q", "q = Cast<to=7>(a)"), r"carried value 0 is float\[2\].*'q' as int64\[2\]"),
        (loop("bool c, seq(float[2]) q", "q = SequenceConstruct(a)"), "Sequence"),
        (loop("bool c, float[2] q", "q = Add(x, x)", inputs="int64 i, bool c"), "body takes 2 inputs instead of 3"),
        (loop("bool c, float[2] q", "q = Neg(a)", M="float M"), "M must be one int64, but is float"),
        (loop("bool c, float[2] q", "q = Neg(a)", M="int64[2] M"), r"M must be one int64, but is int64\[2\]"),
    ],
)  # fmt: skip
def test_a_bad_loop_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(HeteroError, match=message) as caught:
        build(text)
    assert caught.value.node == "walk"


def branches(then: str, other: str) -> str:
    return (
        "g (bool c, float[2] x) => (float[2] y) { [fork] y = If (c)"
        f" <then_branch = t () => {then}, else_branch = e () => {other}> }}"
    )


NEG = "(float[2] a) { a = Neg(x) }"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("(int64[2] b) { b = Cast<to=7>(x) }", r"float\[2\] \('a'\) of then_branch, but int64\[2\] \('b'\) of else"),
        ("(seq(float[2]) b) { b = SequenceConstruct(x) }", r"'a'\) of then_branch, but seq\(float\[2\]\) \('b'\)"),
        ("(float[2] b, float[2] d) { b = Neg(x) d = Abs(x) }", "else_branch gives 2"),
    ],
)  # fmt: skip
def test_branches_that_disagree_are_refused_by_name(other: str, message: str) -> None:
    for text in (branches(NEG, other), branches(other, NEG)):
        with pytest.raises(HeteroError, match="If") as caught:
            build(text)
        assert caught.value.node == "fork"
    with pytest.raises(HeteroError, match=message):
        build(branches(NEG, other))


def scan(attributes: str, x: str = "float[3] x", w: str = "float[3] w") -> str:
    return (
        f"g (float s0, {x}, {w}) => (float s, float[k] y) {{ [walk] s, y = Scan (s0, x, w) <{attributes}"
        " body = body (float a, float e, float g) => (float b, float o) { b = Add(a, e) o = Add(b, g) }> }"
    )


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("num_scan_inputs=0,", "num_scan_inputs must be from 1 to 3, is 0"),
        ("num_scan_inputs=-1,", "num_scan_inputs must be from 1 to 3, is -1"),
        ("num_scan_inputs=4,", "num_scan_inputs must be from 1 to 3, is 4"),
        ("num_scan_inputs=2, scan_input_axes=[0],", "scan_input_axes has 1 entries for 2 values"),
        ("num_scan_inputs=2, scan_input_directions=[0],", "scan_input_directions has 1 entries for 2 values"),
        ("num_scan_inputs=2, scan_output_axes=[0, 0],", "scan_output_axes has 2 entries for 1 values"),
        ("num_scan_inputs=2, scan_input_axes=[0, 1],", "axis 1 is out of range for 'g' of rank 1"),
        ("num_scan_inputs=2, scan_input_axes=[-2, 0],", "axis -2 is out of range for 'e' of rank 1"),
        ("num_scan_inputs=2, scan_output_axes=[1],", "axis 1 is out of range for the stacked 'o' of rank 1"),
        ("num_scan_inputs=2, scan_output_directions=[2],", "0 .forwards. or 1 .backwards."),
    ],
)  # fmt: skip
def test_bad_attributes_of_a_scan_are_refused_by_name(attributes: str, message: str) -> None:
    with pytest.raises(HeteroError, match=message) as caught:
        build(scan(attributes))
    assert caught.value.op == "Scan"


def test_a_scan_without_num_scan_inputs_is_refused_by_name() -> None:
    with pytest.raises(HeteroError, match="num_scan_inputs"):
        build(scan(""))


def test_lengths_that_disagree_are_refused_where_they_are_declared_and_else_when_they_are_seen() -> None:
    with pytest.raises(HeteroError, match="'e' has 3, 'g' has 4"):
        build(scan("num_scan_inputs=2,", w="float[4] w"))
    x, w = np.ones(3, np.float32), np.ones(4, np.float32)
    with build(scan("num_scan_inputs=2,", x="float[m] x", w="float[n] w")) as ex:
        for _ in range(2):
            with pytest.raises(HeteroError, match="'e': 3, 'g': 4") as caught:
                ex.run({"s0": np.float32(0), "x": x, "w": w})
            assert caught.value.node == "walk"
        assert ex.run({"s0": np.float32(0), "x": x, "w": x})["y"].tolist() == [2, 3, 4]


def test_a_condition_that_turns_out_to_be_two_booleans_is_an_error_that_leaves_the_executor_usable() -> None:
    text = (
        "g (int64 M, bool[n] k, bool t, float[2] x) => (float[2] y) { [walk] y = Loop (M, t, x)"
        " <body = body (int64 i, bool c, float[2] a) => (bool[m] d, float[2] q) { d = Not(k) q = Add(a, a) }> }"
    )
    feeds = {"M": np.array(2), "t": np.array(True), "x": np.ones(2, np.float32)}
    with build(text) as ex:
        for _ in range(2):
            with pytest.raises(HeteroError, match=r"one boolean, but is bool\[2\]") as caught:
                ex.run({**feeds, "k": np.zeros(2, np.bool_)})
            assert (caught.value.node, caught.value.operand) == ("walk", "d")
        assert ex.run({**feeds, "k": np.zeros(1, np.bool_)})["y"].tolist() == [4, 4]


def test_a_scan_output_that_changes_its_shape_is_an_error_that_leaves_the_executor_usable() -> None:
    text = (
        "g (int64 M, float[n] x) => (float[m] y, float[k, j] z) { [walk] y, z = Loop (M, \"\", x)"
        " <body = body (int64 i, bool c, float[p] v) => (bool c, float[q] w, float[r] u)"
        " { w = Concat<axis=0>(v, v) u = Neg(v) }> }"
    )  # fmt: skip
    x = np.ones(2, np.float32)
    with build(text) as ex:
        with pytest.raises(
            HeteroError, match=r"'u' changes between iterations: float32\[2\], then float32\[4\]"
        ):
            ex.run({"M": np.array(3), "x": x})
        assert ex.run({"M": np.array(1), "x": x})["z"].tolist() == [[-1, -1]]


FLOAT, INT = TensorType(DataType.FLOAT, (2,)), TensorType(DataType.INT64, None)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (None, FLOAT, False),
        (FLOAT, TensorType(DataType.FLOAT, None), False),
        (FLOAT, TensorType(None), False),
        (FLOAT, INT, True),
        (SequenceType(FLOAT), FLOAT, True),
        (SequenceType(FLOAT), SequenceType(INT), True),
        (SequenceType(FLOAT), SequenceType(FLOAT), False),
        (OptionalType(FLOAT), FLOAT, False),
        (INT, OptionalType(FLOAT), True),
        (OptionalType(SequenceType(FLOAT)), OptionalType(FLOAT), True),
    ],
)
def test_types_conflict_where_no_value_can_have_both(a: object, b: object, found: bool) -> None:
    assert conflict(a, b) is found  # type: ignore[arg-type]
