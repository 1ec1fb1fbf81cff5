"""ai.onnx's Attention against onnx's reference, beyond what the official suite holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.errors import HeteroError
from hetero.types import onnx_dtype
from tests.kernels.harness import check_op, run_op

B, S, L, N, K, H, P = 2, 3, 5, 4, 2, 8, 4


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def qkv(length: int = L) -> list[Any]:
    return [f(B, N, S, H), f(B, K, length, H, seed=1), f(B, K, length, 6, seed=2)]


def flat(length: int = L) -> list[Any]:
    return [x.transpose(0, 2, 1, 3).reshape(B, x.shape[2], -1) for x in qkv(length)]


def check(inputs: list[Any], *, use_ort: bool = True, **keywords: Any) -> list[Any]:
    return check_op("Attention", inputs, opset=24, use_ort=use_ort, rtol=1e-4, atol=1e-5, **keywords)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_every_stage(causal: int, softcap: float, mode: int) -> None:
    mask = f(1, 1, S, P + L, seed=3)
    inputs = [*qkv(), mask, f(B, K, P, H, seed=4), f(B, K, P, 6, seed=5)]
    # Hidden scores are -inf by the text; onnxruntime has the lowest finite number.
    check(
        inputs,
        use_ort=mode != 2,
        n_outputs=4,
        is_causal=causal,
        softcap=softcap,
        qk_matmul_output_mode=mode,
        scale=0.3,
    )


@pytest.mark.parametrize("shape", [(S, L), (1, L), (N, S, L), (1, N, S, L), (B, 1, 1, L)])
@pytest.mark.parametrize("boolean", [False, True])
def test_a_mask_broadcasts(shape: tuple[int, ...], boolean: bool) -> None:
    mask = f(*shape) > 0 if boolean else f(*shape)
    check([*flat(), mask], q_num_heads=N, kv_num_heads=K)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_mask_of_integers_is_added_as_numbers(dtype: Any) -> None:
    operands, mask = [x.astype(dtype) for x in qkv()], np.arange(S * L).reshape(S, L) % 3
    (got,) = run_op("Attention", [*operands, mask], opset=24)
    (want,) = run_op("Attention", [*operands, mask.astype(dtype)], opset=24)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("boolean", [False, True])
def test_keys_behind_a_short_mask_are_not_seen(boolean: bool) -> None:
    mask = np.random.default_rng(6).standard_normal((S, 3)).astype(np.float32)
    inputs = [*qkv(), mask > -0.5 if boolean else mask]
    whole = np.full((S, L), -np.inf, np.float32)
    whole[:, :3] = np.where(mask > -0.5, 0, -np.inf) if boolean else mask
    (short,) = run_op("Attention", inputs, opset=24)
    (padded,) = run_op("Attention", [*qkv(), whole], opset=24)
    np.testing.assert_array_equal(short, padded)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_cache_outside_is_seen_up_to_its_length_and_a_query_without_keys_gives_zero(causal: int) -> None:
    lengths = np.array([1, 4])
    (out,) = check([*qkv(), None, None, None, lengths], is_causal=causal)
    # Entry 0 has three queries for one key: causally, the first two see none.
    assert (out[0, :, :2] == 0).all() == bool(causal)
    assert (out[:, :, 2] != 0).all()


def test_the_present_is_given_out_without_a_past() -> None:
    _, keys, values = run_op("Attention", flat(), opset=23, n_outputs=3, q_num_heads=N, kv_num_heads=K)
    np.testing.assert_array_equal(keys, qkv()[1])
    np.testing.assert_array_equal(values, qkv()[2])


def test_values_of_another_dtype_go_through_the_body_of_the_operator() -> None:
    q, k, v = qkv()
    feeds = {"q": q, "k": k, "v": v.astype(np.float64)}
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"])],
        "mixed",
        [helper.make_tensor_value_info(n, int(onnx_dtype(x.dtype)), list(x.shape)) for n, x in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    plan = hetero.plan(model, providers=["cpu"])
    assert {p.op for p in plan.placements} >= {"MatMul", "Softmax"}
    assert [p.op for p in hetero.plan(same_dtypes(model), providers=["cpu"]).placements] == ["Attention"]


def same_dtypes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all inputs in float32."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return copy


@pytest.mark.parametrize(
    ("inputs", "keywords", "message"),
    [
        ([f(B, S, 8), f(B, S, 8), f(B, S, 8)], {}, "a hidden size of 8 is not 0 heads"),
        ([*qkv()[:2], f(B, K, 4, 6)], {}, "beside Q"),
        ([*qkv(), f(2, L)], {}, "expected \\[2, 4, 3, 5\\]"),
        ([*qkv(), None, f(B, K, P, H)], {}, "come together"),
        ([f(B, 3, S, H), *qkv()[1:]], {}, "3 heads cannot share 2"),
        (qkv(), {"qk_matmul_output_mode": 4}, "4 is none of 0 to 3"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    inputs: list[Any], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeteroError, match=message):
        run_op("Attention", inputs, opset=24, **keywords)
