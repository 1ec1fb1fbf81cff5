"""The elementwise quantised operators of com.microsoft, concatenation and softmax: the very bytes of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import lookup
from hetero.kernels.qlinear_binary import merged
from hetero.program.operation import Operation
from tests.kernels.harness import compile_op, run_op, specs_of
from tests.kernels.peer import onnxruntime
from tests.kernels.quantities import Quantities

Q = Quantities(32)
MS: dict[str, Any] = {"opset": 1, "domain": "com.microsoft"}
BYTES = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def check(op_type: str, inputs: list[Any], **attributes: Any) -> Any:
    (y,) = run_op(op_type, inputs, **attributes, **MS)
    for optimised in (False, True):
        (expected,) = onnxruntime(op_type, inputs, optimised=optimised, **attributes)
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        assert (y == expected).all()
    return y


@BYTES
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_every_pair_of_bytes(op_type: str, dtype: Any) -> None:
    codes = np.arange(256).astype(np.uint8).view(dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(codes, codes))
    for _ in range(4):
        check(op_type, [a, *Q.pair(dtype), b, *Q.pair(dtype), *Q.pair(dtype)])
    for scales in ((0.5, 0.5, 0.5), (0.25, 0.5, 1)):  # half of the sums lie between two levels
        one, two, three = (np.asarray(s, np.float32) for s in scales)
        zero = Q.integers(dtype)
        check(op_type, [a, one, zero, b, two, zero, three, zero])


@BYTES
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 8, 9, 9), (1, 8, 1, 1)), ((5,), (3, 4, 5)), ((), (3, 4)), ((2, 3, 1, 4), (1, 3, 5, 1)),
        ((0, 3), (1, 3)), ((), ()), ((3, 4), (1,)), ((300, 200), (300, 200)), ((300, 1), (1, 200)),
    ],
    ids=str,
)  # fmt: skip
def test_operands_broadcast(a: Any, b: Any, dtype: Any) -> None:
    for op_type in ("QLinearAdd", "QLinearMul"):
        inputs = [
            Q.integers(dtype, *a),
            *Q.pair(dtype),
            Q.integers(dtype, *b),
            *Q.pair(dtype),
            *Q.pair(dtype),
        ]
        check(op_type, inputs)


def test_neighbouring_axes_are_joined_where_both_operands_run_alike() -> None:
    assert merged((1, 8, 9, 9), (1, 8, 1, 1)) == ([8, 81], [8, 1])
    assert merged((4, 5), (4, 5)) == ([20], [20])
    assert merged((2, 3, 1, 4), (1, 3, 5, 1)) == ([2, 3, 1, 4], [1, 3, 5, 1])
    assert merged((1, 1), (1, 1)) == ([1], [1])


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_a_zero_point_that_is_left_out_is_zero(op_type: str) -> None:
    a, b, zero = Q.integers(np.uint8, 40), Q.integers(np.uint8, 40), np.uint8(0)
    one, two, three = Q.scale(), Q.scale(), Q.scale()
    bare = run_op(op_type, [a, one, None, b, two, None, three], **MS)
    full = run_op(
        op_type, [a, one, np.asarray(zero), b, two, np.asarray(zero), three, np.asarray(zero)], **MS
    )
    assert (bare[0] == full[0]).all()


@BYTES
def test_tables_hold_what_each_byte_gives(dtype: Any) -> None:
    codes = np.arange(256).astype(np.uint8).view(dtype).reshape(2, 128)
    for _ in range(8):
        inputs = [codes, *Q.pair(dtype), *Q.pair(dtype)]
        check("QLinearSigmoid", inputs)
        check("QLinearLeakyRelu", inputs)
        check("QLinearLeakyRelu", inputs, alpha=0.3)
    check("QLinearSigmoid", [codes, Q.scale(), None, *Q.pair(dtype)])


@BYTES
def test_concatenation_requantises_each_operand(dtype: Any) -> None:
    pair = Q.pair(dtype)
    parts = [[Q.integers(dtype, 2, n, 4), *Q.pair(dtype)] for n in (3, 5, 0)]
    same = [Q.integers(dtype, 2, 1, 4), *pair]
    inputs = [*pair, *(x for part in (*parts, same) for x in part)]
    y = check("QLinearConcat", inputs, axis=-2)
    assert (y[:, -1:] == same[0]).all()


@BYTES
def test_where_requantises_what_it_chooses(dtype: Any) -> None:
    for condition, x, y in (((3, 4), (3, 4), (1, 4)), ((2, 1, 4), (3, 4), ()), ((), (2,), (2,))):
        chosen = np.asarray(Q.rng.random(condition) > 0.5)
        operands = [Q.integers(dtype, *x), *Q.pair(dtype), Q.integers(dtype, *y), *Q.pair(dtype)]
        check("QLinearWhere", [chosen, *operands, *Q.pair(dtype)])


def softmax(inputs: list[Any], axis: int, opset: int) -> Any:
    """QLinearSoftmax has an attribute named opset, which is a parameter of `run_op`."""
    run_op("QLinearSigmoid", [np.zeros(1, np.uint8), Q.scale(), None, Q.scale()], **MS)  # loads the kernels
    present = tuple(x is not None for x in inputs)
    attributes = {"axis": axis, "opset": opset}
    op = Operation("com.microsoft", "QLinearSoftmax", 1, attributes, present, (True,), name="node", opset=1)
    definition = lookup("com.microsoft", "QLinearSoftmax", 1)
    assert definition is not None
    compiled = definition.compile(op, specs_of(inputs), np)
    assert compiled.bind is not None
    y = np.full(inputs[0].shape, 7, inputs[0].dtype)
    compiled.bind(inputs, [y], None)()
    return y


@BYTES
@pytest.mark.parametrize(
    ("shape", "axis", "opset"),
    [
        ((3, 40), -1, 13), ((3, 40, 5), 1, 13), ((2, 3, 5), 1, 11), ((40, 3, 5), -1, 12), ((300,), 0, 13),
        ((4, 1), 1, 13), ((0, 3), 1, 13),
    ],
)  # fmt: skip
def test_softmax(shape: Any, axis: int, opset: int, dtype: Any) -> None:
    low = np.asarray(np.iinfo(dtype).min, dtype)
    # A row of one overflows in onnxruntime where 1 is more than 127 levels.
    for scale in (0.3, 0.01) if shape[axis] == 1 else (0.3, 0.01, 1 / 255):
        x = [Q.integers(dtype, *shape), Q.scale(low=0.001, high=0.3), Q.integers(dtype)]
        inputs = [*x, np.asarray(scale, np.float32), low]
        keywords: dict[str, Any] = {"axis": axis, "extra": {"opset": opset}}
        assert (softmax(inputs, axis, opset) == onnxruntime("QLinearSoftmax", inputs, **keywords)[0]).all()


def test_a_probability_of_one_saturates() -> None:
    # onnxruntime lets 128 wrap around to -128 here.
    x = np.array([[-128, 127]], np.int8)
    inputs = [x, np.asarray(1, np.float32), None, np.asarray(1 / 256, np.float32), np.asarray(-128, np.int8)]
    assert softmax(inputs, -1, 13).tolist() == [[-128, 127]]
    single = [np.zeros((2, 1), np.uint8), *inputs[1:4], np.asarray(0, np.uint8)]
    assert softmax(single, -1, 13).tolist() == [[255], [255]]


def test_operands_of_another_kind_are_refused() -> None:
    a = Q.integers(np.uint8, 3)
    rest = [*Q.pair(np.uint8), a, *Q.pair(np.uint8), *Q.pair(np.uint8)]
    with pytest.raises(KernelError, match="must be one number"):
        compile_op("QLinearAdd", [a, Q.scale(3), *rest[1:]], **MS)
    with pytest.raises(KernelError, match="differ in dtype"):
        compile_op("QLinearMul", [a.astype(np.int8), *rest], **MS)
    with pytest.raises(UnsupportedError, match="scale of float16"):
        compile_op("QLinearAdd", [a, rest[0].astype(np.float16), *rest[1:]], **MS)
    with pytest.raises(UnsupportedError, match="int16"):
        compile_op("QLinearSigmoid", [a.astype(np.int16), Q.scale(), None, Q.scale()], **MS)
    with pytest.raises(KernelError, match="two and then three"):
        compile_op("QLinearConcat", [*Q.pair(np.uint8), a, Q.scale()], axis=0, **MS)
    parts = [a, *Q.pair(np.uint8), a.reshape(1, 3), *Q.pair(np.uint8)]
    with pytest.raises(KernelError, match="does not join"):
        compile_op("QLinearConcat", [*Q.pair(np.uint8), *parts], axis=0, **MS)
