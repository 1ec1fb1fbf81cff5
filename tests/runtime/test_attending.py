"""Attention over shared heads that a model spells out: one instruction, with the bits of the operators one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import HeteroError
from hetero.kernels import attention_repeated
from hetero.kernels.attention_repeated import DOMAIN, OP_TYPE, attend, repeated_attention
from hetero.program.validate import validate
from hetero.runtime.attending import join_attention
from hetero.runtime.repeats import share_repeats
from hetero.types import TensorSpec
from tests.runtime.harness import Rig, rig_of

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
SCALES = (None, "Mul", "Div", "by-Mul")
MASKS = (None, "after", "before")


def model(
    *,
    heads: tuple[int, int] = (2, 3),
    d: int = 64,
    scale: str | None = "Mul",
    mask: str | None = "after",
    axis: int = -1,
    opset: int = 18,
    dtype: int = FLOAT,
    factor: Any = 0.125,
    mask_rank: int = 4,
    batch: int = 0,
    also: str | None = None,
) -> Any:
    """q (b, h g, m, k) attends to keys and values (b, h, n, d), whose heads are repeated g times each; `also` is an
    output too. `by-Mul`: the factor is the left operand. `batch`: as Reshape is told of it, 0 for the one that
    is there."""
    shared, times = heads
    nodes = []
    for name in ("keys", "values"):
        nodes += [
            helper.make_node("Unsqueeze", [name, "axes"], [f"{name}_u"]),
            helper.make_node("Expand", [f"{name}_u", "wide"], [f"{name}_e"]),
            helper.make_node("Reshape", [f"{name}_e", "whole"], [f"{name}_r"]),
        ]
    nodes.append(helper.make_node("Transpose", ["keys_r"], ["keys_t"], perm=[0, 1, 3, 2]))
    nodes.append(helper.make_node("MatMul", ["q", "keys_t"], ["scores"], name="scores"))
    last = "scores"
    if scale is not None:
        operands = ["factor", last] if scale == "by-Mul" else [last, "factor"]
        nodes.append(helper.make_node(scale.removeprefix("by-"), operands, ["scaled"]))
        last = "scaled"
    if mask is not None:
        nodes.append(
            helper.make_node(
                "Add", [last, "mask"] if mask == "after" else ["mask", last], ["masked"], name="hide"
            )
        )
        last = "masked"
    nodes.append(helper.make_node("Softmax", [last], ["weights"], axis=axis))
    nodes.append(helper.make_node("MatMul", ["weights", "values_r"], ["y"], name="mix"))
    numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    weights = [
        numpy_helper.from_array(np.array([2]), "axes"),
        numpy_helper.from_array(np.array([1, 1, times, 1, 1]), "wide"),
        numpy_helper.from_array(np.array([batch, shared * times, -1, d]), "whole"),
        numpy_helper.from_array(np.array(factor, numpy_dtype), "factor"),
    ]
    inputs = [
        helper.make_tensor_value_info(name, dtype, [f"{name}{k}" for k in range(4)])
        for name in ("q", "keys", "values")
    ]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("mask", dtype, [f"mask{k}" for k in range(mask_rank)]))
    names = ["y"] if also is None else ["y", also]
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in names]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ops(r: Rig) -> list[str]:
    return [i.op.op_type for i in r.runner.program.instructions]


def operands(
    m: int, n: int, *, d: int = 64, batch: int = 1, heads: tuple[int, int] = (2, 3), dtype: Any = np.float32
) -> list[Any]:
    rng = np.random.default_rng(m * n + d)
    shared, times = heads
    shapes = [(batch, shared * times, m, d), (batch, shared, n, d), (batch, shared, n, d)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def masks(m: int, n: int, shape: tuple[int, ...], *, dtype: Any = np.float32) -> Any:
    """Zeros, and the lowest number or infinity where nothing may be looked at; never a whole row."""
    rng = np.random.default_rng(m + n)
    mask = np.where(rng.random((*shape[:-2], *shape[-2:])) < 0.3, np.finfo(dtype).min, 0).astype(dtype)
    mask[..., 1::7] = -np.inf
    mask[..., 0] = 0.5
    return mask


def check(proto: Any, *values: Any, joined: bool = True) -> None:
    one, many = rig_of(proto), rig_of(proto, share_repeats=False)
    assert (OP_TYPE in ops(one)) == joined
    assert OP_TYPE not in ops(many)
    for _ in range(2):
        for got, want in zip(one(*values), many(*values), strict=True):
            assert got.shape == want.shape
            assert got.tobytes() == want.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    m=st.sampled_from([1, 2, 4, 5, 17]),
    n=st.sampled_from([1, 7, 64, 256, 300, 333]),
    d=st.sampled_from([4, 16, 64]),
    batch=st.integers(1, 2),
    scale=st.sampled_from(SCALES),
    mask=st.sampled_from(MASKS),
    wide=st.sampled_from([(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 0), (1, 0, 1)]),
    strided=st.booleans(),
    zero=st.booleans(),
)
def test_the_bits_are_those_of_the_operators_one_by_one(
    heads: tuple[int, int],
    m: int,
    n: int,
    d: int,
    batch: int,
    scale: str | None,
    mask: str | None,
    wide: tuple[int, int, int],
    strided: bool,
    zero: bool,
) -> None:
    q, keys, values = operands(m, n, d=d, batch=batch, heads=heads)
    if strided:  # the rows of caches with more room, and queries whose heads are not outermost
        room = np.zeros((*keys.shape[:2], n + 5, d), np.float32)
        room[:, :, :n] = keys
        keys, q = room[:, :, :n], np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    given_ = [q, keys, values]
    if mask is not None:
        extents = (batch, heads[0] * heads[1], m)
        given_.append(masks(m, n, (*(1 if one else e for one, e in zip(wide, extents, strict=True)), n)))
    check(model(heads=heads, d=d, scale=scale, mask=mask, batch=0 if zero else batch), *given_)


@pytest.mark.parametrize("n", [7, 300])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_mask_of_fewer_axes_is_the_same_for_all_others(rank: int, n: int) -> None:
    shape = (6, 2, n)[3 - rank :]
    mask = masks(2, n, shape) if rank > 1 else masks(2, n, (1, n))[0]
    check(model(mask_rank=rank), *operands(2, n), mask)


def test_a_mask_of_one_column_is_added_to_every_key() -> None:
    mask = np.zeros((1, 6, 2, 1), np.float32)
    mask[:, 3] = 2
    check(model(), *operands(2, 300), mask)


def test_a_factor_for_each_head_is_no_number_but_scales_all_the_same() -> None:
    factor = np.arange(1, 7, dtype=np.float32).reshape(6, 1, 1)
    check(model(factor=factor), *operands(1, 300), masks(1, 300, (1, 1, 1, 300)))


def test_double_precision_is_computed_operator_by_operator() -> None:
    q, keys, values = operands(1, 300, dtype=np.float64)
    mask = masks(1, 300, (1, 1, 1, 300), dtype=np.float64)
    check(model(dtype=DOUBLE), q, keys, values, mask)


@pytest.mark.parametrize("also", ["scores", "scaled", "masked", "weights"])
def test_what_is_an_output_too_stays_one(also: str) -> None:
    values = [*operands(1, 300), masks(1, 300, (1, 1, 1, 300))]
    check(model(also=also), *values, joined=False)


def test_softmax_along_another_axis_is_no_attention() -> None:
    values = [*operands(2, 300), masks(2, 300, (1, 1, 2, 300))]
    check(model(axis=1), *values, joined=False)


def test_weights_of_nan_and_infinity_are_the_operators_own() -> None:
    q, keys, values = operands(2, 300)
    q[0, 1, 0] = np.nan
    keys[0, 1, 5] = np.inf
    mask = np.full((1, 1, 2, 300), -np.inf, np.float32)
    mask[..., 1, :] = 0
    check(model(), q, keys, values, mask)


def test_threads_and_the_twin_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [*operands(3, 300), masks(3, 300, (1, 1, 3, 300))]
    (serial,) = rig_of(model())(*values)
    with monkeypatch.context() as patched:
        patched.setattr(attention_repeated, "PARALLEL_ELEMENTS", 0)
        assert rig_of(model())(*values)[0].tobytes() == serial.tobytes()
    for scale in SCALES:
        (serial,) = rig_of(model(scale=scale))(*values)
        with monkeypatch.context() as patched:
            patched.setattr(type(attend), "variant", lambda self, *_, **__: self.twin)
            np.testing.assert_allclose(rig_of(model(scale=scale))(*values)[0], serial, rtol=2e-5, atol=2e-5)


def test_the_rewritten_program_is_valid_and_keeps_the_last_nodes_place() -> None:
    program = rig_of(model(), share_repeats=False).program
    joined = join_attention(share_repeats(program))
    validate(joined)
    (one,) = joined.instructions
    assert one.node_index == program.instructions[-1].node_index
    assert one.op.name == "mix"
    assert join_attention(joined) is joined


def test_an_error_names_the_models_own_node() -> None:
    q, keys, values = operands(1, 300)
    r, mask = rig_of(model()), masks(1, 300, (1, 1, 1, 300))
    with pytest.raises(HeteroError) as caught:
        r(q[:, :5], keys, values, mask)
    assert (caught.value.node, caught.value.op) == ("scores", "MatMul")
    with pytest.raises(HeteroError) as caught:
        r(q, keys, values, mask[..., :-1])
    assert (caught.value.node, caught.value.op) == ("hide", "Add")
    with pytest.raises(HeteroError) as caught:
        r(q, keys, values[:, :, :-1], mask)
    assert (caught.value.node, caught.value.op) == ("mix", "MatMul")
    r(q, keys, values, mask)


def test_a_model_cannot_name_the_operator() -> None:
    node = helper.make_node(OP_TYPE, ["a"] * 11, ["y"], domain=DOMAIN)
    inputs = [helper.make_tensor_value_info("a", FLOAT, [1])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", FLOAT, [1])])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    with pytest.raises(HeteroError, match=OP_TYPE):
        rig_of(helper.make_model(graph, opset_imports=opsets))(np.zeros(1, np.float32))


def test_what_was_stretched_to_more_keys_is_what_is_compiled_for_them() -> None:
    steps = attending(model(batch=1))

    def specs(n: int, *, d: int = 64, batch: int = 1, mask: Any = None) -> list[Any]:
        q, keys, values = operands(1, n, d=d, batch=batch)
        given_ = [q, keys, values, *shapes(n, d), *shapes(n, d), np.float32(0.125)]
        given_.append(masks(1, n, (1, 1, 1, n)) if mask is None else mask)
        return [TensorSpec(x.dtype, x.shape, x if 2 < k < 9 else None) for k, x in enumerate(given_)]

    def shapes(n: int, d: int) -> list[Any]:
        return [np.array([2]), np.array([1, 2, 3, n, d]), np.array([1, 6, -1, d])]

    kernel = repeated_attention(steps, specs(300), np)
    assert kernel.stretch is not None
    for n in (256, 301, 999):
        fresh = repeated_attention(steps, specs(n), np)
        assert kernel.stretch(specs(n)) == (fresh.outputs[0], fresh.workspace_bytes)
    for other in (
        specs(255),
        specs(300, d=32),
        specs(300, batch=2),
        specs(300, mask=np.zeros(1, np.float32)),
    ):
        assert kernel.stretch(other) is None
    turned = specs(300)
    turned[4] = TensorSpec(turned[4].dtype, turned[4].shape, np.array([1, 2, 4, 300, 64]))
    assert kernel.stretch(turned) is None
    turned = specs(300)
    turned[3] = TensorSpec(turned[3].dtype, turned[3].shape, np.array([1]))
    assert kernel.stretch(turned) is None


def attending(proto: Any) -> Any:
    """The one operation of the joined program."""
    (one,) = rig_of(proto).runner.program.instructions
    return one.op
