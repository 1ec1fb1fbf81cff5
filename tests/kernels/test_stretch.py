"""Kernels that are stretched to other extents: they make what kernels that are compiled for those make, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError
from hetero.kernels.base import Compiled
from hetero.types import TensorSpec
from tests.kernels.harness import compile_op, specs_of

Shape = tuple[int, ...]
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "Not": ("Not", {}, ("?",)),
    "Neg": ("Neg", {}, ("f4",)),
    "Add": ("Add", {}, ("f4", "f4")),
    "Mul of integers": ("Mul", {}, ("i8", "i8")),
    "Or": ("Or", {}, ("?", "?")),
    "LessOrEqual": ("LessOrEqual", {}, ("i8", "i8")),
    "Cast": ("Cast", {"to": 9}, ("i8",)),
    "Cast to integers": ("Cast", {"to": 7}, ("f4",)),
    "Where": ("Where", {}, ("?", "f4", "f4")),
    "Where of doubles": ("Where", {}, ("?", "f8", "f8")),
    "Softmax": ("Softmax", {"axis": -1}, ("f4",)),
    "Unsqueeze": ("Unsqueeze", {}, ("f4", "axes")),
}


def operands(codes: tuple[str, ...], shapes: list[Shape]) -> list[Any]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    made = []
    for code, shape in zip(codes, shapes, strict=True):
        numbers = 3 * rng.standard_normal(shape)
        made.append(
            np.array([0, 2]) if code == "axes" else (numbers > 0 if code == "?" else numbers.astype(code))
        )
    return made


def bits(compiled: Compiled, spec: Any, workspace_bytes: int, inputs: list[Any]) -> bytes:
    """What the bound call (a view, where it is one) leaves."""
    out = np.empty(spec.shape, spec.dtype)
    assert compiled.bind is not None
    compiled.bind(inputs, [out], np.empty(workspace_bytes, np.uint8) if workspace_bytes else None)()
    if compiled.view is not None:
        views = compiled.view(inputs)
        assert views is not None
        np.testing.assert_array_equal(views[0], out)
    return out.tobytes()


def stretched(compiled: Compiled, inputs: list[Any], values: tuple[int, ...] = ()) -> tuple[Any, int] | None:
    assert compiled.stretch is not None
    return compiled.stretch(specs_of(inputs, values))


EXTENTS = st.lists(st.sampled_from([1, 2, 5, 33]), min_size=2, max_size=3).map(tuple)


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(sorted(CASES)),
    old=EXTENTS,
    new=EXTENTS,
    ones=st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_what_was_stretched_is_what_is_compiled_anew(
    case: str, old: Shape, new: Shape, ones: list[bool]
) -> None:
    op_type, attributes, codes = CASES[case]
    rank = min(len(old), len(new))

    def shapes(whole: Shape) -> list[Shape]:
        """Those that broadcast to `whole`: where `ones` says so, of extent 1."""
        each = (tuple(1 if ones[3 * k + i] else n for i, n in enumerate(whole)) for k in range(len(codes)))
        return [(2,) if code == "axes" else shape for code, shape in zip(codes, each, strict=True)]

    before, after = operands(codes, shapes(old[:rank])), operands(codes, shapes(new[:rank]))
    op, kernel = compile_op(op_type, before, opset=21, **attributes)
    _, fresh = compile_op(op_type, after, opset=21, **attributes)
    values = tuple(k for k, code in enumerate(codes) if code == "axes")
    found = stretched(kernel, after, values)
    assert found is not None, op
    assert found == (fresh.outputs[0], fresh.workspace_bytes)
    assert bits(kernel, *found, after) == bits(fresh, *found, after)


def test_operands_that_do_not_go_together_are_refused_as_when_compiling() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    _, kernel = compile_op("Add", [a, b], opset=21)
    with pytest.raises(KernelError, match="do not broadcast"):
        stretched(kernel, [a, np.zeros((2, 4), np.float32)])


def test_rows_that_are_too_long_for_the_loops_want_another_kernel() -> None:
    _, kernel = compile_op("Softmax", [np.zeros((2, 300), np.float32)], opset=21)
    assert stretched(kernel, [np.zeros((3, 301), np.float32)]) == (
        TensorSpec(np.dtype(np.float32), (3, 301)),
        0,
    )
    assert stretched(kernel, [np.zeros((2, 1 << 15), np.float32)]) is None


def test_other_axes_want_another_kernel() -> None:
    x = np.zeros((2, 3), np.float32)
    _, kernel = compile_op("Unsqueeze", [x, np.array([0])], opset=21)
    assert stretched(kernel, [x, np.array([1])], (1,)) is None


def test_kernels_whose_calls_hang_on_what_was_declared_are_not_stretched() -> None:
    assert compile_op("Tanh", [np.zeros((2, 3), np.float32)], opset=21)[1].stretch is None
    assert compile_op("Softmax", [np.zeros((2, 3), np.float64)], opset=21)[1].stretch is None
