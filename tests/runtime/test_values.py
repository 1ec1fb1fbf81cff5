"""Slots that hold sequences, optionals or nothing: handles are shared, element bytes never move."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.types import SequenceValue
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_sequence_holds_the_very_arrays_it_was_made_of() -> None:
    r = rig(HEAD + "g (float[2] x, float[2] y) => (seq(float[2]) s) { s = SequenceConstruct(x, y) }")
    x, y = f32(1, 2), f32(3, 4)
    for _ in range(2):
        (s,) = r(x, y)
        assert isinstance(s, SequenceValue)
        assert len(s) == 2
        assert s[0] is x
        assert s[1] is y


def test_an_element_taken_out_is_the_element_that_went_in() -> None:
    r = rig(
        HEAD + "g (seq(float[2]) s, float[2] x) => (float[2] e, int64 n) { one = Constant<value_int=1>()"
        " t = SequenceInsert(s, x, one) e = SequenceAt(t, one) n = SequenceLength(t) }"
    )
    x = f32(5, 6)
    e, n = r(SequenceValue([f32(1, 2), f32(3, 4)]), x)
    assert np.shares_memory(e, x)
    assert n == 3


def test_a_computed_value_kept_in_a_sequence_is_not_overwritten_by_later_ones() -> None:
    steps = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(20))
    r = rig(
        HEAD + "g (float[2] x) => (seq(float[2]) s, float[2] y) { v0 = Abs(x) kept = Exp(v0)"
        f" s = SequenceConstruct(kept, v0) {steps} y = Add(v20, kept) }}"
    )
    for value in (1.0, 2.0):
        s, y = r(f32(value, 0))
        assert s[0] == pytest.approx(np.exp(f32(value, 0)))
        assert np.array_equal(s[1], f32(value, 0))
        assert np.array_equal(y, f32(value, 0) + s[0])


def test_split_to_sequence_yields_views_of_its_input() -> None:
    r = rig(
        HEAD
        + "g (float[4] x) => (seq(float[2]) s) { two = Constant<value_int=2>() s = SplitToSequence(x, two) }"
    )
    x = f32(1, 2, 3, 4)
    (s,) = r(x)
    assert [list(e) for e in s] == [[1, 2], [3, 4]]
    assert all(np.shares_memory(e, x) for e in s)


def test_a_bad_index_is_an_error_that_names_the_node() -> None:
    r = rig(
        HEAD + "g (seq(float[2]) s, int64 i) => (float[2] e) { [look] e = SequenceAt(s, i) }",
    )
    with pytest.raises(KernelError, match=r"look.*SequenceAt"):
        r(SequenceValue([f32(1, 2)]), np.array(4))
    assert list(r(SequenceValue([f32(1, 2)]), np.array(-1))[0]) == [1, 2]


def test_an_optional_may_hold_a_tensor_or_nothing() -> None:
    r = rig(HEAD + "g (optional(float[2]) o) => (bool has) { has = OptionalHasElement(o) }")
    for _ in range(2):
        assert r(f32(1, 2))[0]
        assert not r(None)[0]


def test_an_omitted_operand_is_nothing() -> None:
    r = rig(HEAD + 'g (float[4] x, float high) => (float[4] y) { y = Clip(x, "", high) }')
    assert list(r(f32(-1, 0, 1, 2), np.array(1, np.float32))[0]) == [-1, 0, 1, 1]


def test_an_empty_sequence_keeps_its_type() -> None:
    r = rig(HEAD + "g (float[2] x) => (seq(float[2]) s) { s = SequenceEmpty() }")
    (s,) = r(f32(1, 2))
    assert len(s) == 0
    assert s.dtype == np.float32
