"""Biases: a product and the Add of a row become one instruction, with the bits of two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import HeteroError
from hetero.kernels.jit import enabled
from hetero.kernels.matmul_biased import OP_TYPE
from hetero.program.validate import validate
from tests.kernels.harness import compile_op
from tests.runtime.harness import Rig, rig_of

pytestmark = pytest.mark.skipif(not enabled(), reason="without compiled loops no product is packed")


def model(
    k: int = 96,
    n: int = 192,
    *,
    row: tuple[int, ...] | None = None,
    first: bool = False,
    after: str = "Relu",
    also: str | None = None,
    dtype: int = TensorProto.FLOAT,
) -> Any:
    """x (…, k) times a weight, plus a row (`first`: row plus product), then `after`; `also` is an output too."""
    rng = np.random.default_rng(k + n)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = [
        numpy_helper.from_array(rng.standard_normal((k, n)).astype(kind), "w"),
        numpy_helper.from_array(rng.standard_normal((n,) if row is None else row).astype(kind), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["b", "p"] if first else ["p", "b"], ["s"], name="sum"),
        helper.make_node(after, ["s"], ["y"], name="after"),
    ]
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in ("y", *filter(None, [also]))]
    inputs = [helper.make_tensor_value_info("x", dtype, ["a", "b", k])]
    graph = helper.make_graph(nodes, "biased", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def ops(r: Rig) -> list[str]:
    return [i.op.op_type for i in r.runner.program.instructions]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([64, 130, 512, 700]),
    st.sampled_from([256, 257, 270]),
    st.sampled_from([(1, 1), (1, 6), (2, 25), (1, 200), (0, 3)]),
    st.booleans(),
)
def test_the_bits_are_those_of_two_instructions(k: int, n: int, rows: tuple[int, int], first: bool) -> None:
    proto = model(k, n, first=first)
    joined, apart = rig_of(proto), rig_of(proto, fuse_elementwise=False)
    assert ops(joined) == [OP_TYPE, "Relu"]
    assert ops(apart) == ["MatMul", "Add", "Relu"]
    validate(joined.runner.program, schemas=False)
    x = np.random.default_rng(0).standard_normal((*rows, k)).astype(np.float32)
    for _ in range(2):
        (got,), (want,) = joined(x), apart(x)
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "other",
    [
        {"also": "p"},
        {"row": (1, 192)},
        {"row": (1,)},
        {"k": 8, "n": 16},
        {"dtype": TensorProto.DOUBLE},
    ],
    ids=str,
)
def test_other_sums_stay_as_they_are(other: dict[str, Any]) -> None:
    proto = model(**other)
    r = rig_of(proto)
    assert ops(r) == ["MatMul", "Add", "Relu"]
    kind = helper.tensor_dtype_to_np_dtype(other.get("dtype", TensorProto.FLOAT))
    x = np.ones((1, 3, other.get("k", 96)), kind)
    for got, want in zip(r(x), rig_of(proto, fuse_elementwise=False)(x), strict=True):
        assert got.tobytes() == want.tobytes()


def test_a_sum_that_is_an_output_is_joined() -> None:
    r = rig_of(model(also="s"))
    assert ops(r) == [OP_TYPE, "Relu"]


def test_models_cannot_name_it() -> None:
    with pytest.raises(HeteroError):
        compile_op(OP_TYPE, [np.ones((4, 96), np.float32)], opset=1, domain="hetero.internal")
