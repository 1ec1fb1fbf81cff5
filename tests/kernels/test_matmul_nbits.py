"""MatMulNBits against onnxruntime, and NumPy where onnxruntime does not do what the text says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.derived import derived
from tests.kernels.harness import assert_close, compile_op, run_op
from tests.kernels.peer import onnxruntime

RNG = np.random.default_rng(21)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}


def operands(
    rows: tuple[int, ...] = (3,),
    *,
    depth: int = 40,
    n: int = 7,
    bits: int = 4,
    block: int = 16,
    dtype: Any = np.float32,
    zero: str | None = None,
    bias: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    count = -(-depth // block)
    inputs: list[Any] = [
        RNG.standard_normal((*rows, depth)).astype(dtype),
        RNG.integers(0, 256, (n, count, block * bits // 8)).astype(np.uint8),
        RNG.uniform(0.5, 2, (n, count)).astype(dtype),
        None,
        None,
        RNG.standard_normal(n).astype(dtype) if bias else None,
    ]
    if zero == "packed":
        inputs[3] = RNG.integers(0, 256, (n, -(-count * bits // 8))).astype(np.uint8)
    elif zero == "float":
        inputs[3] = RNG.uniform(0, 1 << bits, (n, count)).astype(dtype)
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"K": depth, "N": n, "bits": bits, "block_size": block}


def dequantised(inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """(N, K) in float64, written from the operator's text."""
    n, depth, bits, block = (attributes[k] for k in ("N", "K", "bits", "block_size"))
    _, b, scales, zero, group, _ = (*inputs, None, None, None)[:6]
    stream = np.unpackbits(b, axis=-1, bitorder="little").reshape(n, -1, bits)
    values = (stream * (1 << np.arange(bits))).sum(-1)[:, :depth]
    column = np.arange(depth) // block if group is None else group
    scales = scales.astype(np.float64).reshape(n, -1)
    if zero is None:
        zeros = np.full(scales.shape, 1 << (bits - 1))
    elif zero.dtype == np.uint8:
        flags = np.unpackbits(zero.reshape(n, -1), axis=-1, bitorder="little")
        whole = flags.shape[1] // bits * bits
        zeros = (flags[:, :whole].reshape(n, -1, bits) * (1 << np.arange(bits))).sum(-1)
    else:
        zeros = zero.astype(np.float64)
    return (values - zeros[:, column]) * scales[:, column]


TAKEN = [
    (bits, zero) for bits in (2, 4, 8) for zero in (None, "packed", "float") if (bits, zero) != (8, "float")
]
"""What onnxruntime takes."""


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("bits", "zero"), TAKEN)
def test_products_agree_with_onnxruntime(bits: int, zero: str | None, dtype: Any) -> None:
    rtol, atol = (1e-5, 1e-4) if dtype == np.float32 else (1e-3, 1e-2)
    for rows, depth, block, bias in (((3,), 40, 16, True), ((2, 1), 256, 64, False), ((1,), 300, 256, True)):
        inputs, attributes = operands(
            rows, depth=depth, bits=bits, block=block, dtype=dtype, zero=zero, bias=bias
        )
        actual = run_op("MatMulNBits", inputs, **attributes, **MS)
        assert_close(actual, onnxruntime("MatMulNBits", inputs, **attributes), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bits", [3, 5, 6, 7, 8])
@pytest.mark.parametrize("zero", [None, "packed", "float"])
def test_products_agree_with_the_text(bits: int, zero: str | None) -> None:
    inputs, attributes = operands(depth=70, bits=bits, block=32, zero=zero)
    (y,) = run_op("MatMulNBits", inputs, **attributes, **MS)
    np.testing.assert_allclose(y, inputs[0] @ dequantised(inputs, attributes).T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("zero", [None, "packed", "float"])
def test_a_group_index_names_the_block_of_each_column(bits: int, zero: str | None) -> None:
    # onnxruntime leaves packed zero points out where there is a group index, and takes 2 bits for 4.
    inputs, attributes = operands(depth=40, bits=bits, zero=zero)
    inputs += [None] * (4 - len(inputs)) + [RNG.integers(0, 3, 40).astype(np.int32)]
    (y,) = run_op("MatMulNBits", inputs, **attributes, **MS)
    np.testing.assert_allclose(y, inputs[0] @ dequantised(inputs, attributes).T, rtol=1e-4, atol=1e-3)
    if bits == 4 and zero != "packed":
        assert_close([y], onnxruntime("MatMulNBits", inputs, **attributes), atol=1e-4)
    inputs[4][5] = 3
    with pytest.raises(KernelError, match=r"outside \[0, 2\]"):
        run_op("MatMulNBits", inputs, **attributes, **MS)


def test_activations_are_not_rounded_at_any_accuracy_level() -> None:
    inputs, attributes = operands((4,), depth=64, block=32, n=16)
    plain = run_op("MatMulNBits", inputs, **attributes, **MS)
    assert_close(run_op("MatMulNBits", inputs, accuracy_level=4, **attributes, **MS), plain, rtol=0, atol=0)


def test_bfloat16_is_made_in_float32() -> None:
    inputs, attributes = operands(dtype=ml_dtypes.bfloat16, bias=True)
    (y,) = run_op("MatMulNBits", inputs, **attributes, **MS)
    assert y.dtype == inputs[0].dtype
    wide = [a if a is None or a.dtype == np.uint8 else a.astype(np.float32) for a in inputs]
    (expected,) = run_op("MatMulNBits", wide, **attributes, **MS)
    assert (y == expected.astype(ml_dtypes.bfloat16)).all()


def test_scales_and_zero_points_may_lie_in_one_axis() -> None:
    inputs, attributes = operands(zero="packed")
    flat = [*inputs[:2], inputs[2].reshape(-1), inputs[3].reshape(-1)]
    assert_close(
        run_op("MatMulNBits", flat, **attributes, **MS), run_op("MatMulNBits", inputs, **attributes, **MS)
    )


def test_weights_without_an_element_stand_for_zeros() -> None:
    inputs, attributes = operands(bias=True)
    inputs[1] = np.zeros((0, 3, 8), np.uint8)
    (y,) = run_op("MatMulNBits", inputs, **attributes, **MS)
    assert (y == inputs[5]).all()
    (y,) = run_op("MatMulNBits", inputs[:3], **attributes, **MS)
    assert (y == 0).all()


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_no_rows_give_no_rows(rows: tuple[int, ...]) -> None:
    inputs, attributes = operands(rows)
    assert run_op("MatMulNBits", inputs, **attributes, **MS)[0].shape == (*rows, 7)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def test_constant_weights_are_dequantised_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, attributes = operands((3,))
    made: list[Any] = []

    def counting(recipe: Any, sources: Any, make: Any) -> Any:
        made.append(derived(recipe, sources, make))
        return made[-1]

    monkeypatch.setattr("hetero.kernels.matmul_nbits.derived", counting)
    weights = [frozen(a) for a in inputs[1:]]
    expected = dequantised(inputs, attributes)
    held = []
    for rows in ((3,), (1,), (2, 5)):
        a = RNG.standard_normal((*rows, 40)).astype(np.float32)
        _, compiled = compile_op("MatMulNBits", [a, *weights], **attributes, **MS)
        assert compiled.bind is not None
        y = np.empty((*rows, 7), np.float32)
        call = compiled.bind([a, *weights], [y], np.empty(compiled.workspace_bytes, np.uint8))
        call()
        held.append(call)
        np.testing.assert_allclose(y, a @ expected.T, rtol=1e-4, atol=1e-3)
    assert len(made) == 3
    assert all(array is made[0] for array in made)


def test_operands_that_contradict_the_attributes_are_errors() -> None:
    inputs, attributes = operands()
    for change, message in (
        ({"K": 41}, "for K = 41"),
        ({"N": 8}, r"not \[8, 3, 8\]"),
        ({"block_size": 24}, "power of two"),
        ({"block_size": 8}, "from 16 on"),
    ):
        with pytest.raises(KernelError, match=message):
            run_op("MatMulNBits", inputs, **attributes | change, **MS)
    with pytest.raises(UnsupportedError, match="another device"):
        run_op("MatMulNBits", inputs, weight_prepacked=1, **attributes, **MS)
    with pytest.raises(UnsupportedError, match="9 bits"):
        run_op("MatMulNBits", inputs, **attributes | {"bits": 9}, **MS)
