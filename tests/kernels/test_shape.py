"""Shape arithmetic on the host: values known when compiled, declared sizes bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels.limits import KNOWN_VALUE_ELEMENTS
from hetero.program.program import Dispatch
from hetero.types import TensorSpec
from tests.kernels.harness import check_op, compile_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def scalars(*values: Any, dtype: Any = np.int64) -> list[Any]:
    return [np.array(v, dtype) for v in values]


@pytest.mark.parametrize(
    "attributes",
    [{}, {"start": 1}, {"end": -1}, {"start": -2}, {"start": -9, "end": 9}, {"start": 2, "end": 1}],
)
def test_shape_takes_a_clamped_range_of_axes(attributes: dict[str, int]) -> None:
    check_op("Shape", [np.zeros((2, 3, 4))], opset=15, **attributes)


@pytest.mark.parametrize("opset", [7, 13, 19, 21, 23, 24, 25])
def test_every_version_of_shape_and_size_is_served(opset: int) -> None:
    x = np.zeros((2, 0, 4))
    assert run_op("Shape", [x], opset=opset)[0].tolist() == [2, 0, 4]
    assert run_op("Size", [x], opset=opset)[0].tolist() == 0
    assert run_op("Shape", [np.array(1.0)], opset=opset)[0].shape == (0,)


def test_shape_is_known_when_compiled_and_reads_no_input() -> None:
    _, compiled = compile_op("Shape", [np.zeros((2, 3))], opset=15)
    assert isinstance(compiled.outputs[0], TensorSpec)
    assert compiled.outputs[0].value is not None
    assert compiled.outputs[0].value.tolist() == [2, 3]
    assert not compiled.outputs[0].value.flags.writeable
    assert compiled.bind is not None
    out = np.empty(2, np.int64)
    compiled.bind([None], [out], None)()
    assert out.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("start", "limit", "delta", "dtype"),
    [
        (0, 10, 3, np.int64),
        (10, 0, -3, np.int32),
        (0, -5, 2, np.int16),
        (5, 5, 1, np.int64),
        (0, 1, 0.1, np.float32),
        (1, 0, -0.25, np.float64),
        (-(2**63), 2**63 - 1, 2**62, np.int64),
    ],
)
def test_range_counts_as_onnxruntime_does(start: Any, limit: Any, delta: Any, dtype: Any) -> None:
    check_op("Range", scalars(start, limit, delta, dtype=dtype), opset=11)


def test_half_precision_ranges_do_not_drift() -> None:
    (out,) = run_op("Range", scalars(0, 3000, 1, dtype=np.float16), opset=27)
    assert out.tolist() == np.arange(3000).astype(np.float16).tolist()


def test_a_long_range_is_computed_when_bound() -> None:
    n = KNOWN_VALUE_ELEMENTS + 1
    inputs = scalars(0, n, 1)
    _, compiled = compile_op("Range", inputs, opset=11)
    assert isinstance(compiled.outputs[0], TensorSpec)
    assert compiled.outputs[0].value is None
    assert run_op("Range", inputs, opset=11)[0].tolist() == list(range(n))


def test_range_refuses_what_has_no_end() -> None:
    with pytest.raises(KernelError, match="is 0"):
        run_op("Range", scalars(0, 1, 0), opset=11)
    with pytest.raises(KernelError, match=r"cannot count from 0\.0 to inf by 1\.0"):
        run_op("Range", scalars(0, np.inf, 1, dtype=np.float32), opset=11)
    with pytest.raises(KernelError, match="must hold one element"):
        run_op("Range", [i64(0, 1), *scalars(5, 1)], opset=11)
    with pytest.raises(MemoryLimitError, match="would hold 9223372036854775807 elements"):
        run_op("Range", scalars(0, 2**63 - 1, 1), opset=11)
    with pytest.raises(MemoryLimitError, match="elements"):
        run_op("Range", scalars(0, 1e30, 1, dtype=np.float64), opset=11)


def test_constant_of_shape_fills_with_its_value() -> None:
    check_op("ConstantOfShape", [i64(2, 3)], opset=9)
    check_op("ConstantOfShape", [i64(2, 0)], opset=9, value=np.array([7], np.int32))
    (scalar,) = run_op("ConstantOfShape", [np.zeros(0, np.int64)], opset=20, value=np.array([True]))
    assert scalar.shape == ()
    assert scalar.tolist() is True


def test_constant_of_shape_knows_small_results_alone() -> None:
    _, small = compile_op("ConstantOfShape", [i64(3)], opset=9, value=np.array([2], np.int64))
    _, large = compile_op("ConstantOfShape", [i64(KNOWN_VALUE_ELEMENTS + 1)], opset=9)
    assert isinstance(small.outputs[0], TensorSpec)
    assert isinstance(large.outputs[0], TensorSpec)
    assert small.outputs[0].value is not None
    assert small.outputs[0].value.tolist() == [2, 2, 2]
    assert large.outputs[0].value is None


def test_constant_of_shape_is_bounded_before_it_allocates() -> None:
    with pytest.raises(MemoryLimitError, match=r"shape \[4294967296, 4294967296, 4\]") as caught:
        run_op("ConstantOfShape", [i64(2**32, 2**32, 4)], opset=9)
    assert caught.value.node == "node"
    with pytest.raises(MemoryLimitError, match="68719476744 bytes"):
        run_op("ConstantOfShape", [i64(2**34 // 2 + 1)], opset=9, value=np.array([0], np.int64))
    with pytest.raises(KernelError, match="no shape"):
        run_op("ConstantOfShape", [i64(-1)], opset=9)


@pytest.mark.parametrize(
    ("attributes", "expected", "dtype"),
    [
        ({"value_int": 3}, 3, np.int64),
        ({"value_ints": [1, 2]}, [1, 2], np.int64),
        ({"value_float": 0.5}, 0.5, np.float32),
        ({"value_floats": [0.5, 2.0]}, [0.5, 2.0], np.float32),
        ({"value_string": "é"}, "é", object),
        ({"value_strings": ["a", b"b"]}, ["a", "b"], object),
        ({"value": np.array([[1.5]], np.float16)}, [[1.5]], np.float16),
    ],
)
def test_constant_takes_every_kind_of_value(attributes: dict[str, Any], expected: Any, dtype: Any) -> None:
    (out,) = run_op("Constant", [], opset=13, **attributes)
    assert out.dtype == dtype
    assert out.tolist() == expected


def test_constant_holds_exactly_one_value_and_keeps_its_attribute_writable() -> None:
    with pytest.raises(KernelError, match="holds one value"):
        run_op("Constant", [], opset=13)
    with pytest.raises(UnsupportedError, match="no dense tensor"):
        run_op("Constant", [], opset=13, sparse_value=("indices", "values"))
    value = np.zeros(2)
    run_op("Constant", [], opset=13, value=value)
    assert value.flags.writeable


def test_shape_kernels_run_on_the_host() -> None:
    from hetero.kernels.base import lookup

    for op_type, version in (("Shape", 15), ("Size", 13), ("Range", 11), ("ConstantOfShape", 9)):
        definition = lookup("", op_type, version)
        assert definition is not None
        assert definition.dispatch == Dispatch.HOST
