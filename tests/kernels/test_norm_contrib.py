"""com.microsoft's skip and embedding layer normalisations, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(13)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_skip_norms(op_type: str, skip: tuple[int, ...], with_bias: bool) -> None:
    inputs = [normal(2, 3, 8), normal(*skip), normal(8)]
    if op_type == "SkipLayerNormalization":
        inputs.append(normal(8))
    if with_bias:
        inputs.append(normal(8))
    check_op(op_type, inputs, rtol=1e-4, atol=1e-5, epsilon=1e-6, **MS)
    keywords: dict[str, Any] = {"n_outputs": 4, "omit": [1, 2], "epsilon": 1e-6, **MS}
    y, _, _, total = check_op(op_type, inputs, rtol=1e-4, atol=1e-5, **keywords)
    assert y.shape == total.shape


def test_skip_norm_statistics_and_half_precision() -> None:
    x, skip, gamma = normal(2, 3, 8), normal(2, 3, 8), normal(8)
    total = x + skip
    y, mean, inverse, again = run_op("SkipLayerNormalization", [x, skip, gamma], n_outputs=4, **MS)
    assert_close([again], [total])
    deviation = total.std(-1, keepdims=True)
    assert_close([mean, inverse], [total.mean(-1, keepdims=True), 1 / deviation], rtol=1e-4, atol=1e-5)
    narrow = run_op("SkipLayerNormalization", [a.astype(np.float16) for a in (x, skip, gamma)], **MS)
    assert_close(narrow, [y.astype(np.float16)], rtol=1e-2, atol=1e-2)


def embed_inputs(*, segments: bool, mask: bool, positions: bool) -> list[Any]:
    ids = RNG.integers(0, 9, (2, 3)).astype(np.int32)
    return [
        ids,
        RNG.integers(0, 2, (2, 3)).astype(np.int32) if segments else None,
        normal(9, 8),
        normal(5, 8),
        normal(2, 8) if segments else None,
        normal(8),
        normal(8),
        np.array([[1, 1, 0], [1, 1, 1]], np.int32) if mask else None,
        np.array([[2, 1, 0], [0, 3, 4]], np.int32) if positions else None,
    ]


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("positions", [True, False])
def test_embed_layer_norm(segments: bool, mask: bool, positions: bool) -> None:
    inputs = embed_inputs(segments=segments, mask=mask, positions=positions)
    check_op("EmbedLayerNormalization", inputs, n_outputs=3, rtol=1e-4, atol=1e-5, **MS)


def test_an_embedding_index_out_of_range_is_named_when_called() -> None:
    inputs = embed_inputs(segments=False, mask=False, positions=False)
    inputs[0][1, 1] = 9
    with pytest.raises(KernelError, match="index 9 is out of bounds"):
        run_op("EmbedLayerNormalization", inputs, n_outputs=2, **MS)


def test_vectors_of_another_length_are_errors() -> None:
    with pytest.raises(KernelError, match="hidden size of 8"):
        run_op("SkipLayerNormalization", [normal(2, 8), normal(2, 8), normal(7)], **MS)
