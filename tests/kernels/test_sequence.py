"""Sequences share their elements; every misuse is a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.types import SequenceValue, TensorSpec
from tests.kernels.harness import compile_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def run(op_type: str, inputs: list[Any], opset: int = 18, **attributes: Any) -> Any:
    _, compiled = compile_op(op_type, inputs, opset=opset, **attributes)
    assert compiled.run is not None
    assert compiled.capture is not None
    (result,) = compiled.run(inputs)
    return result


class Handle:
    """An element of some device: it has a dtype and a shape, and nothing can be read from it."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype, self.shape = np.dtype(dtype), (2,)


A, B, C = np.arange(2.0), np.arange(3.0), np.arange(4.0)


def elements(sequence: Any) -> list[int]:
    assert isinstance(sequence, SequenceValue)
    return [id(e) for e in sequence]


def test_construct_insert_erase_and_at_share_the_elements() -> None:
    sequence = run("SequenceConstruct", [A, B])
    assert sequence.dtype == np.float64
    assert elements(sequence) == [id(A), id(B)]
    for position, expected in ((None, [A, B, C]), (0, [C, A, B]), (-1, [A, C, B]), (2, [A, B, C])):
        inputs = [sequence, C] if position is None else [sequence, C, np.array(position)]
        assert elements(run("SequenceInsert", inputs)) == [id(e) for e in expected]
    for position, expected in ((None, [A]), (0, [B]), (-2, [B]), (1, [A])):
        inputs = [sequence] if position is None else [sequence, i64(position)]
        assert elements(run("SequenceErase", inputs)) == [id(e) for e in expected]
    assert run("SequenceAt", [sequence, np.array(-1, np.int32)]) is B
    assert elements(sequence) == [id(A), id(B)]


def test_elements_may_be_opaque_handles_of_another_device() -> None:
    first, second = Handle(), Handle()
    sequence = SequenceValue([first])
    longer = run("SequenceInsert", [sequence, second])
    assert elements(longer) == [id(first), id(second)]
    assert run("SequenceAt", [longer, np.array(1)]) is second
    assert run("SequenceLength", [longer]).tolist() == 2


def test_an_empty_sequence_keeps_its_dtype() -> None:
    empty = run("SequenceEmpty", [], dtype=7)
    assert (len(empty), empty.dtype) == (0, np.int64)
    assert run("SequenceEmpty", []).dtype == np.float32
    assert run("SequenceErase", [run("SequenceInsert", [empty, i64(1)])]).dtype == np.int64
    length = run("SequenceLength", [empty])
    assert (length.dtype, length.shape, int(length)) == (np.int64, (), 0)


def test_positions_beyond_the_ends_are_refused() -> None:
    sequence = SequenceValue([A, B])
    for op_type, inputs, position in (
        ("SequenceAt", [sequence], 2),
        ("SequenceAt", [sequence], -3),
        ("SequenceErase", [sequence], 2),
        ("SequenceInsert", [sequence, C], 3),
    ):
        with pytest.raises(
            KernelError, match=f"position {position} is out of range for a sequence of 2"
        ) as e:
            run(op_type, [*inputs, np.array(position)])
        assert (e.value.node, e.value.operand) == ("node", "position")
    with pytest.raises(KernelError, match="position shape"):
        run("SequenceAt", [sequence, i64(0, 1)])


def test_at_and_erase_on_nothing_and_mixed_dtypes_are_refused() -> None:
    empty = SequenceValue((), np.float32)
    with pytest.raises(KernelError, match="an empty sequence has no element"):
        run("SequenceAt", [empty, np.array(0)])
    with pytest.raises(KernelError, match="cannot erase from an empty sequence"):
        run("SequenceErase", [empty])
    with pytest.raises(KernelError, match="float64 and int64; a sequence has one dtype"):
        run("SequenceConstruct", [A, i64(1)])
    with pytest.raises(KernelError, match="cannot insert float64 into a sequence of float32"):
        run("SequenceInsert", [empty, A])
    with pytest.raises(KernelError, match="is ndarray, not a sequence"):
        run("SequenceLength", [A])
    with pytest.raises(KernelError, match="is nothing, not a sequence"):
        run("SequenceLength", [None])


@pytest.mark.parametrize(
    ("split", "sizes"), [(np.array(3), [3, 3, 1]), (i64(2, 0, 5), [2, 0, 5]), (i64(7), [7])], ids=str
)
def test_split_to_sequence_yields_views(split: Any, sizes: list[int]) -> None:
    x = np.arange(21.0).reshape(7, 3)
    parts = run("SplitToSequence", [x, split], keepdims=0)
    assert [p.shape for p in parts] == [(n, 3) for n in sizes]
    assert all(np.shares_memory(p, x) for p in parts if p.size)
    assert np.concatenate(list(parts)).tolist() == x.tolist()


def test_split_to_sequence_drops_the_axis_only_without_sizes() -> None:
    x = np.arange(6.0).reshape(2, 3)
    kept, dropped = run("SplitToSequence", [x], axis=-1), run("SplitToSequence", [x], axis=1, keepdims=0)
    assert [p.shape for p in kept] == [(2, 1)] * 3
    assert [p.shape for p in dropped] == [(2,)] * 3
    assert all(np.shares_memory(p, x) for p in (*kept, *dropped))
    scalars = run("SplitToSequence", [np.arange(2)], keepdims=0)
    assert [(type(s), s.shape) for s in scalars] == [(np.ndarray, ())] * 2


def test_split_to_sequence_refuses_sizes_that_do_not_fit() -> None:
    with pytest.raises(KernelError, match=r"sizes \[3, 3\] do not sum to extent 7"):
        run("SplitToSequence", [np.arange(7), i64(3, 3)])
    with pytest.raises(KernelError, match="parts of 0 do not make progress"):
        run("SplitToSequence", [np.arange(7), np.array(0)])


def test_concat_from_sequence_joins_or_stacks() -> None:
    x = np.arange(6.0).reshape(2, 3)
    sequence = SequenceValue([x, x + 1])
    assert run("ConcatFromSequence", [sequence], axis=-1).tolist() == np.concatenate([x, x + 1], -1).tolist()
    stacked = run("ConcatFromSequence", [sequence], axis=-1, new_axis=1)
    assert stacked.tolist() == np.stack([x, x + 1], -1).tolist()
    assert not np.shares_memory(stacked, x)
    with pytest.raises(KernelError, match="cannot concatenate an empty sequence"):
        run("ConcatFromSequence", [SequenceValue((), np.float32)], axis=0)
    with pytest.raises(KernelError, match=r"elements of shapes .* do not join") as caught:
        run("ConcatFromSequence", [SequenceValue([x, A])], axis=0)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(KernelError, match="axis 2 is out of range for rank 2"):
        run("ConcatFromSequence", [sequence], axis=2)


def test_optionals_hand_on_what_they_hold() -> None:
    sequence = SequenceValue([A])
    for held in (A, sequence):
        assert run("Optional", [held]) is held
        assert run("OptionalGetElement", [held]) is held
    assert run("Optional", []) is None
    for nothing in ([None], []):
        with pytest.raises(KernelError, match="the optional holds nothing"):
            run("OptionalGetElement", nothing)


def test_whether_an_optional_holds_something_is_known_when_compiled() -> None:
    for inputs, expected in (([A], True), ([SequenceValue([A])], True), ([None], False), ([], False)):
        _, compiled = compile_op("OptionalHasElement", inputs, opset=18)
        spec = compiled.outputs[0]
        assert isinstance(spec, TensorSpec)
        assert spec.value is not None
        assert spec.value.dtype == np.bool_
        assert spec.value.shape == ()
        assert bool(spec.value) is expected
    assert run_op("OptionalHasElement", [A], opset=15)[0].tolist() is True
