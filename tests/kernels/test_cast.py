"""Cast and CastLike between every pair of dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import KernelError
from hetero.types import STRING, DataType, numpy_dtype
from tests.kernels.harness import assert_close, compile_op, reference, run_op

NUMBERS = [
    t for t in DataType if t.name not in ("UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128", "FLOAT8E8M0")
]


def cast(x: Any, to: DataType, **keywords: Any) -> Any:
    return run_op("Cast", [x], opset=28, to=int(to), **keywords)[0]


@pytest.mark.parametrize("target", NUMBERS)
@pytest.mark.parametrize("source", NUMBERS)
def test_small_whole_numbers_survive_every_cast(source: DataType, target: DataType) -> None:
    x = np.array([[0, 1], [1, 0]], np.float32).astype(numpy_dtype(source))
    y = cast(x, target)
    assert y.dtype == numpy_dtype(target)
    assert y.astype(np.float32).tolist() == [[0, 1], [1, 0]]
    like = run_op("CastLike", [x, np.zeros(1, np.float32).astype(numpy_dtype(target))], opset=25)
    assert_close(like, [y])


@pytest.mark.parametrize(
    "to", [DataType.INT32, DataType.UINT8, DataType.BOOL, DataType.FLOAT16, DataType.DOUBLE]
)
def test_floats_truncate_round_or_test_for_zero(to: DataType) -> None:
    x = np.array([0.0, -0.0, 1.9, 200.7, 0.3, 2.5], np.float32)
    assert_close([cast(x, to)], reference("Cast", [x], opset=21, to=int(to)))


def test_out_of_range_floats_become_infinite_without_a_warning() -> None:
    assert cast(np.array([1e10, -1e300]), DataType.FLOAT16).tolist() == [np.inf, -np.inf]
    assert cast(np.array([1e300]), DataType.FLOAT).tolist() == [np.inf]
    assert cast(np.array([np.nan, 3e9], np.float32), DataType.INT32).shape == (2,)


def test_integers_out_of_range_drop_their_high_bits() -> None:
    assert cast(np.array([200, -1, 70000], np.int32), DataType.INT8).tolist() == [-56, -1, 112]
    assert cast(np.array([9, -9], np.int32), DataType.INT4).astype(int).tolist() == [-7, 7]


@pytest.mark.parametrize(
    ("to", "limit"),
    [
        (DataType.FLOAT8E4M3FN, 448),
        (DataType.FLOAT8E4M3FNUZ, 240),
        (DataType.FLOAT8E5M2, 57344),
        (DataType.FLOAT8E5M2FNUZ, 57344),
    ],
)
@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_float8_saturates_unless_told_not_to(to: DataType, limit: float, source: Any) -> None:
    x = np.array([np.inf, -np.inf, 65000, -65000, np.nan, 1.0], np.float32).astype(source)
    saturated = cast(x, to).astype(np.float32)
    np.testing.assert_array_equal(saturated, [limit, -limit, limit, -limit, np.nan, 1])
    infinite = np.inf if to == DataType.FLOAT8E5M2 else np.nan
    loose = cast(x, to, saturate=0).astype(np.float32)
    assert np.isinf(loose[:2]).all() if infinite == np.inf else np.isnan(loose[:2]).all()
    assert loose[5] == 1


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("up", [1, 2, 2, 4, 8]), ("down", [1, 1, 1, 2, 4]), ("nearest", [1, 1, 2, 4, 8])],
)
def test_float8e8m0_rounds_to_powers_of_two(mode: str, expected: list[float]) -> None:
    x = np.array([1, 1.25, 1.5, 3, 7], np.float32)
    y = cast(x, DataType.FLOAT8E8M0, round_mode=mode)
    assert y.astype(np.float32).tolist() == expected


def test_float8e8m0_outside_its_range_saturates_or_is_nan() -> None:
    x = np.array([0.0, np.inf, np.nan, 1e-45])
    assert cast(x, DataType.FLOAT8E8M0).view(np.uint8).tolist() == [0, 254, 255, 0]
    assert cast(x, DataType.FLOAT8E8M0, saturate=0, round_mode="nearest").view(np.uint8).tolist() == [255] * 4


def test_numbers_become_text_and_text_numbers() -> None:
    x = np.array([[0.1, -2.0], [np.inf, np.nan]], np.float32)
    texts = cast(x, DataType.STRING)
    assert texts.dtype == STRING
    assert texts.tolist() == [["0.1", "-2"], ["INF", "NaN"]]
    np.testing.assert_array_equal(cast(texts, DataType.FLOAT), x)
    assert cast(np.array([3, -4], np.int64), DataType.STRING).tolist() == ["3", "-4"]
    assert cast(np.array([True, False]), DataType.STRING).tolist() == ["1", "0"]
    assert cast(np.array([-3, 7]).astype(ml_dtypes.int4), DataType.STRING).tolist() == ["-3", "7"]
    assert cast(np.array([1.5]).astype(ml_dtypes.bfloat16), DataType.STRING).tolist() == ["1.5"]


def test_text_of_every_spelling_is_read() -> None:
    texts = np.array(["1e-5", "+inf", "-INF", "nan", " 3 ", b"100"], object)
    np.testing.assert_array_equal(cast(texts, DataType.DOUBLE), [1e-5, np.inf, -np.inf, np.nan, 3, 100])
    assert cast(np.array(["100.5", "-7", "9007199254740993"], object), DataType.INT64).tolist() == [
        100, -7, 9007199254740993,
    ]  # fmt: skip
    assert cast(np.array(["1000", "0.5"], object), DataType.FLOAT8E4M3FN).astype(float).tolist() == [448, 0.5]
    assert cast(np.array(["0", "2"], object), DataType.BOOL).tolist() == [False, True]


@pytest.mark.parametrize("text", ["Hello", "", "1e400e"])
def test_text_that_is_no_number_is_an_error(text: str) -> None:
    with pytest.raises(KernelError, match="not a float32"):
        cast(np.array([text], object), DataType.FLOAT)
    with pytest.raises(KernelError, match="not a int8"):
        cast(np.array(["300"], object), DataType.INT8)


def test_a_cast_to_the_same_dtype_is_a_view() -> None:
    x = np.arange(3)
    _, compiled = compile_op("Cast", [x], opset=13, to=int(DataType.INT64))
    assert compiled.view is not None
    assert compiled.view([x]) == (x,)


def test_strided_empty_and_scalar_tensors_are_cast() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T[::-1]
    assert_close([cast(x, DataType.INT32)], [x.astype(np.int32)])
    assert_close([cast(x, DataType.FLOAT8E5M2)], [x.astype(ml_dtypes.float8_e5m2)])
    assert cast(np.zeros((0, 2)), DataType.FLOAT8E5M2).shape == (0, 2)
    assert cast(np.array(2.0), DataType.INT8) == 2


@pytest.mark.parametrize("to", [0, 999])
def test_a_target_that_names_no_dtype_is_an_error(to: int) -> None:
    with pytest.raises(KernelError):
        run_op("Cast", [np.zeros(1)], opset=13, to=to)
