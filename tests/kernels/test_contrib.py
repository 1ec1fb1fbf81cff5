"""com.microsoft's operators beside attention and quantisation, and ONNX's dropped ones, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(29)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


CONV_ACTIVATIONS: list[dict[str, Any]] = [
    {},
    {"activation": "Relu"},
    {"activation": "Tanh"},
    {"activation": "Sigmoid"},
    {"activation": "LeakyRelu", "activation_params": [0.2]},
    {"activation": "Clip", "activation_params": [-0.25, 0.5]},
    {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
]


@pytest.mark.parametrize("activation", CONV_ACTIVATIONS, ids=lambda a: a.get("activation", "none"))
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_conv(activation: dict[str, Any], adds: bool, bias: bool) -> None:
    inputs = [
        normal(2, 3, 7, 6),
        normal(4, 3, 3, 3),
        normal(4) if bias else None,
        normal(2, 4, 7, 6) if adds else None,
    ]
    check_op("FusedConv", inputs, pads=[1, 1, 1, 1], **activation, **MS, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [(4, 3, 1, 1), (6, 1, 3, 3)])
def test_fused_conv_on_other_routes(weight: tuple[int, ...]) -> None:
    group = 3 if weight[1] == 1 else 1
    x, w, b = normal(1, 3, 8, 8), normal(*weight), normal(weight[0])
    check_op(
        "FusedConv", [x, w, b], group=group, activation="LeakyRelu", activation_params=[0.1], **MS, rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip
    half = [a.astype(np.float16) for a in (x, w, b)]
    (narrow,) = run_op("FusedConv", half, group=group, activation="Relu", **MS)
    (wide,) = run_op("FusedConv", [a.astype(np.float32) for a in half], group=group, activation="Relu", **MS)
    assert_close([narrow], [wide.astype(np.float16)])


def test_a_fused_conv_says_what_it_cannot_take() -> None:
    x, w = normal(1, 1, 4, 4), normal(1, 1, 1, 1)
    with pytest.raises(KernelError, match="takes \\['alpha'\\]"):
        run_op("FusedConv", [x, w], activation="LeakyRelu", activation_params=[1.0, 2.0], **MS)
    with pytest.raises(KernelError, match="the convolution's result"):
        run_op("FusedConv", [x, w, None, normal(1, 1, 4, 1)], activation="Relu", **MS)


GEMM_ACTIVATIONS: list[dict[str, Any]] = [
    {"activation": "Relu"},
    {"activation": "Tanh"},
    {"activation": "Sigmoid"},
    {"activation": "Softplus"},
    {"activation": "Softsign"},
    {"activation": "LeakyRelu", "activation_alpha": 0.2},
    {"activation": "Elu", "activation_alpha": 0.7},
    {"activation": "Selu", "activation_alpha": 1.5, "activation_gamma": 1.1},
    {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
    {"activation": "ThresholdedRelu", "activation_alpha": 0.3},
]


@pytest.mark.parametrize("activation", GEMM_ACTIVATIONS, ids=lambda a: a["activation"])
@pytest.mark.parametrize("with_c", [False, True])
def test_fused_gemm(activation: dict[str, Any], with_c: bool) -> None:
    inputs = [normal(4, 3), normal(5, 4), normal(5) if with_c else None]
    check_op(
        "FusedGemm",
        inputs,
        transA=1,
        transB=1,
        alpha=0.5,
        beta=0.25,
        **activation,
        **MS,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("batch", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul_over_batches(trans: tuple[int, int], batch: tuple[int, int]) -> None:
    def laid_out(rows: int, columns: int, transposed: int, batched: int) -> Any:
        extents = [5, columns, rows] if transposed else [5, rows, columns]
        if batched:  # the last but one axis is the batch; the first takes its place
            extents = [extents[1], 5, extents[2]]
        return normal(*extents)

    a, b = laid_out(2, 3, trans[0], batch[0]), laid_out(3, 4, trans[1], batch[1])
    check_op(
        "FusedMatMul", [a, b], transA=trans[0], transB=trans[1], transBatchA=batch[0], transBatchB=batch[1],
        alpha=0.5, **MS, atol=1e-5,
    )  # fmt: skip


def test_transpose_matmul() -> None:
    check_op(
        "TransposeMatMul", [normal(2, 4, 3), normal(2, 5, 4)], transA=1, transB=1, alpha=2.0, **MS, atol=1e-5
    )


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_simplified_layer_norm_of_any_opset(opset: int, n_outputs: int) -> None:
    inputs = [normal(2, 3, 8), normal(8)]
    check_op(
        "SimplifiedLayerNormalization",
        inputs,
        opset=opset,
        n_outputs=n_outputs,
        axis=-1,
        epsilon=1e-6,
        rtol=1e-4,
    )


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_layer_norm_before_it_was_standard(n_outputs: int) -> None:
    inputs = [normal(2, 3, 8), normal(8), normal(8)]
    check_op("LayerNormalization", inputs, opset=12, n_outputs=n_outputs, axis=-1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverse(shape: tuple[int, ...], dtype: Any) -> None:
    x = (RNG.standard_normal(shape) + 3 * np.eye(shape[-1])).astype(dtype)
    (y,) = check_op("Inverse", [x], **MS, rtol=1e-3, atol=1e-4)
    assert y.dtype == dtype


def test_a_singular_matrix_is_an_error() -> None:
    with pytest.raises(KernelError, match="no inverse"):
        run_op("Inverse", [np.ones((2, 2), np.float32)], **MS)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_of_rows(metric: str, dtype: Any) -> None:
    inputs = [normal(5, 7).astype(dtype), normal(3, 7).astype(dtype)]
    check_op("CDist", inputs, metric=metric, **MS, rtol=1e-4, atol=1e-4)


def test_distances_of_close_rows_do_not_cancel() -> None:
    a = np.full((1, 4), 1000, np.float32)
    b = a + np.float32(0.25)
    (y,) = run_op("CDist", [a, b], metric="euclidean", **MS)
    assert y.tolist() == [[0.5]]


def test_distances_come_in_pieces() -> None:
    a, b = normal(300, 40), normal(100, 40)
    (y,) = run_op("CDist", [a, b], **MS)
    expected = ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(-1)
    assert_close([y], [expected.astype(np.float32)], rtol=1e-4)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 2), (0, 2, 1), (1, 4, 4)])
def test_unfolding(dim: int, size: int, step: int) -> None:
    check_op("UnfoldTensor", [normal(3, 5, 8)], dim=dim, size=size, step=step, **MS)


@pytest.mark.parametrize("k", [None, -1, 2])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(k: int | None, upper: int) -> None:
    check_op("Trilu", [normal(2, 3, 4), None if k is None else np.array(k)], upper=upper, **MS)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("delta", [None, 2])
def test_range_with_or_without_delta(dtype: Any, delta: int | None) -> None:
    inputs = [np.array(v, dtype) if v is not None else None for v in (3, 10, delta)]
    check_op("Range", inputs, **MS)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("row", [False, True])
def test_pad(mode: str, row: bool) -> None:
    pads = np.array([1, 2, 0, 1])
    value = np.array([7], np.float32) if mode == "constant" else None
    check_op("Pad", [normal(3, 4), pads[None] if row else pads, value], mode=mode, **MS)


def test_unique_in_order_of_occurrence() -> None:
    check_op("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], n_outputs=3, **MS)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_expand_dims(axis: int) -> None:
    check_op("ExpandDims", [normal(2, 3), np.array(axis, np.int32)], **MS)


def test_gather_nd() -> None:
    check_op("GatherND", [normal(2, 3, 4), np.array([[0, 1], [1, 2]])], **MS)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode: str, padding: str) -> None:
    grid = RNG.uniform(-1.2, 1.2, (2, 3, 5, 2)).astype(np.float32)
    check_op(
        "GridSample", [normal(2, 2, 4, 6), grid], mode=mode, padding_mode=padding, **MS, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose_with_pads_as_an_input(bias: bool) -> None:
    x, w, b = normal(1, 2, 4, 5), normal(2, 3, 3, 3), [normal(3)] if bias else []
    keywords: dict[str, Any] = {"strides": [2, 1], **MS}
    check_op(
        "ConvTransposeWithDynamicPads", [x, w, np.array([0, 1, 1, 0]), *b], **keywords, rtol=1e-4, atol=1e-5
    )
    without = run_op("ConvTransposeWithDynamicPads", [x, w, None, *b], **keywords)
    assert_close(without, run_op("ConvTranspose", [x, w, *b], opset=11, strides=[2, 1]))


@pytest.mark.parametrize("size", [(3, 4), (1, 1), (5, 1)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crop_and_resize(size: tuple[int, int], mode: str) -> None:
    rois = np.array([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9], [-0.3, 0.5, 1.2, 0.1]], np.float32)
    inputs = [normal(2, 3, 6, 7), rois, np.array([1, 0, 1], np.int32), np.array(size, np.int32)]
    check_op("CropAndResize", inputs, mode=mode, extrapolation_value=0.5, **MS, rtol=1e-4, atol=1e-4)


def test_a_region_of_no_image_is_an_error() -> None:
    inputs = [
        normal(1, 1, 2, 2),
        np.zeros((1, 4), np.float32),
        np.array([1], np.int32),
        np.array([1, 1], np.int32),
    ]
    with pytest.raises(KernelError, match="batch of 1"):
        run_op("CropAndResize", inputs, **MS)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_repeated_n_grams_are_blocked(size: int) -> None:
    ids = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4], [0, 1, 2, 3, 4]])
    check_op("NGramRepeatBlock", [ids, normal(3, 6)], ngram_size=size, **MS)


def test_a_blocked_token_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(KernelError, match="vocabulary of 3"):
        run_op("NGramRepeatBlock", [np.array([[1, 9, 1]]), normal(1, 3)], ngram_size=2, **MS)


@pytest.mark.parametrize("shape", [(4, 6), (1, 6, 3), (1, 1), (7, 1)])
@pytest.mark.parametrize("ties", [False, True])
def test_time_warping(shape: tuple[int, ...], ties: bool) -> None:
    cost = RNG.integers(0, 3, shape).astype(np.float32) if ties else normal(*shape)
    check_op("DynamicTimeWarping", [cost], **MS)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_hashes_of_numbers(positive: int, seed: int, dtype: Any) -> None:
    check_op("MurmurHash3", [np.array([[0, 1, 3], [100, 77, 2]], dtype)], positive=positive, seed=seed, **MS)


def test_hashes_of_strings() -> None:
    texts = np.array(["", "a", "ab", "abc", "abcd", "größer als vier"], object)
    check_op("MurmurHash3", [texts], seed=7, **MS)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}),
        ("ScaledTanh", {"alpha": 1.5, "beta": 0.5}),
        ("ParametricSoftplus", {"alpha": 1.5, "beta": 0.5}),
        ("Scale", {"scale": 0.25}),
        ("ImageScaler", {"scale": 2.0, "bias": [0.5, -1.0, 0.0]}),
        ("Crop", {"border": [1, 0, 2, 1]}),
        ("Crop", {"border": [1, 1, 0, 0], "scale": [2, 3]}),
    ],
)
def test_dropped_operators_of_old_opsets(op_type: str, attributes: dict[str, Any]) -> None:
    check_op(op_type, [normal(2, 3, 4, 5)], opset=8, **attributes)
