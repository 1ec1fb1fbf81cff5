"""Layer, RMS, group and instance normalisation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.types import DataType
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(10)


def normal(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("axis", [-1, 1, 0, -2])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layer_norm_with_statistics(axis: int, with_bias: bool, dtype: Any) -> None:
    x = normal((3, 4, 5), dtype) * 3 + 1
    inner = x.shape[axis:]
    inputs = [x, normal(inner, dtype)] + ([normal(inner, dtype)] if with_bias else [])
    y, mean, inverse = run_op("LayerNormalization", inputs, opset=17, n_outputs=3, axis=axis, epsilon=1e-3)
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    m, v = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    expected = (wide - m) / np.sqrt(v + 1e-3) * inputs[1] + (inputs[2] if with_bias else 0)
    assert_close([y], [expected.astype(dtype)], rtol=1e-4, atol=1e-5)
    statistics = [m.astype(np.float32), (1 / np.sqrt(v + 1e-3)).astype(np.float32)]
    assert_close([mean, inverse], statistics, rtol=1e-5, atol=1e-6)


def test_layer_norm_matches_onnxruntime() -> None:
    x = normal((2, 70, 384))
    check_op("LayerNormalization", [x, normal((384,)), normal((384,))], opset=17, rtol=1e-4, atol=1e-5)
    check_op(
        "LayerNormalization", [x.transpose(1, 0, 2)[::-1], normal((384,))], opset=17, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("scale", [(), (1,), (5,), (4, 5), (4, 1), (3, 1, 5), (3, 4, 5)])
def test_layer_norm_scales_that_broadcast(scale: tuple[int, ...]) -> None:
    x, s, b = normal((3, 4, 5)), normal(scale), normal(scale)
    (plain,) = run_op("LayerNormalization", [x, np.ones(5, np.float32)], opset=17)
    assert_close(run_op("LayerNormalization", [x, s, b], opset=17), [plain * s + b], atol=1e-5)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_normalised_in_float32(op_type: str, dtype: Any) -> None:
    x, s = normal((3, 300), dtype) * dtype(100), normal((300,), dtype)
    (wide,) = run_op(op_type, [x.astype(np.float32), s.astype(np.float32)], opset=23)
    assert_close(run_op(op_type, [x, s], opset=23), [wide.astype(dtype)], rtol=0, atol=0)


def test_statistics_have_the_stash_type() -> None:
    x, s = normal((3, 8), ml_dtypes.bfloat16), normal((8,), ml_dtypes.bfloat16)
    keywords: dict[str, Any] = {"opset": 17, "n_outputs": 3}
    assert run_op("LayerNormalization", [x, s], **keywords)[1].dtype == np.float32
    narrow = run_op("LayerNormalization", [x, s], stash_type=int(DataType.BFLOAT16), **keywords)
    assert narrow[2].dtype == ml_dtypes.bfloat16
    only = run_op("LayerNormalization", [x, s], omit=[1], **keywords)
    assert only[1] is None
    assert only[2].shape == (3, 1)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis: int) -> None:
    x = normal((3, 4, 5))
    check_op("RMSNormalization", [x, normal(x.shape[axis:])], opset=23, axis=axis, rtol=1e-4, atol=1e-5)
    y = run_op("RMSNormalization", [x.astype(np.float16), normal((5,))], opset=23)
    assert y[0].dtype == np.float32


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_simplified_layer_norm_yields_its_inverse(domain: str) -> None:
    x, s = normal((2, 6)), normal((6,))
    y, inverse = run_op("SimplifiedLayerNormalization", [x, s], opset=1, domain=domain, n_outputs=2)
    expected = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    assert_close([y, inverse], [x * expected * s, expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_norms_of_nothing(shape: tuple[int, ...]) -> None:
    (y,) = run_op(
        "LayerNormalization", [np.zeros(shape, np.float32), np.ones(shape[-1:], np.float32)], opset=17
    )
    assert y.shape == shape


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (3, 6, 5), (2, 6)])
def test_group_norm(opset: int, groups: int, shape: tuple[int, ...]) -> None:
    x = normal(shape)
    parameters = (groups if opset == 18 else 6,)
    s, b = normal(parameters), normal(parameters)
    grouped = x.reshape(shape[0], groups, -1).astype(np.float64)
    y = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    spread = [np.repeat(p, 6 // len(p)).reshape(1, 6, *(1,) * (len(shape) - 2)) for p in (s, b)]
    expected = (y.reshape(shape) * spread[0] + spread[1]).astype(np.float32)
    actual = run_op("GroupNormalization", [x, s, b], opset=opset, num_groups=groups)
    assert_close(actual, [expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 70000), (2, 3, 7)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    check_op(
        "InstanceNormalization", [normal(shape), normal((3,)), normal((3,))], opset=6, rtol=1e-3, atol=1e-4
    )


def test_operands_that_do_not_fit_are_errors() -> None:
    x = np.zeros((2, 6, 4), np.float32)
    with pytest.raises(KernelError, match="does not broadcast"):
        run_op("LayerNormalization", [x, np.zeros(3, np.float32)], opset=17)
    with pytest.raises(KernelError, match="does not divide"):
        run_op("GroupNormalization", [x, x[0, :, 0], x[0, :, 0]], opset=21, num_groups=4)
    with pytest.raises(KernelError, match="no float dtype"):
        run_op("LayerNormalization", [x, np.zeros(4, np.float32)], opset=17, stash_type=7)
