"""BatchNormalization at inference and in training."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(11)


def operands(shape: tuple[int, ...], dtype: Any = np.float32, statistics: Any = None) -> list[Any]:
    c = shape[1] if len(shape) > 1 else 1
    s, b, m = (RNG.standard_normal(c) for _ in range(3))
    v = RNG.uniform(0.5, 2, c)
    x = RNG.standard_normal(shape).astype(dtype)
    wide = statistics or dtype
    return [x, s.astype(dtype), b.astype(dtype), m.astype(wide), v.astype(wide)]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3), (1, 3, 90000), (3, 2, 4), (0, 3, 4)])
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_inference(shape: tuple[int, ...], opset: int) -> None:
    check_op("BatchNormalization", operands(shape), opset=opset, epsilon=1e-3, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2, 4), (1, 1, 70000)])
def test_constant_statistics_and_the_twin_change_no_more_than_the_last_bit(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = operands(shape)
    _, compiled = compile_op("BatchNormalization", inputs, opset=15)
    assert compiled.bind is not None
    found = set()
    for writeable in (True, False):
        bound, y = [a.copy() for a in inputs], np.empty(shape, np.float32)
        for a in bound:
            a.flags.writeable = writeable
        compiled.bind(bound, [y], np.empty(compiled.workspace_bytes, np.uint8))()
        found.add(y.tobytes())
    assert len(found) == 1
    monkeypatch.setenv("HETERO_JIT", "0")
    assert_close(run_op("BatchNormalization", inputs, opset=15), [y], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_statistics_may_be_wider_than_the_input(dtype: Any) -> None:
    wide = operands((2, 3, 4))
    inputs = [wide[0].astype(dtype), *(a.astype(dtype) for a in wide[1:3]), *wide[3:]]
    (expected,) = run_op("BatchNormalization", [a.astype(np.float32) for a in inputs], opset=15)
    assert_close(
        run_op("BatchNormalization", inputs, opset=15), [expected.astype(dtype)], rtol=1e-2, atol=1e-2
    )


def test_one_axis_is_the_batch() -> None:
    inputs = operands((5,))
    x, s, b, m, v = inputs
    assert_close(
        run_op("BatchNormalization", inputs, opset=15), [(x - m) / np.sqrt(v + 1e-5) * s + b], rtol=1e-5
    )


@pytest.mark.parametrize("opset", [14, 15])
def test_training_yields_running_averages(opset: int) -> None:
    inputs = operands((4, 3, 5))
    x, s, b, m, v = inputs
    mean, var = x.mean((0, 2)), x.var((0, 2))
    y = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * s[:, None] + b[:, None]
    expected = [y, m * 0.8 + mean * 0.2, v * 0.8 + var * 0.2]
    keywords: dict[str, Any] = {"opset": opset, "training_mode": 1, "momentum": 0.8, "n_outputs": 3}
    actual = run_op("BatchNormalization", inputs, **keywords)
    assert_close(actual, [e.astype(np.float32) for e in expected], rtol=1e-4, atol=1e-5)
    assert run_op("BatchNormalization", inputs, omit=[1], **keywords)[1] is None


def test_version_7_may_be_given_a_value_for_each_element() -> None:
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    s, b, m = (RNG.standard_normal((3, 4)).astype(np.float32) for _ in range(3))
    v = RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
    expected = (x - m) / np.sqrt(v + 1e-5) * s + b
    actual = run_op("BatchNormalization", [x, s, b, m, v], opset=7, spatial=0)
    assert_close(actual, [expected], rtol=1e-4, atol=1e-5)


def test_what_is_not_served_or_does_not_fit() -> None:
    inputs = operands((2, 3, 4))
    with pytest.raises(UnsupportedError, match="training before version 14"):
        run_op("BatchNormalization", inputs, opset=9, n_outputs=3)
    with pytest.raises(KernelError, match="for 3 channels"):
        run_op("BatchNormalization", [inputs[0], inputs[1][:2], *inputs[2:]], opset=15)
