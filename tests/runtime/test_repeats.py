"""Repeated heads: products read what a model repeats where it lies, with the bits of products with copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import HeteroError
from hetero.kernels.matmul_repeated import OP_TYPE
from hetero.program.validate import validate
from hetero.runtime.repeats import share_repeats
from tests.runtime.harness import Rig, rig_of

OTHERS = ["Unsqueeze", "Expand", "Reshape", "Transpose", "MatMul"]


def model(
    turned: bool,
    *,
    heads: tuple[int, int] = (2, 3),
    d: int = 64,
    opset: int = 18,
    axis: int = 2,
    dtype: int = TensorProto.FLOAT,
    also: str | None = None,
    perm: tuple[int, ...] = (0, 1, 3, 2),
) -> Any:
    """x (b, h g, m, k) times past (b, h, n, d), whose heads are repeated g times each; `also` is an output too."""
    shared, times = heads
    axes: dict[str, Any] = {} if opset >= 13 else {"axes": [axis]}
    lifted = helper.make_node(
        "Unsqueeze", ["past", *(["axes"] if opset >= 13 else [])], ["u"], name="lift", **axes
    )
    nodes = [
        lifted,
        helper.make_node("Expand", ["u", "wide"], ["e"], name="widen"),
        helper.make_node("Reshape", ["e", "whole"], ["r"], name="join"),
    ]
    right = "r"
    if turned:
        nodes.append(helper.make_node("Transpose", ["r"], ["t"], perm=list(perm)))
        right = "t"
    nodes.append(helper.make_node("MatMul", ["x", right], ["y"], name="product"))
    five = [1, 1, times, 1, 1] if axis == 2 else [1, times, 1, 1, 1]
    weights = [
        numpy_helper.from_array(np.array([axis]), "axes"),
        numpy_helper.from_array(np.array(five), "wide"),
        numpy_helper.from_array(np.array([0, shared * times, -1, d]), "whole"),
    ]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    if also is not None:
        outputs.append(helper.make_tensor_value_info(also, dtype, None))
    inputs = [
        helper.make_tensor_value_info(name, dtype, [f"{name}{k}" for k in range(4)]) for name in ("x", "past")
    ]
    graph = helper.make_graph(nodes, "repeated", inputs, outputs, weights[0 if opset >= 13 else 1 :])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ops(r: Rig) -> list[str]:
    return [i.op.op_type for i in r.runner.program.instructions]


def values(
    turned: bool, m: int, n: int, d: int, batch: int = 1, heads: tuple[int, int] = (2, 3)
) -> list[Any]:
    rng = np.random.default_rng(m * n + d)
    shared, times = heads
    x = rng.standard_normal((batch, shared * times, m, d if turned else n)).astype(np.float32)
    return [x, rng.standard_normal((batch, shared, n, d)).astype(np.float32)]


@settings(max_examples=40, deadline=None)
@given(
    turned=st.booleans(),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    m=st.sampled_from([1, 2, 4, 5, 17]),
    n=st.sampled_from([1, 7, 64, 300]),
    d=st.sampled_from([4, 16, 64, 300]),
    batch=st.integers(1, 2),
    opset=st.sampled_from([11, 18]),
    strided=st.booleans(),
)
def test_the_bits_are_those_of_a_product_with_copies(
    turned: bool, heads: tuple[int, int], m: int, n: int, d: int, batch: int, opset: int, strided: bool
) -> None:
    proto = model(turned, heads=heads, d=d, opset=opset)
    shared, copied = rig_of(proto), rig_of(proto, share_repeats=False)
    assert ops(shared) == [OP_TYPE]
    assert ops(copied) == [op for op in OTHERS if turned or op != "Transpose"]
    x, past = values(turned, m, n, d, batch, heads)
    if strided:  # the rows of a cache with more room, and queries whose heads are not outermost
        room = np.zeros((*past.shape[:2], n + 5, d), np.float32)
        room[:, :, :n] = past
        past, x = room[:, :, :n], np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    for _ in range(2):
        (got,), (want,) = shared(x, past), copied(x, past)
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()


def test_nothing_is_copied_where_the_matrices_lie_well() -> None:
    shared, copied = rig_of(model(False)), rig_of(model(False), share_repeats=False)
    x, past = values(False, 1, 512, 64)
    for r in (shared, copied):
        for _ in range(3):
            r(x, past)
    assert shared.runner.statistics.peak_live_bytes < past.nbytes
    assert [r.runner.statistics.view_copies for r in (shared, copied)] == [0, 3]


@pytest.mark.parametrize("axis", [1, 2])
def test_heads_that_are_repeated_as_a_whole_come_in_their_own_order(axis: int) -> None:
    proto = model(True, axis=axis)
    x, past = values(True, 1, 300, 64)
    (got,), (want,) = rig_of(proto)(x, past), rig_of(proto, share_repeats=False)(x, past)
    assert got.tobytes() == want.tobytes()
    repeated = np.repeat(past, 3, 1) if axis == 2 else np.tile(past, (1, 3, 1, 1))
    np.testing.assert_allclose(got, x @ repeated.swapaxes(-1, -2), rtol=1e-4, atol=1e-4)


def test_a_reshape_that_mixes_heads_and_rows_is_computed_over_a_copy() -> None:
    proto = model(False)
    whole = next(i for i in proto.graph.initializer if i.name == "whole")
    whole.CopyFrom(numpy_helper.from_array(np.array([0, 3, -1, 8]), "whole"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 2, 20)).astype(np.float32)
    past = rng.standard_normal((1, 2, 10, 8)).astype(np.float32)
    shared = rig_of(proto)
    assert ops(shared) == [OP_TYPE]
    for _ in range(2):
        (got,), (want,) = shared(x, past), rig_of(proto, share_repeats=False)(x, past)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "proto",
    [
        *(model(False, also=name) for name in ("u", "e", "r")),
        model(True, also="t"),
        model(False, dtype=TensorProto.FLOAT16),
        model(True, perm=(1, 0, 3, 2)),
    ],
    ids=["lifted", "expanded", "joined", "turned", "float16", "other axes"],
)
def test_what_something_else_reads_or_what_is_no_such_product_stays(proto: Any) -> None:
    assert OP_TYPE not in ops(rig_of(proto))


def test_the_rewritten_program_is_valid_and_keeps_the_nodes_places() -> None:
    program = rig_of(model(True), share_repeats=False).program
    shared = share_repeats(program)
    validate(shared)
    (one,) = shared.instructions
    assert one.node_index == program.instructions[-1].node_index
    assert one.op.name == "product"
    assert share_repeats(shared) is shared


def test_an_error_names_the_models_own_node() -> None:
    r = rig_of(model(False, d=4))
    x, past = values(False, 1, 7, 4)
    with pytest.raises(HeteroError) as caught:
        r(x[..., :-1], past)
    assert (caught.value.node, caught.value.op) == ("product", "MatMul")
    with pytest.raises(HeteroError) as caught:
        r(x, np.zeros((1, 2, 7, 5), np.float32))
    assert (caught.value.node, caught.value.op) == ("join", "Reshape")
    r(x, past)


def test_a_device_has_the_bits_of_the_host() -> None:
    proto = model(True)
    x, past = values(True, 2, 300, 64)
    (here,), (there,) = rig_of(proto)(x, past), rig_of(proto, "sim:0")(x, past)
    assert here.tobytes() == there.tobytes()


def test_a_model_cannot_name_the_operator() -> None:
    proto = model(False, d=4)
    proto.graph.node[-1].op_type, proto.graph.node[-1].domain = OP_TYPE, "hetero.internal"
    proto.opset_import.append(helper.make_opsetid("hetero.internal", 1))
    with pytest.raises(HeteroError, match=OP_TYPE):
        rig_of(proto)(*values(False, 1, 7, 4))
