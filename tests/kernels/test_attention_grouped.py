"""GroupQueryAttention against onnxruntime: prompts, single steps and further prompts, with caches of both kinds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import HeteroError, UnsupportedError
from tests.kernels.attention_peer import DOMAIN, attended, check_contrib, heads_of
from tests.kernels.harness import compile_op, run_op

GQA = "GroupQueryAttention"
B, S, N, K, H, P, CAPACITY, POSITIONS = 2, 5, 4, 2, 16, 5, 9, 12
HEADS = {"num_heads": N, "kv_num_heads": K}
RAGGED = [(S - 1, S - 1), (2, 4)]
"""seqlens_k of a prompt; of a step with a past the same and 1 more."""


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def qkv(length: int = S, batch: int = B) -> list[Any]:
    return [f(batch, length, n * H, seed=i) for i, n in enumerate((N, K, K))]


def past(length: int = P, batch: int = B) -> list[Any]:
    return [f(batch, K, length, H, seed=i) for i in (5, 6)]


def prompt(lengths: tuple[int, ...] = (S - 1, S - 1), *more: Any) -> list[Any]:
    return [*qkv(), None, None, i32(*lengths), i32(S), *more]


def step(lengths: tuple[int, ...] = (P, P), *more: Any) -> list[Any]:
    return [*qkv(1), *past(), i32(*lengths), i32(P + 1), *more]


def packed(inputs: list[Any]) -> list[Any]:
    return [np.concatenate(inputs[:3], 2), None, None, *inputs[3:]]


@pytest.mark.parametrize("lengths", RAGGED)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_prompt(lengths: tuple[int, int], n_outputs: int) -> None:
    check_contrib(GQA, prompt(lengths), n_outputs=n_outputs, **HEADS)
    check_contrib(GQA, packed(prompt(lengths)), n_outputs=n_outputs, **HEADS)


@pytest.mark.parametrize("lengths", [(P, P), (2, P), (2, 0)])
def test_a_step_of_sequences_that_differ_in_length(lengths: tuple[int, int]) -> None:
    check_contrib(GQA, step(lengths), n_outputs=3, **HEADS)
    check_contrib(GQA, packed(step(lengths)), n_outputs=3, **HEADS)


@pytest.mark.parametrize("kv_heads", [1, N])
def test_all_heads_share_their_keys_or_none_does(kv_heads: int) -> None:
    q, *kv = (f(B, S, n * H, seed=i) for i, n in enumerate((N, kv_heads, kv_heads)))
    inputs = [q, *kv, None, None, i32(4, 4), i32(S)]
    check_contrib(GQA, inputs, n_outputs=3, num_heads=N, kv_num_heads=kv_heads)


def test_a_further_prompt() -> None:
    inputs = [*qkv(3, 1), *past(P, 1), i32(P + 2), i32(P + 3)]
    check_contrib(GQA, inputs, n_outputs=3, **HEADS)


def test_a_further_prompt_of_sequences_that_differ_in_length() -> None:
    """onnxruntime takes one sequence at a time."""
    inputs = [*qkv(3), *past(), i32(P, P + 2), i32(P + 3)]
    whole = run_op(GQA, inputs, opset=1, domain=DOMAIN, n_outputs=3, **HEADS)
    for b, (before, total) in enumerate(((P - 2, P + 1), (P, P + 3))):
        one = [x[b : b + 1] for x in inputs[:3]] + [x[b : b + 1, :, :before] for x in inputs[3:5]]
        alone = run_op(GQA, [*one, i32(total - 1), i32(total)], opset=1, domain=DOMAIN, n_outputs=3, **HEADS)
        np.testing.assert_allclose(whole[0][b], alone[0][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(whole[1][b, :, :total], alone[1][0])
        assert (whole[1][b, :, total:] == 0).all()


@pytest.mark.parametrize("is_prompt", [False, True])
@pytest.mark.parametrize("rotary", [0, 1])
def test_a_buffer_of_fixed_size(is_prompt: bool, rotary: int) -> None:
    buffers = past(CAPACITY)
    lengths = (2, 4) if is_prompt else (2, 5)
    new = S if is_prompt else 1
    for buffer in buffers:  # onnxruntime clears what it has to copy
        for b, length in enumerate(lengths):
            buffer[b, :, (0 if is_prompt else length) :] = 0
    tables = [f(POSITIONS, H // 2, seed=7), f(POSITIONS, H // 2, seed=8)] if rotary else []
    inputs = [*qkv(new), *buffers, i32(*lengths), i32(S if is_prompt else P + 1), *tables]
    check_contrib(GQA, inputs, n_outputs=3, do_rotary=rotary, **HEADS)


def test_past_and_present_of_a_buffer_may_be_one_and_what_lies_behind_stays() -> None:
    buffers = past(CAPACITY)
    inputs = [*qkv(1), *buffers, i32(3, 5), i32(6)]
    attributes = {"opset": 1, "domain": DOMAIN, "n_outputs": 3, **HEADS}
    _, compiled = compile_op(GQA, inputs, **attributes)
    assert compiled.overwrites == ((3, 1), (4, 2))
    _, keys, values = run_op(GQA, inputs, **attributes)
    for present, buffer in zip((keys, values), buffers, strict=True):
        for b, length in enumerate((3, 5)):
            expected, found = np.delete(buffer[b], length, 1), np.delete(present[b], length, 1)
            np.testing.assert_array_equal(found, expected)
    _, grown = compile_op(GQA, step(), **attributes)
    assert grown.overwrites == ()


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_a_local_window(window: int) -> None:
    for inputs in (prompt(), prompt((2, 4)), step(), step((2, P))):
        check_contrib(GQA, inputs, n_outputs=3, local_window_size=window, **HEADS)


@pytest.mark.parametrize(
    "attributes",
    [
        {"softcap": 1.5},
        {"scale": 0.1},
        {"smooth_softmax": 1},
        {"softcap": 2.0, "smooth_softmax": 1, "local_window_size": 3},
    ],
)
@pytest.mark.parametrize("sink", [None, f(N, seed=9)])
def test_what_joins_the_scores(attributes: dict[str, Any], sink: Any) -> None:
    check_contrib(
        GQA, prompt((4, 4), None, None, None, f(1, N, S, S), sink), n_outputs=3, **attributes, **HEADS
    )
    check_contrib(
        GQA, step((2, P), None, None, None, f(B, 1, 1, P + 1), sink), n_outputs=3, **attributes, **HEADS
    )


def test_attention_in_both_directions() -> None:
    check_contrib(GQA, prompt(), n_outputs=3, causal=0, **HEADS)


@pytest.mark.parametrize("mode", [1, 2])
def test_scores_before_and_after_the_softmax(mode: int) -> None:
    attributes = {"qk_output": mode, "softcap": 1.5, "local_window_size": 3, **HEADS}
    for sink in (None, f(N, seed=9)):
        more = (None, None, None, f(1, N, S, S), sink)
        check_contrib(GQA, prompt((4, 4), *more), n_outputs=4, **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("angles", [H // 2, 8])
@pytest.mark.parametrize("given", [False, True])
def test_rotation(interleaved: int, angles: int, given: bool) -> None:
    rng = np.random.default_rng(10)
    tables = [f(POSITIONS, angles, seed=7), f(POSITIONS, angles, seed=8)]
    attributes = {"do_rotary": 1, "rotary_interleaved": interleaved, "n_outputs": 3, **HEADS}
    positions = rng.integers(0, POSITIONS - S, (B, S)) if given else None
    for form in (list, packed):
        check_contrib(GQA, form(prompt((2, 4), *tables, positions)), **attributes)
        one = rng.integers(0, POSITIONS, (B, 1)) if given else None
        check_contrib(GQA, form(step((2, P), *tables, one)), **attributes)


@pytest.mark.parametrize("lengths", RAGGED)
def test_half_precision(lengths: tuple[int, int]) -> None:
    tables = [f(POSITIONS, 8, seed=7), f(POSITIONS, 8, seed=8)]
    for inputs in (prompt(lengths, *tables), step(lengths, *tables)):
        narrow = [x.astype(np.float16) if x is not None and x.dtype == np.float32 else x for x in inputs]
        check_contrib(GQA, narrow, n_outputs=3, do_rotary=1, rtol=4e-3, atol=4e-3, **HEADS)


def test_bfloat16_is_computed_in_single() -> None:
    inputs = [x.astype(ml_dtypes.bfloat16) if x.dtype == np.float32 else x for x in step((2, P))]
    wide = [x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for x in inputs]
    attributes = {"opset": 1, "domain": DOMAIN, "n_outputs": 3, **HEADS}
    for a, b in zip(run_op(GQA, inputs, **attributes), run_op(GQA, wide, **attributes), strict=True):
        np.testing.assert_array_equal(a.astype(np.float32), b.astype(a.dtype).astype(np.float32))


def test_a_batch_of_one_token_prompts_attends_to_itself() -> None:
    q, k, v = qkv(1)
    (out,) = run_op(GQA, [q, k, v, None, None, i32(0, 0), i32(1)], opset=1, domain=DOMAIN, **HEADS)
    expected = attended(heads_of(q, N), *(np.repeat(heads_of(x, K), N // K, 1) for x in (k, v)))
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (step((P + 1, P)), {}, "\\[6, 5\\] for 1 of 6 steps"),
        (step((-1, P)), {}, "\\[-1, 5\\] for 1 of 6 steps"),
        ([*qkv(1), *past(), i32(5, 5), i32(7)], {}, "7 steps, of 5 in the past and 1 new ones"),
        ([*qkv(), None, None, i32(4), i32(S)], {}, "of shape \\[1\\] for 2 entries"),
        (prompt((4, 4), None, None, None, f(1, N, S, S + 1)), {}, "expected \\[2, 4, 5, 5\\]"),
        (prompt((4, 4), None, None, None, None, f(N + 1)), {}, "expected \\[4\\]"),
        (prompt(), {"kv_num_heads": 3}, "4 heads cannot share 3"),
        (prompt((4, 4), f(12, 8), f(12, 7)), {"do_rotary": 1}, "cosines \\[12, 8\\]"),
        (prompt((4, 4), f(3, 8), f(3, 8)), {"do_rotary": 1}, "leave the table of 3 positions"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    inputs: list[Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeteroError, match=message):
        run_op(GQA, inputs, opset=1, domain=DOMAIN, n_outputs=3, **{**HEADS, **attributes})


def test_quantised_and_sliding_caches_are_declined() -> None:
    with pytest.raises(UnsupportedError, match="k_scale"):
        run_op(GQA, step((P, P), *[None] * 5, f(1)), opset=1, domain=DOMAIN, n_outputs=3, **HEADS)
    with pytest.raises(UnsupportedError, match="sliding cache"):
        run_op(GQA, step(), opset=1, domain=DOMAIN, n_outputs=3, sliding_window_cache=1, **HEADS)


@pytest.mark.parametrize("rotary", [0, 1])
def test_a_large_batch_gives_what_its_entries_give(rotary: int) -> None:
    batch, lengths = 11, [(3 * b) % CAPACITY for b in range(11)]
    lengths[0] = CAPACITY - 1
    tables = [f(POSITIONS, H // 2, seed=7), f(POSITIONS, H // 2, seed=8)] if rotary else []
    attributes = {"opset": 1, "domain": DOMAIN, "n_outputs": 3, "do_rotary": rotary, **HEADS}
    inputs = [*qkv(1, batch), *past(CAPACITY, batch), i32(*lengths), i32(CAPACITY)]
    whole = run_op(GQA, [*inputs, *tables], **attributes)
    for b in range(batch):
        one = [x[b : b + 1] for x in inputs[:-1]]
        for found, expected in zip(
            run_op(GQA, [*one, inputs[-1], *tables], **attributes), whole, strict=True
        ):
            np.testing.assert_array_equal(found, expected[b : b + 1])


def test_lengths_that_leave_the_call_are_refused_in_a_batch_of_any_size() -> None:
    for batch in (2, 11):
        for wrong in (P + 1, -1):
            inputs = [*qkv(1, batch), *past(CAPACITY, batch), i32(*[P] * (batch - 1), wrong), i32(P + 1)]
            with pytest.raises(HeteroError, match="seqlens_k"):
                run_op(GQA, inputs, opset=1, domain=DOMAIN, n_outputs=3, **HEADS)
