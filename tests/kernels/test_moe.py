"""MoE and QMoE against onnxruntime where it has the case, and everywhere against NumPy written from their text."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.moe import route
from tests.kernels.harness import assert_close, compile_op, run_op
from tests.kernels.peer import onnxruntime

RNG = np.random.default_rng(36)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
TOKENS, HIDDEN, INNER, EXPERTS = 5, 32, 64, 4
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}


def normal(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}


def inner(first: Any, third: Any, attributes: dict[str, Any]) -> Any:
    """What the activation makes of one token's first (and third) layer."""
    kind, fusion = attributes["activation_type"], attributes.get("swiglu_fusion", 0)
    if kind in ("swiglu", "geglu") and fusion:
        half = len(first) // 2
        first, third = (first[::2], first[1::2]) if fusion == 1 else (first[:half], first[half:])
    if kind == "geglu":
        return PLAIN["gelu"](first) * third
    if kind == "swiglu":
        limit = attributes.get("swiglu_limit", np.inf)
        after = attributes.get("swiglu_limit_after_activation", 0)
        gate = first if after else np.minimum(first, limit)
        opened = gate * sigmoid(attributes["activation_alpha"] * gate)
        return np.minimum(opened, limit if after else np.inf) * (
            np.clip(third, -limit, limit) + attributes["activation_beta"]
        )
    found = PLAIN[kind](first)
    return found if third is None else found * third


def expected(
    x: Any,
    scores: Any,
    layers: list[Any],
    biases: list[Any],
    attributes: dict[str, Any],
    shares: Any,
    normalise: bool,
) -> Any:
    """In float64, one token after another. `layers`: weights of fc1, fc2 and fc3 (or None)."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    scores = scores.astype(np.float64)
    if shares is None:
        shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    out = np.zeros(rows.shape)

    def dense(layer: int, row: Any, expert: int) -> Any:
        bias = biases[layer]
        found = layers[layer][expert].astype(np.float64) @ row
        return found if bias is None else found + bias[expert]

    for token, row in enumerate(rows):
        best = np.argsort(-scores[token])[: attributes["k"]]
        weights = shares[token][best]
        for expert, weight in zip(best, weights / weights.sum() if normalise else weights, strict=True):
            third = dense(2, row, expert) if layers[2] is not None else None
            out[token] += weight * dense(1, inner(dense(0, row, expert), third, attributes), expert)
    return out.reshape(x.shape)


def float_operands(attributes: dict[str, Any], *, bias: bool = True, third: bool = False) -> list[Any]:
    wide = 2 if attributes.get("swiglu_fusion") else 1
    sizes = [(wide * INNER, HIDDEN), (HIDDEN, INNER)] + ([(INNER, HIDDEN)] if third else [])
    inputs = [normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS)]
    for n, k in sizes:
        inputs += [normal(EXPERTS, n, k), normal(EXPERTS, n) if bias else None]
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def check_moe(attributes: dict[str, Any], *, peer: bool = True, **keywords: Any) -> None:
    inputs = float_operands(attributes, **keywords)
    (y,) = run_op("MoE", inputs, **attributes, **MS)
    layers, biases = ([*inputs, *[None] * 6][i : i + 5 : 2] for i in (2, 3))
    normalise = bool(attributes.get("normalize_routing_weights", 0))
    np.testing.assert_allclose(
        y, expected(*inputs[:2], layers, biases, attributes, None, normalise), rtol=1e-4, atol=1e-4
    )
    if peer:
        assert_close([y], onnxruntime("MoE", inputs, **attributes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("activation", [*PLAIN, "swiglu"])
def test_the_best_experts_are_mixed(activation: str, k: int, normalise: int) -> None:
    attributes = {"activation_type": activation, "k": k, "normalize_routing_weights": normalise}
    if activation == "swiglu":
        attributes |= SWIGLU | {"swiglu_fusion": 1}
    check_moe(attributes, peer=activation != "relu2")


@pytest.mark.parametrize(
    ("attributes", "third"),
    [
        (SWIGLU | {"swiglu_fusion": 2}, False),
        (SWIGLU | {"swiglu_fusion": 1, "swiglu_limit_after_activation": 1}, False),
        (SWIGLU | {"swiglu_fusion": 0}, True),
        ({"activation_type": "geglu", "swiglu_fusion": 1}, False),
        ({"activation_type": "geglu", "swiglu_fusion": 2}, False),
        ({"activation_type": "silu"}, True),
    ],
    ids=["two halves", "limit after", "fc3", "geglu alternating", "geglu halves", "fc3 beside silu"],
)
def test_forms_that_onnxruntime_leaves_to_other_devices(attributes: dict[str, Any], third: bool) -> None:
    check_moe(attributes | {"k": 2}, peer=False, third=third)


def test_biases_a_sparse_mixer_and_three_axes() -> None:
    check_moe({"activation_type": "relu", "k": 2}, bias=False)
    check_moe({"activation_type": "relu", "k": 2, "use_sparse_mixer": 1})
    inputs = float_operands({})
    flat = run_op("MoE", inputs, k=2, **MS)
    deep = run_op("MoE", [inputs[0].reshape(1, TOKENS, HIDDEN), *inputs[1:]], k=2, **MS)
    assert (deep[0] == flat[0]).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_made_in_float32(dtype: Any) -> None:
    inputs = [a.astype(dtype) for a in float_operands({})]
    (y,) = run_op("MoE", inputs, k=2, **MS)
    (wide,) = run_op("MoE", [a.astype(np.float32) for a in inputs], k=2, **MS)
    assert (y == wide.astype(dtype)).all()


def test_of_equal_scores_the_later_expert_comes_first() -> None:
    chosen, weight = route(np, np.array([[1, 3, 3, 2]], np.float32), None, 3, normalise=True)
    assert chosen.tolist() == [[2, 1, 3]]
    np.testing.assert_allclose(weight.sum(1), 1, rtol=1e-6)
    inputs = float_operands({})
    inputs[1][:] = 0
    assert_close(run_op("MoE", inputs, k=2, **MS), onnxruntime("MoE", inputs, k=2), rtol=1e-4, atol=1e-4)


def unpacked(stored: Any, bits: int, count: int) -> Any:
    flags = np.unpackbits(stored, axis=-1, bitorder="little")
    whole = flags.shape[-1] // bits * bits
    return (flags[..., :whole].reshape(*stored.shape[:-1], -1, bits) * (1 << np.arange(bits))).sum(-1)[
        ..., :count
    ]


def quantised(n: int, k: int, bits: int, block: int, zero: bool, dtype: Any) -> tuple[list[Any], Any]:
    """([weights, scales, zero points], what they stand for in float64)."""
    count = k // block if block else 1
    w = RNG.integers(0, 256, (EXPERTS, n, k * bits // 8)).astype(np.uint8)
    scale = RNG.uniform(0.01, 0.03, (EXPERTS, n, count) if block else (EXPERTS, n)).astype(dtype)
    stored, zeros = None, np.full((EXPERTS, n, count), 1 << (bits - 1))
    if zero:
        shape = (EXPERTS, n, -(-count * bits // 8)) if block else (EXPERTS, -(-n * bits // 8))
        stored = RNG.integers(0, 256, shape).astype(np.uint8)
        zeros = unpacked(stored, bits, count if block else n).reshape(EXPERTS, n, count)
    column = np.arange(k) // (block or k)
    wide = scale.astype(np.float64).reshape(EXPERTS, n, count)[:, :, column]
    return [w, scale, stored], (unpacked(w, bits, k) - zeros[:, :, column]) * wide


def quantised_operands(
    attributes: dict[str, Any],
    *,
    zero: bool = False,
    dtype: Any = np.float32,
    router: bool = False,
    third: bool = False,
) -> tuple[list[Any], list[Any], list[Any]]:
    """(inputs, weights in float64, biases)."""
    bits, block = attributes["expert_weight_bits"], attributes.get("block_size", 0)
    wide = 2 if attributes.get("swiglu_fusion") else 1
    inputs: list[Any] = [None] * 15
    inputs[0], inputs[1] = normal(TOKENS, HIDDEN).astype(dtype), normal(TOKENS, EXPERTS).astype(dtype)
    layers, biases = [None] * 3, [None] * 3
    sizes = [(wide * INNER, HIDDEN), (HIDDEN, INNER)] + ([(INNER, HIDDEN)] if third else [])
    for i, (n, k) in enumerate(sizes):
        (inputs[2 + 3 * i], inputs[3 + 3 * i], inputs[11 + i]), layers[i] = quantised(
            n, k, bits, block, zero, dtype
        )
        inputs[4 + 3 * i] = biases[i] = normal(EXPERTS, n).astype(dtype)
    if router:
        inputs[14] = np.abs(normal(TOKENS, EXPERTS)).astype(dtype)
    while inputs[-1] is None:
        inputs.pop()
    return inputs, layers, biases


def check_qmoe(attributes: dict[str, Any], *, tolerance: float | None = 1e-4, **keywords: Any) -> None:
    """`tolerance` towards onnxruntime, relative to the largest element; None where it does not take the case."""
    attributes = {"k": 2, "activation_type": "relu", **attributes}
    inputs, layers, biases = quantised_operands(attributes, **keywords)
    (y,) = run_op("QMoE", inputs, **attributes, **MS)
    shares = inputs[14] if len(inputs) > 14 else None
    normalise = shares is None or bool(attributes.get("normalize_routing_weights", 0))
    exact = expected(*inputs[:2], layers, biases, attributes, shares, normalise)
    own = 1e-5 if inputs[0].dtype == np.float32 else 2e-3
    assert np.abs(y - exact).max() <= own * np.abs(exact).max()
    if tolerance is not None:
        (found,) = onnxruntime("QMoE", inputs, **attributes)
        assert (y.dtype, y.shape) == (found.dtype, found.shape)
        difference = np.abs(y.astype(np.float64) - found.astype(np.float64)).max()
        assert difference <= tolerance * np.abs(exact).max()


@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_weights(bits: int, block: int, zero: bool) -> None:
    attributes = {"expert_weight_bits": bits, **({"block_size": block} if block else {})}
    # onnxruntime rounds activations to 8 bits where the weights have 8, or 2, in blocks.
    tolerance = 3e-2 if block and bits != 4 else 1e-4
    check_qmoe(attributes, zero=zero, tolerance=tolerance)
    check_qmoe(SWIGLU | {"swiglu_fusion": 1} | attributes, zero=zero, tolerance=tolerance)


def test_three_bits_cross_bytes() -> None:
    for block in (0, 16):
        check_qmoe({"expert_weight_bits": 3, "block_size": block}, tolerance=None)


@pytest.mark.parametrize("normalise", [0, 1])
def test_a_router_may_choose_by_one_tensor_and_weigh_by_another(normalise: int) -> None:
    attributes = {"expert_weight_bits": 4, "normalize_routing_weights": normalise}
    check_qmoe(attributes, router=True)
    check_qmoe(attributes)


def test_quantised_experts_in_half_precision() -> None:
    check_qmoe({"expert_weight_bits": 4, "block_size": 32}, dtype=np.float16, tolerance=1e-3)


def test_a_third_layer_of_packed_weights() -> None:
    check_qmoe(SWIGLU | {"expert_weight_bits": 4, "block_size": 16}, zero=True, third=True, tolerance=None)


@pytest.mark.parametrize("block", [0, 24])
def test_float8_weights(block: int) -> None:
    attributes = {"k": 2, "activation_type": "silu", "quant_type": "fp8", "block_size": block}
    inputs: list[Any] = [normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS), *[None] * 15]
    layers: list[Any] = [None] * 3
    for i, (n, k) in enumerate(((INNER, HIDDEN), (HIDDEN, INNER))):
        w = normal(EXPERTS, n, k).astype(ml_dtypes.float8_e4m3fn)
        inputs[2 + 3 * i] = w
        if block:
            rows, columns = np.arange(n) // block, np.arange(k) // block
            scale = RNG.uniform(0.5, 2, (EXPERTS, rows[-1] + 1, columns[-1] + 1)).astype(np.float32)
            inputs[3 + 3 * i] = scale
            layers[i] = w.astype(np.float64) * scale[:, rows][:, :, columns]
        else:
            inputs[15 + i] = RNG.uniform(0.5, 2, EXPERTS).astype(np.float32)
            layers[i] = w.astype(np.float64) * inputs[15 + i][:, None, None]
    (y,) = run_op("QMoE", inputs, **attributes, **MS)
    exact = expected(*inputs[:2], layers, [None] * 3, attributes, None, True)
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)


def test_constant_experts_are_dequantised_when_they_are_first_chosen() -> None:
    attributes = {"k": 1, "activation_type": "relu", "expert_weight_bits": 4}
    inputs, _, _ = quantised_operands(attributes)
    for array in inputs[2:]:
        if array is not None:
            array.flags.writeable = False
    inputs[1][:] = [0, 0, 9, 0]
    _, compiled = compile_op("QMoE", inputs, **attributes, **MS)
    assert compiled.bind is not None
    y = np.empty((TOKENS, HIDDEN), np.float32)
    call = compiled.bind(inputs, [y], None)
    call()
    first = y.copy()
    inputs[1][:] = [9, 0, 0, 0]
    call()
    other = y.copy()
    inputs[1][:] = [0, 0, 9, 0]
    call()
    assert (y == first).all()
    assert (other != first).any()


def test_operands_that_contradict_each_other_are_errors() -> None:
    inputs = float_operands({})
    with pytest.raises(KernelError, match="5 of 4 experts"):
        compile_op("MoE", inputs, k=5, **MS)
    with pytest.raises(KernelError, match="5 tokens and 4 experts"):
        compile_op("MoE", [inputs[0], inputs[1][:3], *inputs[2:]], **MS)
    with pytest.raises(KernelError, match="the gate is not fused"):
        compile_op("MoE", inputs, activation_type="swiglu", **MS)
    with pytest.raises(UnsupportedError, match="activation 'tanh'"):
        compile_op("MoE", inputs, activation_type="tanh", **MS)
    attributes = {"expert_weight_bits": 4, "block_size": 16}
    packed, _, _ = quantised_operands(attributes)
    with pytest.raises(KernelError, match="do not divide 32 inputs"):
        compile_op("QMoE", packed, expert_weight_bits=4, block_size=64, **MS)
    with pytest.raises(KernelError, match="inputs of 8 bits"):
        compile_op("QMoE", packed, expert_weight_bits=8, block_size=16, **MS)
    with pytest.raises(UnsupportedError, match="experts of nvfp4"):
        compile_op("QMoE", packed, quant_type="nvfp4", **MS)
    with pytest.raises(UnsupportedError, match="another device"):
        compile_op("QMoE", packed, weights_prepacked=1, **attributes, **MS)
