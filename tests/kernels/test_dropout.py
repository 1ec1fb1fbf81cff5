"""Dropout passes its input on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import UnsupportedError
from tests.kernels.harness import assert_close, compile_op, run_op

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_inference_is_a_view_and_the_mask_keeps_everything(opset: int) -> None:
    assert_close(run_op("Dropout", [X], opset=opset), [X])
    _, compiled = compile_op("Dropout", [X], opset=opset)
    assert compiled.view is not None
    mask = np.ones((2, 3), bool if opset >= 10 else np.float32)
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2), [X, mask])
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2, omit=[0]), [None, mask])
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2, omit=[1]), [X, None])


@pytest.mark.parametrize(("ratio", "training"), [(0.5, False), (0.0, True), (None, False)])
def test_no_training_and_no_ratio_change_nothing(ratio: Any, training: bool) -> None:
    inputs = [X, None if ratio is None else np.array(ratio, np.float32), np.array(training)]
    assert_close(run_op("Dropout", inputs, opset=13), [X])


def test_training_is_declined() -> None:
    with pytest.raises(UnsupportedError, match="at random"):
        run_op("Dropout", [X, np.array(0.5, np.float32), np.array(True)], opset=13)
