"""QEmbedLayerNormalization against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import assert_close, run_op
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(34)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}


def operands(dtype: Any, *, segments: bool = True, mask: bool = True) -> list[Any]:
    tables = [Q.integers(dtype, n, 8) for n in (9, 5, 2)] + [Q.integers(dtype, 8), Q.integers(dtype, 8)]
    pairs = [Q.pair(dtype) for _ in tables]
    if not segments:
        tables[2], pairs[2] = None, [None, None]
    return [
        Q.rng.integers(0, 9, (2, 3)).astype(np.int32),
        Q.rng.integers(0, 2, (2, 3)).astype(np.int32) if segments else None,
        *tables,
        np.array([[1, 1, 0], [1, 1, 1]], np.int32) if mask else None,
        *(p[0] for p in pairs),
        *(p[1] for p in pairs),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_tables_of_bytes_are_summed_and_normalised(mask: bool, segments: bool, dtype: Any) -> None:
    inputs = operands(dtype, segments=segments, mask=mask)
    for epsilon in (1e-12, 1e-2):
        actual = run_op("QEmbedLayerNormalization", inputs, n_outputs=2, epsilon=epsilon, **MS)
        expected = onnxruntime("QEmbedLayerNormalization", inputs, n_outputs=2, epsilon=epsilon)
        assert_close(actual, expected, rtol=1e-5, atol=1e-4)


def test_an_index_outside_a_table_is_named_when_called() -> None:
    inputs = operands(np.uint8)
    inputs[0][1, 1] = 9
    with pytest.raises(KernelError, match="9"):
        run_op("QEmbedLayerNormalization", inputs, n_outputs=2, **MS)


def test_operands_that_contradict_each_other_are_errors() -> None:
    inputs = operands(np.uint8)
    with pytest.raises(KernelError, match="come together"):
        run_op("QEmbedLayerNormalization", [inputs[0], None, *inputs[2:]], n_outputs=2, **MS)
    with pytest.raises(KernelError, match="hidden size of 8"):
        run_op("QEmbedLayerNormalization", [*inputs[:5], inputs[5][:7], *inputs[6:]], n_outputs=2, **MS)
    with pytest.raises(KernelError, match="3 tokens, 2 positions"):
        run_op("QEmbedLayerNormalization", [*inputs[:3], inputs[3][:2], *inputs[4:]], n_outputs=2, **MS)
