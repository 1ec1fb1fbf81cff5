"""Operand counts that depend on attributes, bodies and known shapes are held against the instruction."""

from __future__ import annotations

from typing import Any

import pytest

from hetero.program.arity import arity_fault
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Instruction, Port, Program
from hetero.types import DataType, TensorType, ValueType


def fault(
    op_type: str,
    n_in: int,
    n_out: int,
    *,
    version: int = 18,
    captures: int = 0,
    types: dict[int, ValueType | None] | None = None,
    domain: str = "",
    **attributes: Any,
) -> str | None:
    """The fault of an instruction that reads slots 0, 1, … and captures the last `captures` of them."""
    own = n_in - captures
    op = Operation(domain, op_type, version, attributes, (True,) * own, (True,) * n_out, captures)
    outputs = tuple(range(n_in, n_in + n_out))
    row = Instruction(op, tuple(range(n_in)), outputs, (None,) * n_out, (), 0)
    return arity_fault(row, types or {})


def body(n_in: int, n_out: int, captures: int = 0) -> Program:
    ports = tuple(Port(f"i{k}", k, None) for k in range(n_in + captures))
    return Program("b", (), ports, (), (Port("i0", 0, None),) * n_out, n_in + captures, n_captures=captures)


def test_counts_come_from_the_schema_of_the_version() -> None:
    assert fault("Dropout", 3, 1, version=13) is None
    assert fault("Dropout", 3, 1, version=7) == "takes 1 inputs, has 3"
    assert fault("Clip", 4, 1, version=13) == "takes 1 to 3 inputs, has 4"
    assert fault("Concat", 0, 1, version=13) == "takes 1 or more inputs, has 0"
    assert fault("TopK", 2, 1, version=11) == "has wrong output count 1, gives 2"


def test_operators_without_a_schema_take_what_they_are_given() -> None:
    assert fault("Anything", 9, 9, domain="com.acme") is None
    assert fault("Split", 1, 3, domain="com.acme", num_outputs=2) is None


def test_an_operand_that_must_be_there_cannot_be_left_out() -> None:
    op = Operation("", "Add", 14, {}, (False, True))
    assert arity_fault(Instruction(op, (NO_SLOT, 0), (1,), (None,), (), 0), {}) == (
        "input 0 (A) is required but left out"
    )


@pytest.mark.parametrize(
    ("n_out", "attributes", "want"),
    [
        (2, {"num_outputs": 2}, None),
        (3, {"num_outputs": 2}, "has wrong output count 3, num_outputs is 2"),
        (2, {"split": (1, 4)}, None),
        (2, {"split": (1, 2, 2)}, "has wrong output count 2, split has 3 sizes"),
    ],
)
def test_split_has_an_output_per_size(n_out: int, attributes: dict[str, Any], want: str | None) -> None:
    version = 18 if "num_outputs" in attributes else 11
    assert fault("Split", 1, n_out, version=version, **attributes) == want


def test_split_has_an_output_per_element_of_its_split_operand() -> None:
    def sizes(*shape: int | str | None) -> dict[int, ValueType | None]:
        return {1: TensorType(DataType.INT64, shape)}

    assert fault("Split", 2, 3, version=13, types=sizes(3)) is None
    assert fault("Split", 2, 3, version=13, types=sizes("n")) is None
    assert fault("Split", 2, 3, version=13) is None
    wrong = "has wrong output count 3, its split operand holds 2 sizes"
    assert fault("Split", 2, 3, version=13, types=sizes(2)) == wrong


def test_einsum_has_an_input_per_term() -> None:
    assert fault("Einsum", 2, 1, version=12, equation="ij,jk->ik") is None
    assert fault("Einsum", 1, 1, version=12, equation="ii") is None
    assert fault("Einsum", 3, 1, version=12, equation="ij,jk->ik") == (
        "takes 2 inputs as its equation says, has 3"
    )
    assert fault("Einsum", 1, 1, version=12) == "has no equation"


def test_optional_has_an_input_or_a_type() -> None:
    assert fault("Optional", 0, 1, version=15, type=TensorType(DataType.FLOAT)) is None
    assert fault("Optional", 1, 1, version=15) is None
    assert fault("Optional", 0, 1, version=15) == "takes an input or a type, has neither"


@pytest.mark.parametrize(
    ("then", "orelse", "n_out", "want"),
    [
        (body(0, 2, 1), body(0, 2, 1), 2, None),
        (body(0, 1, 1), body(0, 2, 1), 2, "has wrong output count 2, then_branch gives 1"),
        (body(0, 2, 1), body(0, 3, 1), 2, "has wrong output count 2, else_branch gives 3"),
        (body(1, 1, 1), body(0, 1, 1), 1, "then_branch takes 1 inputs, a branch takes none"),
        (body(0, 1, 1), None, 1, "has no body 'else_branch'"),
        (body(0, 1, 1), 3, 1, "has no body 'else_branch'"),
    ],
)
def test_if_has_the_outputs_of_its_branches(then: Any, orelse: Any, n_out: int, want: str | None) -> None:
    branches = {"then_branch": then} | ({} if orelse is None else {"else_branch": orelse})
    assert fault("If", 2, n_out, version=16, captures=1, **branches) == want


@pytest.mark.parametrize(
    ("n_in", "n_out", "inner", "want"),
    [
        (4, 3, body(4, 4), None),
        (2, 1, body(2, 2), None),
        (4, 3, body(3, 4), "carries 2 values, but its body takes 3 inputs instead of 4"),
        (4, 3, body(4, 3), "has wrong output count 3, its body gives 3 with the condition"),
        (4, 1, body(4, 2), "has wrong output count 1, it carries 2 values"),
        (4, 3, None, "has no body 'body'"),
    ],
)
def test_loop_carries_what_its_body_takes(n_in: int, n_out: int, inner: Any, want: str | None) -> None:
    assert fault("Loop", n_in, n_out, version=16, body=inner) == want


@pytest.mark.parametrize(
    ("version", "n_in", "n_out", "scanned", "inner", "want"),
    [
        (16, 3, 2, 2, body(3, 2), None),
        (8, 4, 2, 2, body(3, 2), None),
        (16, 3, 2, 4, body(3, 2), "num_scan_inputs must be from 1 to 3, is 4"),
        (16, 3, 2, 0, body(3, 2), "num_scan_inputs must be from 1 to 3, is 0"),
        (16, 3, 2, None, body(3, 2), "num_scan_inputs must be from 1 to 3, is None"),
        (16, 3, 2, 2, body(2, 2), "has 3 states and scanned inputs, but its body takes 2"),
        (16, 3, 2, 2, body(3, 1), "has wrong output count 2, its body gives 1"),
        (16, 3, 1, 1, body(3, 1), "has wrong output count 1, it has 2 states"),
        (16, 3, 2, 2, None, "has no body 'body'"),
    ],
)
def test_scan_has_the_states_and_elements_of_its_body(
    version: int, n_in: int, n_out: int, scanned: Any, inner: Any, want: str | None
) -> None:
    got = fault("Scan", n_in, n_out, version=version, body=inner, num_scan_inputs=scanned)
    assert got == want


def test_sequence_map_has_the_operands_of_its_body() -> None:
    assert fault("SequenceMap", 2, 1, version=17, body=body(2, 1)) is None
    assert fault("SequenceMap", 2, 1, version=17, body=body(1, 1)) == "takes 1 inputs as its body does, has 2"
    assert fault("SequenceMap", 2, 1, version=17, body=body(2, 2)) == (
        "has wrong output count 1, its body gives 2"
    )
    assert fault("SequenceMap", 2, 1, version=17) == "has no body 'body'"
