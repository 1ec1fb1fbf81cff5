"""QAttention against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, compile_op, run_op
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(35)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
BATCH, DEPTH, HEADS, SIZE = 2, 12, 3, 8
COLUMNS = 3 * HEADS * SIZE
MASKS = {
    "ends": [3, 4],
    "ends and starts": [3, 4, 1, 0],
    "keys": [[1, 1, 0, 1], [1, 1, 1, 1]],
    "queries and keys": [[[1, 0, 1, 1]] * 4, [[1, 1, 1, 0]] * 4],
}


def operands(
    weight: Any = np.int8,
    *,
    columns: bool = False,
    mask: Any = None,
    past: int = 0,
    length: int = 4,
    zero: bool = True,
) -> list[Any]:
    n = (COLUMNS,) if columns else ()
    inputs = [
        Q.integers(np.uint8, BATCH, length, DEPTH), Q.integers(weight, DEPTH, COLUMNS), Q.normal(COLUMNS),
        Q.scale(low=0.005, high=0.01), Q.scale(*n, low=0.001, high=0.002),
        None if mask is None else np.array(mask, np.int32),
        Q.integers(np.uint8), Q.integers(weight, *n) if zero else None,
        Q.normal(2, BATCH, HEADS, past, SIZE) if past else None,
    ]  # fmt: skip
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def check(inputs: list[Any], **attributes: Any) -> None:
    keywords = {"num_heads": HEADS, "n_outputs": 2, **attributes}
    actual = run_op("QAttention", inputs, **keywords, **MS)
    assert_close(actual, onnxruntime("QAttention", inputs, **keywords), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True], ids=["", "per column"])
@pytest.mark.parametrize("zero", [False, True], ids=["", "zero points"])
def test_bytes_are_projected_and_attended_to(zero: bool, columns: bool, weight: Any) -> None:
    check(operands(weight, columns=columns, zero=zero))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("form", MASKS)
def test_every_form_of_mask(form: str, causal: int) -> None:
    check(operands(mask=MASKS[form]), unidirectional=causal, mask_filter_value=-100.0)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_past_comes_first(causal: int) -> None:
    check(operands(past=3), unidirectional=causal)
    check(operands(past=3, length=1), unidirectional=causal, scale=0.3)
    mask = [[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 1]]
    check(operands(past=2, mask=mask), unidirectional=causal)


def test_the_present_may_be_left_out() -> None:
    inputs = operands(past=3)
    both = run_op("QAttention", inputs, num_heads=HEADS, n_outputs=2, **MS)
    (one,) = run_op("QAttention", inputs, num_heads=HEADS, **MS)
    assert (one == both[0]).all()


def test_signed_input_and_operands_that_do_not_fit() -> None:
    inputs = operands()
    signed = [(inputs[0] ^ 128).view(np.int8), *inputs[1:6], (inputs[6] ^ 128).view(np.int8), inputs[7]]
    assert_close(
        run_op("QAttention", signed, num_heads=HEADS, **MS),
        run_op("QAttention", inputs, num_heads=HEADS, **MS),
    )
    with pytest.raises(KernelError, match="not 5 heads"):
        compile_op("QAttention", inputs, num_heads=5, **MS)
    with pytest.raises(KernelError, match="for an input"):
        compile_op("QAttention", [inputs[0], inputs[1][:5], *inputs[2:]], num_heads=HEADS, **MS)
    with pytest.raises(UnsupportedError, match="rotation"):
        compile_op("QAttention", inputs, num_heads=HEADS, do_rotary=1, **MS)
