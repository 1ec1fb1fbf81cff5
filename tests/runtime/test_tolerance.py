"""Sections that serve other values of an input than they were built for, where everything that reads it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero.errors import KernelError
from hetero.kernels.jit import enabled
from tests.runtime.harness import Rig, rig_of

pytestmark = pytest.mark.skipif(not enabled(), reason="nothing is compiled")
HEADS, KV_HEADS, SIZE, CAPACITY = 4, 2, 8, 9
NAMES = ("q", "k", "v", "past_k", "past_v", "lengths", "total")


def model(*, shows_total: bool = False, new: int = 1) -> onnx.ModelProto:
    """One GroupQueryAttention over buffers; `shows_total`: another node reads the total as well."""
    widths = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
    shapes = {n: [1, new, w] for n, w in widths.items()}
    shapes |= {n: [1, KV_HEADS, CAPACITY, SIZE] for n in ("past_k", "past_v", "present_k", "present_v")}
    shapes |= {"lengths": [1], "total": [], "y": shapes["q"], "shown": []}
    types = dict.fromkeys(("lengths", "total", "shown"), TensorProto.INT32)

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shapes[name])

    nodes = [
        helper.make_node(
            "GroupQueryAttention", NAMES, ["y", "present_k", "present_v"], "attend", domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV_HEADS,
        )
    ]  # fmt: skip
    outputs = ["y", "present_k", "present_v"]
    if shows_total:
        nodes.append(helper.make_node("Neg", ["total"], ["shown"]))
        outputs.append("shown")
    graph = helper.make_graph(nodes, "g", [info(n) for n in NAMES], [info(n) for n in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def operands(total: int, new: int = 1) -> list[Any]:
    rng = np.random.default_rng(total)
    shapes = [(1, new, HEADS * SIZE), *[(1, new, KV_HEADS * SIZE)] * 2, *[(1, KV_HEADS, CAPACITY, SIZE)] * 2]
    tensors = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [*tensors, np.array([total - 1], np.int32), np.array(total, np.int32)]


def built(r: Rig) -> int:
    return r.runner.statistics.sections_built


def same_as_fresh(r: Rig, total: int, **options: Any) -> None:
    found, expected = r(*operands(total)), rig_of(model(**options))(*operands(total))
    assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


def test_every_length_of_a_buffer_is_served_by_one_section() -> None:
    r = rig_of(model())
    for total in (4, 2, 9, 5):
        same_as_fresh(r, total)
    assert built(r) == 1


def test_a_prompt_of_one_token_is_another_section() -> None:
    r = rig_of(model())
    for total, sections in ((4, 1), (1, 2), (3, 2), (1, 2)):
        same_as_fresh(r, total)
        assert built(r) == sections


def test_a_value_that_others_read_is_kept_apart() -> None:
    r = rig_of(model(shows_total=True))
    for total in (4, 5, 4):
        same_as_fresh(r, total, shows_total=True)
    assert built(r) == 2


def test_lengths_beyond_the_total_of_the_call_are_refused_each_time() -> None:
    r = rig_of(model())
    r(*operands(6))
    wrong = operands(4)
    wrong[NAMES.index("lengths")] = np.array([4], np.int32)
    with pytest.raises(KernelError, match=r"\[4\] for 1 of 4 steps"):
        r(*wrong)
    same_as_fresh(r, 4)
    assert built(r) == 1


def test_a_total_beyond_the_buffer_is_not_tolerated() -> None:
    r = rig_of(model())
    r(*operands(6))
    beyond = operands(CAPACITY + 3)
    with pytest.raises(KernelError, match="total_sequence_length"):
        r(*beyond)


def test_many_queries_are_bound_for_their_total() -> None:
    r = rig_of(model(new=5))
    for total in (7, 8):
        r(*operands(total, new=5))
    assert built(r) == 2
