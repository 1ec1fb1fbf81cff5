"""What is derived once per operation."""

from __future__ import annotations

import gc

from hetero.kernels.prepared import once
from tests.kernels.harness import operation


def test_a_second_kernel_of_an_operation_shares_what_the_first_one_derived() -> None:
    op, calls = operation("Relu", [None], opset=14), []
    first = once(op, lambda o: calls.append(o) or object())
    assert once(op, lambda o: calls.append(o) or object()) is first
    assert calls == [op]


def test_nothing_is_kept_for_operations_that_nobody_runs_any_more() -> None:
    op, calls = operation("Relu", [None], opset=14), []
    once(op, lambda o: calls.append(o) or object())
    gc.collect()
    once(op, lambda o: calls.append(o) or object())
    assert len(calls) == 2


def test_equal_operations_are_not_taken_for_each_other() -> None:
    first, second = (once(operation("Relu", [None], opset=14), lambda o: object()) for _ in range(2))
    assert first.value is not second.value
