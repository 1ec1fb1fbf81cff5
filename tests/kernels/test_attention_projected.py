"""com.microsoft's Attention against onnxruntime, and NumPy for what its CPU refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import HeteroError, UnsupportedError
from tests.kernels.attention_peer import DOMAIN, attended, check_contrib, heads_of
from tests.kernels.harness import compile_op, run_op

B, S, N, H, P, HIDDEN = 2, 3, 2, 4, 4, 6
D = N * H


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


X, W, BIAS, PAST = f(B, S, HIDDEN), f(HIDDEN, 3 * D), f(3 * D), f(2, B, N, P, H)


def parts() -> list[Any]:
    return [heads_of(p, N) for p in np.split(X @ W + BIAS, 3, -1)]


@pytest.mark.parametrize("bias", [BIAS, None])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_self_attention_of_a_projection(bias: Any, causal: int, n_outputs: int) -> None:
    check_contrib(
        "Attention", [X, W, bias], n_outputs=n_outputs, num_heads=N, unidirectional=causal, scale=0.3
    )


def test_values_may_have_heads_of_another_size() -> None:
    inputs = [X, f(HIDDEN, 2 * D + 6), f(2 * D + 6)]
    check_contrib("Attention", inputs, num_heads=N, qkv_hidden_sizes=[D, D, 6])


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, (B, P + S), (B, S, P + S)])
def test_a_past_that_grows(causal: int, mask: tuple[int, ...] | None) -> None:
    seen = None if mask is None else np.random.default_rng(1).integers(0, 2, mask).astype(np.int32)
    check_contrib(
        "Attention",
        [X, W, BIAS, seen, PAST],
        n_outputs=2,
        num_heads=N,
        unidirectional=causal,
        mask_filter_value=-6.0,
    )


MASKS = {
    "lengths": [2, 3],
    "ends and starts": [2, 3, 1, 0],
    "lengths and offsets": [2, 3, 0, 0, 2, 5, 0, 3],
    "keys": [[1, 0, 1], [0, 1, 1]],
    "one for all": [[0]],
    "one for each entry": [[0], [1]],
    "queries and keys": [[[1, 0, 1], [0, 1, 1], [0, 0, 1]], [[1, 1, 1], [0, 1, 0], [1, 0, 0]]],
}


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias_shape", [None, (1, N, S, S), (B, 1, S, S)])
def test_masks(form: str, causal: int, bias_shape: tuple[int, ...] | None) -> None:
    bias = None if bias_shape is None else f(*bias_shape)
    inputs = [X, W, BIAS, np.array(MASKS[form], np.int32), None, bias]
    check_contrib("Attention", inputs, num_heads=N, unidirectional=causal, mask_filter_value=-6.0)


@pytest.mark.parametrize("past", [None, PAST])
def test_a_square_mask_is_read_from_the_first_query_of_the_past_on(past: Any) -> None:
    before = 0 if past is None else P
    mask = np.random.default_rng(2).integers(0, 2, (B, 1, 9, 9)).astype(np.int32)
    out, _ = run_op(
        "Attention",
        [X, W, BIAS, mask, past],
        opset=1,
        domain=DOMAIN,
        n_outputs=2,
        num_heads=N,
        mask_filter_value=-6.0,
    )
    q, *kv = parts()
    if past is not None:
        kv = [np.concatenate([past[i], x], 2) for i, x in enumerate(kv)]
    bias = np.where(mask[:, :, before : before + S, : before + S] > 0, 0, -6.0)
    np.testing.assert_allclose(out, attended(q, *kv, bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wants_present", [False, True])
def test_a_buffer_of_fixed_size_is_filled_up_to_its_length(wants_present: bool) -> None:
    buffer = f(2, B, N, 9, H)
    inputs = [X, W, BIAS, None, buffer, None, np.array([P], np.int32)]
    attributes = {
        "opset": 1, "domain": DOMAIN, "n_outputs": 1 + wants_present, "num_heads": N,
        "past_present_share_buffer": 1,
    }  # fmt: skip
    out, *present = run_op("Attention", inputs, **attributes)
    q, *kv = parts()
    kv = [np.concatenate([buffer[i, :, :, :P], x], 2) for i, x in enumerate(kv)]
    np.testing.assert_allclose(out, attended(q, *kv), rtol=1e-4, atol=1e-5)
    if present:
        np.testing.assert_array_equal(present[0][:, :, :, P + S :], buffer[:, :, :, P + S :])
        np.testing.assert_allclose(present[0][:, :, :, : P + S], np.stack(kv), rtol=1e-5)
        _, compiled = compile_op("Attention", inputs, **attributes)
        assert compiled.overwrites == ((4, 1),)


def test_half_precision_is_computed_in_single() -> None:
    inputs = [x.astype(np.float16) for x in (X, W, BIAS)]
    attributes = {"opset": 1, "domain": DOMAIN, "n_outputs": 2, "num_heads": N}
    narrow = run_op("Attention", inputs, **attributes)
    wide = run_op("Attention", [x.astype(np.float32) for x in inputs], **attributes)
    for a, b in zip(narrow, wide, strict=True):
        np.testing.assert_array_equal(a, b.astype(np.float16))


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X, f(5, 3 * D)], {}, "for an input \\[2, 3, 6\\]"),
        ([X, W], {"qkv_hidden_sizes": [4, 8, 12]}, "do not split 24 columns"),
        ([X, W], {"num_heads": 3}, "a hidden size of 8 is not 3 heads"),
        ([X, W, f(D)], {}, "expected \\[24\\]"),
        ([X, W, None, np.ones((B, 7), np.int32)], {}, "of shape \\[2, 7\\] for 2 entries"),
        ([X, W, None, None, f(2, B, N, P, 3)], {}, "expected \\[2, 2, 2, 4, 4\\]"),
        ([X, W, None, None, PAST], {"past_present_share_buffer": 1}, "is needed with a shared buffer"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    inputs: list[Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeteroError, match=message):
        run_op("Attention", inputs, opset=1, domain=DOMAIN, **{"num_heads": N, **attributes})


def test_rotation_inside_is_declined() -> None:
    with pytest.raises(UnsupportedError, match="rotation inside"):
        run_op("Attention", [X, W], opset=1, domain=DOMAIN, num_heads=N, do_rotary=1)
