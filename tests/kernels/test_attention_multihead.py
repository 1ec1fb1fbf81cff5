"""MultiHeadAttention and DecoderMaskedMultiHeadAttention against onnxruntime, and NumPy for what its CPU refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import HeteroError
from tests.kernels.attention_peer import DOMAIN, attended, check_contrib, heads_of
from tests.kernels.harness import compile_op, run_op

MHA, DECODER = "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"
B, S, L, N, H, P, M = 2, 3, 5, 2, 4, 4, 9
D = N * H


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def qkv(length: int = S) -> list[Any]:
    return [f(B, length, D, seed=i) for i in range(3)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_self_attention(bias: bool, causal: int, n_outputs: int) -> None:
    inputs = [*qkv(), f(3 * D) if bias else None]
    check_contrib(MHA, inputs, n_outputs=n_outputs, num_heads=N, unidirectional=causal)


def test_the_scale_is_the_attribute_where_it_is_given() -> None:
    check_contrib(MHA, qkv(), num_heads=N, scale=0.3)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("value_hidden", [D, 6])
def test_keys_of_another_length_and_values_of_another_size(causal: int, value_hidden: int) -> None:
    inputs = [f(B, S, D), f(B, L, D), f(B, L, value_hidden), f(2 * D + value_hidden)]
    check_contrib(MHA, inputs, num_heads=N, unidirectional=causal)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_cross_attention_to_keys_that_are_split_into_heads(n_outputs: int, bias: bool) -> None:
    inputs = [f(B, S, D), f(B, N, L, H), f(B, N, L, H, seed=1), f(3 * D) if bias else None]
    check_contrib(MHA, inputs, n_outputs=n_outputs, num_heads=N)


MASKS = {
    "lengths": i32(2, 3),
    "lengths and offsets": i32(2, 1, 0, 3, 6, 0, 3, 6),
    "keys": np.array([[0, 1, 1], [1, -1, 2]], np.int32),
    "queries and keys": np.random.default_rng(3).integers(0, 2, (B, S, S)).astype(np.int32),
}


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_and_attention_bias_and_the_scores_that_come_of_them(form: str, causal: int) -> None:
    inputs = [*qkv(), f(3 * D), MASKS[form], f(1, N, S, S, seed=4)]
    check_contrib(
        MHA, inputs, n_outputs=4, omit=(1, 2), num_heads=N, unidirectional=causal, mask_filter_value=-7.5
    )


def test_the_usual_filter_value_hides_a_key() -> None:
    check_contrib(MHA, [*qkv(), None, MASKS["keys"]], num_heads=N)


@pytest.mark.parametrize("shape", [(B, N, S, S), (1, N, S, S), (B, 1, S, S), (1, 1, S, S)])
def test_an_attention_bias_broadcasts_over_batch_and_heads(shape: tuple[int, ...]) -> None:
    check_contrib(MHA, [*qkv(), None, None, f(*shape)], num_heads=N)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_past_that_grows(causal: int) -> None:
    mask = np.random.default_rng(5).integers(0, 2, (B, P + S)).astype(np.int32)
    inputs = [*qkv(), f(3 * D), mask, f(1, 1, S, P + S), f(B, N, P, H), f(B, N, P, H, seed=1)]
    check_contrib(MHA, inputs, n_outputs=4, num_heads=N, unidirectional=causal, mask_filter_value=-5.0)


def test_a_past_is_attended_to_when_nobody_wants_the_present() -> None:
    """onnxruntime reads behind its keys in this case."""
    q, k, v = qkv()
    past = [f(B, N, P, H), f(B, N, P, H, seed=1)]
    (out,) = run_op(MHA, [q, k, v, None, None, None, *past], opset=1, domain=DOMAIN, num_heads=N)
    keys, values = (np.concatenate([p, heads_of(x, N)], 2) for p, x in zip(past, (k, v), strict=True))
    np.testing.assert_allclose(out, attended(heads_of(q, N), keys, values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, S])
@pytest.mark.parametrize("past", [0, P])
def test_a_buffer_of_fixed_size_keeps_what_lies_behind_the_new_steps(length: int, past: int) -> None:
    buffers = [f(B, N, M, H), f(B, N, M, H, seed=1)]
    inputs = [*qkv(length), None, None, None, *buffers, i32(past)]
    _, keys, _ = check_contrib(MHA, inputs, n_outputs=3, num_heads=N, unidirectional=1)
    np.testing.assert_array_equal(keys[:, :, past + length :], buffers[0][:, :, past + length :])


def test_past_and_present_of_a_buffer_may_be_one() -> None:
    buffers = [f(B, N, M, H), f(B, N, M, H, seed=1)]
    _, compiled = compile_op(
        MHA,
        [*qkv(1), None, None, None, *buffers, i32(P)],
        opset=1,
        domain=DOMAIN,
        n_outputs=3,
        num_heads=N,
    )
    assert compiled.overwrites == ((6, 1), (7, 2))


def test_beams_take_their_past_from_each_other() -> None:
    beams = np.random.default_rng(6).integers(0, 2, (1, B, M)).astype(np.int32)
    mask = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 0, 1]], np.int32)
    buffers = [f(B, N, M, H), f(B, N, M, H, seed=1)]
    inputs = [*qkv(1), f(3 * D), mask, f(1, 1, 1, P + 1), *buffers, i32(P), beams]
    check_contrib(MHA, inputs, n_outputs=4, num_heads=N, mask_filter_value=-4.0)


def test_packed_queries_keys_and_values() -> None:
    packed, bias = f(B, S, N, 3, H), f(3 * D)
    (out,) = run_op(MHA, [packed, None, None, bias], opset=1, domain=DOMAIN, num_heads=N)
    parts = [(packed[:, :, :, i].reshape(B, S, D) + bias[i * D : (i + 1) * D]) for i in range(3)]
    expected = attended(*(heads_of(x, N) for x in parts))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_packed_keys_and_values() -> None:
    query, packed = f(B, S, D), f(B, L, N, 2, H)
    out, keys, _ = run_op(MHA, [query, packed], opset=1, domain=DOMAIN, n_outputs=3, num_heads=N)
    k, v = (packed[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_allclose(out, attended(heads_of(query, N), k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_single(dtype: Any) -> None:
    inputs = [
        *(x.astype(dtype) for x in qkv()),
        None,
        MASKS["lengths"],
        None,
        *([f(B, N, P, H).astype(dtype)] * 2),
    ]
    attributes = {"opset": 1, "domain": DOMAIN, "n_outputs": 3, "num_heads": N}
    narrow = run_op(MHA, inputs, **attributes)
    wide = [x.astype(np.float32) if x is not None and x.dtype == dtype else x for x in inputs]
    for a, b in zip(narrow, run_op(MHA, wide, **attributes), strict=True):
        np.testing.assert_array_equal(a.astype(np.float32), b.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("beams", [False, True])
def test_the_decoder_form_takes_one_step(beams: bool) -> None:
    mask = np.array([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1]], np.int32)
    buffers = [f(B, N, M, H), f(B, N, M, H, seed=1)]
    rows = np.random.default_rng(7).integers(0, 2, (1, B, M)).astype(np.int32)
    tail = [i32(2), rows] if beams else [None, None, f(3 * D)]
    inputs = [*qkv(1), mask, f(1, 1, 1, P + 1), *buffers, i32(P), *tail]
    check_contrib(
        DECODER,
        inputs,
        n_outputs=4,
        num_heads=N,
        past_present_share_buffer=1,
        output_qk=1,
        mask_filter_value=-4.0,
    )


@pytest.mark.parametrize("mask", [None, np.array([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)])
def test_the_decoder_form_attends_across(mask: Any) -> None:
    inputs = [f(B, 1, D), f(B, N, L, H), f(B, N, L, H, seed=1), mask]
    check_contrib(DECODER, inputs, n_outputs=4, omit=(1, 2), num_heads=N, output_qk=1)


def test_the_decoder_form_takes_everything_packed_in_rows() -> None:
    q, k, v = qkv(1)
    buffers = [f(B, N, M, H), f(B, N, M, H, seed=1)]
    attributes = {
        "opset": 1, "domain": DOMAIN, "n_outputs": 3, "num_heads": N, "past_present_share_buffer": 1
    }  # fmt: skip
    rest = [None, None, *buffers, i32(P)]
    packed = run_op(DECODER, [np.concatenate([q, k, v], 2), None, None, *rest], **attributes)
    for a, b in zip(packed, run_op(DECODER, [q, k, v, *rest], **attributes), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([f(B, S, D)], "holds no keys and values"),
        ([f(B, S, D), f(B, L, D)], "without values"),
        ([f(B, S, D), f(B, L, D), f(B, L, N, H)], "beside keys"),
        ([f(B, S, 7), f(B, S, 7), f(B, S, 7)], "a hidden size of 7 is not 2 heads"),
        ([*qkv(), f(D)], "of shape \\[8\\], expected \\[24\\]"),
        ([*qkv(), None, np.ones((1, 7), np.int32)], "of shape \\[1, 7\\] for 2 entries"),
        ([*qkv(), None, f(B, S)], "is float32, not an integer"),
        ([*qkv(), None, None, f(B, N, S, 1)], "expected \\[2, 2, 3, 3\\]"),
        ([*qkv(), None, None, None, f(B, N, P, H)], "come together"),
        ([*qkv(), None, None, None, f(B, N, P, H), f(B, N, P, H), i32(3)], "3 steps and 3 new ones"),
    ],
)
def test_operands_that_do_not_fit_are_named(inputs: list[Any], message: str) -> None:
    with pytest.raises(HeteroError, match=message):
        run_op(MHA, inputs, opset=1, domain=DOMAIN, num_heads=N)


def test_the_decoder_form_refuses_two_steps() -> None:
    with pytest.raises(HeteroError, match="2 steps, decodes one"):
        run_op(DECODER, qkv(2), opset=1, domain=DOMAIN, num_heads=N)
