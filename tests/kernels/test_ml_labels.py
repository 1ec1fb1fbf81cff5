"""LabelEncoder of every version and CategoryMapper, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

NAN = float("nan")
KEYS: dict[str, tuple[Any, Any]] = {
    "strings": (["b", "a", "ü"], np.array([["a", "ü"], ["", "b"]], object)),
    "int64s": ([5, -2, 9], np.array([[9, 5], [4, -2]], np.int64)),
    "floats": ([1.5, NAN, -0.0], np.array([[NAN, 1.5], [0.0, 2.0]], np.float32)),
}
VALUES = {"strings": ["x", "y", "z"], "int64s": [7, 8, -9], "floats": [0.5, 0.25, NAN]}


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_every_kind_of_key_finds_every_kind_of_value(keys: str, values: str, version: int) -> None:
    """NaN too, which onnxruntime finds from version 4 on."""
    listed, x = KEYS[keys]
    if version == 2 and keys == "floats":
        x = np.nan_to_num(x, nan=3.0)
    check_op("LabelEncoder", [x], domain="ai.onnx.ml", opset=version,
             **{f"keys_{keys}": listed, f"values_{values}": VALUES[values]})  # fmt: skip


def test_other_elements_get_the_default() -> None:
    for values, default in (("strings", "none"), ("int64s", 77), ("floats", 0.125)):
        check_op("LabelEncoder", [KEYS["int64s"][1]], domain="ai.onnx.ml", opset=2, keys_int64s=[9, 5],
                 **{f"values_{values}": VALUES[values][:2], f"default_{values.rstrip('s')}": default})  # fmt: skip


@pytest.mark.parametrize("keys", [np.float64, np.int64, np.float32])
@pytest.mark.parametrize("values", [np.float64, np.int64, np.float32])
def test_keys_and_values_may_be_tensors(keys: type, values: type) -> None:
    x = np.array([1, 2, 3, 1], keys)
    attributes = {
        "keys_tensor": np.array([1, 3], keys),
        "values_tensor": np.array([10, 30], values),
        "default_tensor": np.array([5], values),
    }
    found = run_op("LabelEncoder", [x], domain="ai.onnx.ml", opset=4, **attributes)
    np.testing.assert_array_equal(found[0], np.array([10, 5, 30, 10], values))
    assert found[0].dtype == values


def test_narrow_integers_are_kept() -> None:
    (found,) = run_op("LabelEncoder", [np.array(["a", "c"], object)], domain="ai.onnx.ml", opset=4,
                      keys_tensor=np.array(["a", "b"], object), values_tensor=np.array([1, 2], np.int16))  # fmt: skip
    assert found.dtype == np.int16
    assert found.tolist() == [1, -1]


def test_the_first_of_two_equal_keys_counts() -> None:
    check_op("LabelEncoder", [np.array([3, 4], np.int64)], domain="ai.onnx.ml", opset=4,
             keys_int64s=[3, 4, 3], values_int64s=[1, 2, 9])  # fmt: skip
    check_op("LabelEncoder", [np.array(["k"], object)], domain="ai.onnx.ml", opset=4,
             keys_strings=["k", "k"], values_int64s=[1, 2])  # fmt: skip


def test_version_1_numbers_its_classes() -> None:
    for x in (np.array(["b", "q", "a"], object), np.array([1, 7, 0, -1], np.int64)):
        check_op("LabelEncoder", [x], domain="ai.onnx.ml", opset=1, classes_strings=["a", "b"], default_int64=-3,
                 default_string="?")  # fmt: skip


def test_a_mapper_goes_both_ways() -> None:
    for x in (np.array([["b", "q"]], object), np.array([[20, 5]], np.int64)):
        check_op("CategoryMapper", [x], domain="ai.onnx.ml", opset=1, cats_strings=["a", "b"], cats_int64s=[10, 20],
                 default_int64=-3, default_string="?")  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"keys_int64s": [1, 2], "values_int64s": [1]}, "2 keys for 1 values"),
        ({"keys_strings": ["a"], "values_int64s": [1]}, "int64, the keys are object"),
        ({"keys_int64s": [1]}, "values_"),
        (
            {"keys_int64s": [1], "values_int64s": [1], "default_tensor": np.array([1.5], np.float32)},
            "must hold one",
        ),
    ],
)
def test_tables_that_do_not_fit_are_an_error(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op("LabelEncoder", [np.array([1], np.int64)], domain="ai.onnx.ml", opset=4, **attributes)
