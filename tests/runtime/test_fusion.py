"""Fusion: runs of elementwise instructions as one call, with the bits of one call each."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from hetero.errors import HeteroError, MemoryLimitError
from hetero.program.program import NO_SLOT, Program
from hetero.program.validate import validate
from hetero.runtime.fusion import fuse
from tests.runtime.harness import Rig, rig, rig_of

pytestmark = pytest.mark.usefixtures("overwrites_all")

Floats = NDArray[np.float32]
HEAD = '<ir_version: 10, opset_import: ["" : 20]> '
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-39, 3.4e38, -3.4e38], np.float32)


def f32(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_bits(a: Any, b: Any) -> bool:
    """Equal to the bit; of two NaN operands, hardware may take either's payload."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = f"i{a.dtype.itemsize}"
    nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return bool(((a.view(bits) == b.view(bits)) | nan).all())


def pair(text: str, **options: Any) -> tuple[Rig, Rig]:
    return rig(HEAD + text, **options), rig(HEAD + text, fuse_elementwise=False, **options)


def agree(text: str, *inputs: Any, **options: Any) -> Rig:
    """The fused runner, after it gave the results of the other one twice, without a write to an input."""
    fused, plain = pair(text, **options)
    for _ in range(3):
        lent = [x.copy() for x in inputs]
        for x in lent:
            x.flags.writeable = False
        for got, want in zip(fused(*lent), plain(*inputs), strict=True):
            assert same_bits(got, want)
    assert plain.runner.statistics.fused_calls == 0
    return fused


def counts(fused: Rig) -> tuple[int, int]:
    statistics = fused.runner.statistics
    return statistics.fused_calls, statistics.fused_instructions


# -- the order -----------------------------------------------------------------------------------------------------
def nodes(program: Program) -> list[int]:
    return [i.node_index for i in program.instructions]


def test_what_belongs_together_is_put_together_before_its_first_reader() -> None:
    text = (
        "g (float[4, 4] x, float[4, 4] z) => (float[4, 4] y) {"
        " a = Exp(x) m = MatMul(z, z) b = Add(a, m) n = MatMul(z, m) y = MatMul(b, n) }"
    )
    program = rig(HEAD + text, fuse_elementwise=False).program
    fused = fuse(program)
    assert nodes(fused.program) == [1, 3, 0, 2, 4]
    assert fused.until == {2: 4}
    validate(fused.program)


def test_single_instructions_stay_where_they_are() -> None:
    text = "g (float[4, 4] x) => (float[4, 4] y) { a = Exp(x) m = MatMul(x, x) y = MatMul(a, m) }"
    program = rig(HEAD + text, fuse_elementwise=False).program
    assert fuse(program).program is program
    assert fuse(program).until == {}


def test_a_run_waits_for_the_run_whose_other_shape_it_reads() -> None:
    text = (
        "g (float[4] s, float[3, 4] x) => (float[3, 4] y) {"
        " a = Exp(s) p = Neg(x) b = Abs(a) q = Add(p, b) y = Mul(q, x) }"
    )
    program = rig(HEAD + text, fuse_elementwise=False).program
    fused = fuse(program)
    assert nodes(fused.program) == [0, 2, 1, 3, 4]
    assert fused.until == {0: 2, 2: 5, 3: 5}
    assert counts(agree(text, f32(4), f32(3, 4))) == (2, 5)


def test_control_flow_comes_after_everything_that_came_before_it() -> None:
    text = (
        "g (bool c, float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a)"
        " d = If(c) <then_branch = t () => (float[4] r) { r = Abs(b) }, else_branch = e () => (float[4] q)"
        " { h = Neg(b) q = Tanh(h) }> y = Add(d, b) }"
    )
    for c in (True, False):
        agree(text, np.array(c), f32(4))


def test_many_small_runs_that_a_long_one_reads_go_before_it() -> None:
    steps = " ".join(f"s{k} = Neg(t) u{k} = Abs(s{k}) v{k + 1} = Add(v{k}, u{k})" for k in range(600))
    text = f"g (float[4] v0, float t) => (float[4] v600) {{ {steps} }}"
    program = rig(HEAD + text, fuse_elementwise=False).program
    fused = fuse(program)
    validate(fused.program)
    assert sum(stop - start == 2 for start, stop in fused.until.items()) >= 600
    assert nodes(fused.program)[-600:] == list(range(2, 1800, 3))
    agree(text, f32(4), f32())


OPS = {
    "Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Max": 2, "Min": 2, "Neg": 1, "Abs": 1, "Sqrt": 1, "Reciprocal": 1,
    "Relu": 1, "LeakyRelu": 1, "HardSigmoid": 1, "HardSwish": 1, "Sigmoid": 1, "Tanh": 1, "Exp": 1, "Erf": 1,
    "Gelu": 1, "Softplus": 1, "Softsign": 1, "Elu": 1, "Selu": 1, "Celu": 1, "Mish": 1, "Clip": 1, "Sum": 3, "Mean": 3,
    "PRelu": 2, "Identity": 1, "Sin": 1, "Transpose": 1, "Softmax": 1,
}  # fmt: skip


@st.composite
def graphs(draw: Any) -> tuple[onnx.ModelProto, list[Floats]]:
    """A model of elementwise nodes (and some others) over a few shapes that broadcast, and its inputs."""
    rows, cols = draw(st.sampled_from(((2, 3), (3, 3), (5, 40), (3, 1100), (1, 7), (4, 1))))
    shapes = [(rows, cols), (rows, cols), (cols,), (rows, 1), (), (1, cols)]
    inputs = [f32(*s, seed=draw(st.integers(0, 9))) for s in shapes]
    for x in inputs[:2]:
        where = draw(st.lists(st.integers(0, x.size - 1), max_size=4))
        x.reshape(-1)[where] = SPECIAL[[w % len(SPECIAL) for w in where]]
    values = [(f"i{k}", s) for k, s in enumerate(shapes)]
    made = []
    for k in range(draw(st.integers(2, 14))):
        op = draw(st.sampled_from(sorted(OPS)))
        recent = st.sampled_from(values[-4:])
        operands = [draw(st.one_of(recent, st.sampled_from(values))) for _ in range(OPS[op])]
        shape = operands[0][1]
        if op == "PRelu":
            operands[1] = values[4]
        elif op == "Transpose":
            shape = shape[::-1]
        elif op == "Softmax" and not shape:
            op = "Neg"
        elif OPS[op] > 1:
            try:
                shape = np.broadcast_shapes(*(s for _, s in operands))
            except ValueError:
                operands = operands[:1] * OPS[op]
        made.append(
            (helper.make_node(op, [n for n, _ in operands], [f"v{k}"], name=f"n{k}"), (f"v{k}", shape))
        )
        values.append(made[-1][1])
    results = [made[-1][1], *(value for _, value in made[:-1] if draw(st.integers(0, 4)) == 0)]
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node for node, _ in made],
        "g",
        [port(f"i{k}", TensorProto.FLOAT, s) for k, s in enumerate(shapes)],
        [port(name, TensorProto.FLOAT, s) for name, s in results],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), inputs


@settings(max_examples=200, deadline=None)
@given(graphs(), st.booleans(), st.booleans())
def test_random_graphs_give_the_same_bits_fused_or_not(
    drawn: tuple[onnx.ModelProto, list[Floats]], in_place: bool, reuse: bool
) -> None:
    proto, inputs = drawn
    fused = rig_of(proto, in_place=in_place, reuse_buffers=reuse)
    plain = rig_of(proto, fuse_elementwise=False)
    fused.runner.prepare()
    validate(fused.runner.program)
    for _ in range(2):
        before = [x.copy() for x in inputs]
        got, want = fused(*inputs), plain(*inputs)
        for a, b in zip(got, want, strict=True):
            assert same_bits(a, b)
        assert all(same_bits(a, b) for a, b in zip(before, inputs, strict=True))
        inputs = [x[::-1].copy() if x.ndim else x for x in inputs]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_the_new_order_is_legal_and_each_run_stands_in_a_row(
    drawn: tuple[onnx.ModelProto, list[Floats]],
) -> None:
    program = rig_of(drawn[0], fuse_elementwise=False).program
    fused = fuse(program)
    validate(fused.program)
    assert sorted(nodes(fused.program)) == sorted(nodes(program))
    assert nodes(fuse(program).program) == nodes(fused.program)
    written = {p.slot for p in (*program.inputs, *program.constants)} | {NO_SLOT}
    for instruction in fused.program.instructions:
        assert written.issuperset(instruction.inputs)
        written.update(instruction.outputs)
    for start, stop in fused.until.items():
        assert start + 1 < stop <= len(fused.program.instructions)
        assert fused.until.get(start + 1, stop) == stop


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_a_simulated_device_that_fuses_nothing_gives_the_same_bits(
    drawn: tuple[onnx.ModelProto, list[Floats]],
) -> None:
    proto, inputs = drawn
    for got, want in zip(rig_of(proto)(*inputs), rig_of(proto, "sim")(*inputs), strict=True):
        assert same_bits(got, want)


# -- what is bound ---------------------------------------------------------------------------------------------------
def test_a_long_chain_is_a_few_calls() -> None:
    chain = " ".join(f"v{k + 1} = Add(v{k}, v{k})" for k in range(1000))
    fused = agree(f"g (float[8] v0) => (float[8] v1000) {{ {chain} }}", f32(8))
    assert counts(fused) == (16, 1000)
    assert len(fused.runner.roots.sections) == 1
    assert fused.runner.statistics.volatile_steps == 0


def test_interior_values_have_no_memory() -> None:
    chain = " ".join(f"v{k + 1} = Add(v{k}, x)" for k in range(20))
    text = f"g (float[512, 64] x) => (float[512, 64] y) {{ v0 = Sin(x) {chain} y = Cos(v20) }}"
    fused, plain = pair(text, in_place=False)
    x = f32(512, 64)
    assert same_bits(fused(x)[0], plain(x)[0])
    nbytes = x.nbytes
    assert fused.runner.statistics.peak_live_bytes < 2.5 * nbytes


def test_a_value_that_is_also_read_outside_is_written() -> None:
    text = (
        "g (float[3, 4] x) => (float[3, 4] y, float[3, 4] a, float[3, 4] s)"
        " { a = Exp(x) b = Neg(a) c = Tanh(b) y = Mul(c, a) s = Sin(b) }"
    )
    assert counts(agree(text, f32(3, 4))) == (1, 4)


def test_a_dying_operand_is_overwritten() -> None:
    text = "g (float[30, 4] x) => (float[30, 4] y) { s = Sin(x) a = Mul(s, s) b = Add(a, s) y = Sin(b) }"
    fused = agree(text, f32(30, 4))
    assert counts(fused) == (1, 2)
    assert fused.runner.statistics.in_place == 2  # and the last Sin's
    assert agree(text, f32(30, 4), in_place=False).runner.statistics.in_place == 0


def test_bias_scale_and_residual_meet_on_one_tape() -> None:
    text = (
        "g (float[2, 3, 40] x, float[40] b, float[3, 1] c, float s, float[2, 3, 40] r) => (float[2, 3, 40] y)"
        " { t = Add(x, b) u = Mul(t, c) v = Div(u, s) y = Add(v, r) }"
    )
    assert counts(agree(text, f32(2, 3, 40), f32(40), f32(3, 1), f32(), f32(2, 3, 40))) == (1, 4)


def test_a_broadcast_that_a_tape_cannot_walk_ends_the_run_before_it() -> None:
    text = (
        "g (float[2, 3, 4, 5] x, float[2, 1, 4, 1] c) => (float[2, 3, 4, 5] y)"
        " { a = Neg(x) b = Exp(a) t = Mul(b, c) y = Tanh(t) }"
    )
    fused = agree(text, f32(2, 3, 4, 5), f32(2, 1, 4, 1))
    assert counts(fused) == (1, 2)


def test_results_that_nobody_reads_are_no_reason_to_fail() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) b = Exp(a) y = Sin(x) }"
    agree(text, f32(4))


def test_a_run_that_finds_no_memory_names_a_node() -> None:
    text = "g (float[n] x) => (float[n] y) { s = Sin(x) [first] a = Neg(s) b = Exp(a) t = MatMul(b, s) y = Add(b, t) }"
    fused = rig(HEAD + text, ("cpu", {"memory_limit_bytes": 6000}), in_place=False, stage_bytes=0)
    with pytest.raises(MemoryLimitError) as caught:
        fused(f32(1000))
    assert caught.value.node == "first"
    assert fused(f32(10))[0].shape == (10,)


def test_constants_and_powers_and_bounds_are_taken() -> None:
    text = (
        "g (float[5, 9] x) => (float[5, 9] y) <float[9] b = {1,2,3,4,5,6,7,8,9}, float two = {2}, int64 n = {3},"
        " float low = {-1}, float high = {2}>"
        " { a = Add(x, b) q = Pow(a, two) c = Pow(q, n) d = Clip(c, low, high) e = Clip(d, , two) y = Neg(e) }"
    )
    assert counts(agree(text, f32(5, 9))) == (1, 6)


def test_a_power_that_no_multiplication_gives_ends_the_run() -> None:
    text = (
        "g (float[5, 9] x) => (float[5, 9] y) <float half = {0.5}>"
        " { a = Abs(x) b = Exp(a) c = Pow(b, half) d = Neg(c) y = Abs(d) }"
    )
    assert counts(agree(text, f32(5, 9))) == (2, 4)


def test_a_view_among_the_operands_is_made_contiguous_in_every_run() -> None:
    text = (
        "g (float[4, 6] x) => (float[6, 4] y) { s = Sin(x) t = Transpose<perm=[1, 0]>(s) a = Neg(t) b = Exp(a)"
        " y = Sin(b) }"
    )
    fused, plain = pair(text)
    for seed in range(3):
        assert same_bits(fused(f32(4, 6, seed=seed))[0], plain(f32(4, 6, seed=seed))[0])
    assert counts(fused) == (1, 2)


def test_strided_and_unaligned_inputs_of_the_caller_are_copied() -> None:
    fused, plain = pair("g (float[4, 6] x) => (float[4, 6] y) { a = Neg(x) y = Exp(a) }")
    wide = f32(4, 12)[:, ::2]
    odd = np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6)
    odd[...] = wide
    assert not odd.flags.aligned
    for x in (wide, odd, wide.copy()):
        assert same_bits(fused(x)[0], plain(x)[0])
    assert counts(fused) == (1, 2)


@pytest.mark.parametrize(
    ("text", "dtype"), [("double", np.float64), ("float16", np.float16), ("int32", np.int32)]
)
def test_other_dtypes_go_one_by_one(text: str, dtype: Any) -> None:
    x = np.arange(12, dtype=dtype).reshape(3, 4)
    assert counts(
        agree(f"g ({text}[3, 4] x) => ({text}[3, 4] y) {{ a = Neg(x) b = Abs(a) y = Add(b, x) }}", x)
    ) == (
        0,
        0,
    )


def test_empty_tensors_go_one_by_one() -> None:
    text = "g (float[n, 4] x) => (float[n, 4] y) { a = Neg(x) y = Exp(a) }"
    assert counts(agree(text, f32(0, 4))) == (0, 0)
    assert counts(agree(text, f32(3, 4))) == (1, 2)


def test_shapes_that_broadcast_only_at_run_time_split_the_run() -> None:
    text = "g (float[n] x, float[n] z) => (float[n] y) { a = Neg(x) b = Add(a, z) y = Exp(b) }"
    fused = agree(text, f32(5), f32(5))
    assert counts(fused) == (1, 3)


def test_one_program_is_fused_anew_for_every_shape() -> None:
    fused, plain = pair(
        "g (float[n, m] x, float[m] b) => (float[n, m] y) { t = Add(x, b) s = Sigmoid(t) y = Mul(t, s) }"
    )
    for n, m in ((3, 5), (700, 300), (1, 1), (3, 5), (2, 5000)):
        assert same_bits(fused(f32(n, m), f32(m))[0], plain(f32(n, m), f32(m))[0])
    assert counts(fused) == (4, 12)


def test_a_run_may_stand_behind_a_shape_that_depends_on_data() -> None:
    text = (
        "g (float[6] x) => (float[6] y, int64[1, k] j) { s = Sin(x) a = Neg(s) r = Relu(x) i = NonZero(r)"
        " b = Exp(a) y = Mul(b, s) j = Add(i, i) }"
    )
    fused, plain = pair(text)
    for seed in range(4):
        for got, want in zip(fused(f32(6, seed=seed)), plain(f32(6, seed=seed)), strict=True):
            assert same_bits(got, want)
    assert fused.runner.statistics.fused_instructions >= 3


def test_an_error_inside_a_run_names_the_node() -> None:
    text = (
        "g (float[n, m] x, float[p, q] z) => (float[n, m] y)"
        " { [first] a = Neg(x) [second] b = PRelu(a, z) [third] y = Exp(b) }"
    )
    fused, _ = pair(text)
    with pytest.raises(HeteroError, match="second"):
        fused(f32(2, 3), f32(4, 4))
    assert fused(f32(2, 3), f32(2, 3))[0].shape == (2, 3)


def test_a_body_that_is_iterated_is_fused_too() -> None:
    text = (
        "g (int64 n, float[3, 4] x) => (float[3, 4] y) <bool go = {1}> {"
        " y = Loop(n, go, x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] t)"
        " { d = Identity(c) a = Tanh(s) h = Add(a, x) t = Mul(h, s) }> }"
    )
    fused = agree(text, np.array(5), f32(3, 4))
    assert counts(fused) == (1, 3)


def test_nothing_is_fused_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_JIT", "0")
    text = "g (float[3, 4] x) => (float[3, 4] y) { a = Neg(x) y = Abs(a) }"
    assert counts(agree(text, f32(3, 4))) == (0, 0)
