"""Where each expert's bytes lie in a bank, and why some banks stay whole."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hypothesis import given

from hetero.executor import plan
from hetero.model import load_model
from hetero.options import RuntimeOptions
from hetero.providers.registry import create
from hetero.runtime.assignment import assignment
from hetero.runtime.child import ChildExecutor
from hetero.runtime.expert_banks import ExpertBank, Region, Whole, expert_banks
from tests.runtime.harness import rig

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
EXPERTS = (
    "float[2, 3, 4] first = {" + ", ".join(["0"] * 24) + "}, float[2, 3] bias = {0, 0, 0, 0, 0, 0},"
    " float[2, 4, 3] second = {" + ", ".join(["0"] * 24) + "}"
)
STACK = "float[2, 3, 4] w = {" + ", ".join(map(str, range(24))) + "}"


def banks_of(text: str, **replaced: Any) -> dict[str, ExpertBank]:
    proto = onnx.parser.parse_model(HEAD + text)
    programs = [p.program for p in plan(proto, ["cpu"]).partitions]
    return expert_banks(programs, {**load_model(proto).weights, **replaced})


def test_the_banks_of_a_mixture_of_experts_have_one_region_an_expert() -> None:
    banks = banks_of(
        f"g (float[n, 4] x, float[n, 2] r) => (float[n, 4] y) <{EXPERTS}>"
        " { [moe] y = com.microsoft.MoE<k=1>(x, r, first, bias, second) }"
    )
    assert set(banks) == {"first", "bias", "second"}
    assert banks["first"].regions == (Region(0, 0, 48), Region(1, 48, 48))
    assert banks["bias"].regions == (Region(0, 0, 12), Region(1, 12, 12))
    assert banks["second"].whole is None
    assert banks["first"].readers == ("com.microsoft::MoE moe",)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["float", "int8", "double"]))
def test_regions_are_the_bytes_of_the_experts_in_order(e: int, a: int, b: int, dtype: str) -> None:
    size = {"float": 4, "int8": 1, "double": 8}[dtype]
    values = ", ".join(str(k % 100) for k in range(e * a * b))
    banks = banks_of(
        f"g (int64[k] i) => ({dtype}[k, {a}, {b}] y) <{dtype}[{e}, {a}, {b}] w = {{{values}}}>"
        " { y = Gather(w, i) }"
    )
    array = np.arange(e * a * b).reshape(e, a, b) % 100
    array = array.astype({"float": np.float32, "int8": np.int8, "double": np.float64}[dtype])
    whole = array.tobytes()
    assert len(banks["w"].regions) == e
    for region in banks["w"].regions:
        assert region.nbytes == a * b * size
        found = whole[region.offset_bytes : region.offset_bytes + region.nbytes]
        assert found == array[region.expert].tobytes()


def test_a_table_of_rows_is_no_bank() -> None:
    assert (
        banks_of(
            "g (int64[k] i) => (float[k, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = Gather(w, i) }"
        )
        == {}
    )


@pytest.mark.parametrize(
    ("body", "outputs", "whole"),
    [
        ("y = Gather<axis=1>(w, i)", "float[2, k, 4] y", Whole.AXIS_NOT_ZERO),
        ("y = Gather<axis=-3>(w, i)", "float[k, 3, 4] y", None),
        ("g0 = Gather(w, i) s = ReduceSum(w) y = Add(g0, s)", "float[a, b, c] y", Whole.OTHER_READERS),
    ],
)
def test_the_reason_says_why_a_stack_stays_whole(body: str, outputs: str, whole: Whole | None) -> None:
    bank = banks_of(f"g (int64[k] i) => ({outputs}) <{STACK}> {{ {body} }}")["w"]
    assert bank.whole is whole
    assert bool(bank.regions) is (whole is None)


def test_a_bank_that_a_program_returns_stays_whole() -> None:
    r = rig(HEAD + f"g (int64[k] i) => (float[k, 3, 4] y, float[2, 3, 4] w) <{STACK}> {{ y = Gather(w, i) }}")
    assert expert_banks([r.program], r.runner.context.weights)["w"].whole is Whole.RESULT


def test_a_strided_array_stays_whole() -> None:
    strided = np.zeros((2, 4, 3), np.float32).transpose(0, 2, 1)
    bank = banks_of(f"g (int64[k] i) => (float[k, 3, 4] y) <{STACK}> {{ y = Gather(w, i) }}", w=strided)["w"]
    assert bank.whole is Whole.NOT_CONTIGUOUS


@pytest.mark.parametrize(("columns", "whole"), [(3, Whole.PACKED_ACROSS_EXPERTS), (4, None)])
def test_four_bit_experts_that_share_a_byte_stay_whole(columns: int, whole: Whole | None) -> None:
    packed = np.zeros((2, 1, columns), ml_dtypes.int4)
    bank = banks_of(f"g (int64[k] i) => (float[k, 3, 4] y) <{STACK}> {{ y = Gather(w, i) }}", w=packed)["w"]
    assert bank.whole is whole
    assert bank.nbytes == columns
    assert [r.nbytes for r in bank.regions] == ([] if whole else [2, 2])


def test_an_operand_with_another_number_of_experts_stays_whole() -> None:
    text = (
        f"g (float[n, 4] x, float[n, 2] r) => (float[n, 4] y) <{EXPERTS}>"
        " { y = com.microsoft.MoE<k=1>(x, r, first, bias, second) }"
    )
    banks = banks_of(text, bias=np.zeros((3, 3), np.float32))
    assert banks["bias"].whole is Whole.EXPERTS_DIFFER
    assert banks["first"].whole is None


def test_a_bank_that_a_body_reads_is_found_there() -> None:
    banks = banks_of(
        f"g (bool c, int64[k] i) => (float[k, 3, 4] y) <{STACK}> {{ y = If(c) <"
        " then_branch = t () => (float[k, 3, 4] a) { a = Gather(w, i) },"
        " else_branch = e () => (float[k, 3, 4] b) { b0 = Gather(w, i) b = Neg(b0) }> }"
    )
    assert [r.nbytes for r in banks["w"].regions] == [48, 48]


def test_a_child_reports_its_banks() -> None:
    proto = onnx.parser.parse_model(
        HEAD + f"g (int64[k] i) => (float[k, 3, 4] y) <{STACK}> {{ y = Gather(w, i) }}"
    )
    planned = plan(proto, ["sim:0"])
    child = ChildExecutor(create(planned.providers[0]), RuntimeOptions())
    assert child.expert_banks() == {}
    child.prepare(assignment(planned, 0), load_model(proto).weights)
    assert child.stats()["weights"]["expert_banks"] == {"w": 2}
    assert child.expert_banks()["w"].regions[1] == Region(1, 48, 48)
    child.close()
