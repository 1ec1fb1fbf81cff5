"""Constants: exact sizes, bounded declarations, read-only arrays of the right dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import ModelError
from hetero.kernels.widen import is_constant
from hetero.model import load_model
from hetero.model.tensors import check_tensor
from hetero.types import numpy_dtype
from tests.model.build import info, model, node


def loaded(tensor: TensorProto) -> np.ndarray:
    proto = model([node("Identity", [tensor.name], ["y"])], [], [info("y", None, tensor.data_type)])
    proto.graph.initializer.append(tensor)
    return load_model(proto).weights[tensor.name]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array(5, np.int64),
        np.zeros((0, 3), np.float64),
        np.array([1.5, -2], np.float16),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1, -2, 7], ml_dtypes.int4),
        np.array([1, 15, 7], ml_dtypes.uint4),
        np.array([1, -2, 1], ml_dtypes.int2),
        np.array([1.5, -2], ml_dtypes.float8_e4m3fn),
        np.array([1.5, -2], ml_dtypes.float4_e2m1fn),
    ],
    ids=lambda a: str(a.dtype),
)
@pytest.mark.parametrize("raw", [True, False])
def test_every_dtype_decodes_from_raw_and_typed_data(array: np.ndarray, raw: bool) -> None:
    dtype = ir.DataType.from_numpy(array.dtype)
    if raw:
        tensor = numpy_helper.from_array(array, "w")
    else:
        tensor = helper.make_tensor("w", int(dtype), array.shape, array.ravel().tolist())
    got = loaded(tensor)
    assert got.dtype == array.dtype == numpy_dtype(dtype)
    np.testing.assert_array_equal(got.astype(complex), array.astype(complex))
    assert got.shape == array.shape
    with pytest.raises(ValueError, match="read-only"):
        got[...] = 0
    assert is_constant(
        got
    )  # nor can its memory be written by another way: kernels keep what they derive from it


def test_strings_are_text_down_to_their_last_zero() -> None:
    got = loaded(TensorProto(name="w", data_type=STRING, dims=[3], string_data=["é".encode(), b"a\0", b""]))
    assert got.dtype == object
    assert got.tolist() == ["é", "a\0", ""]
    with pytest.raises(ModelError, match="'w' cannot be read"):
        loaded(TensorProto(name="w", data_type=STRING, dims=[1], string_data=[b"\xff\xfe"]))


FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"dims": [2], "data_type": FLOAT, "raw_data": b"1234567"}, "7 bytes of raw_data.* 8"),
        ({"dims": [2], "data_type": FLOAT, "raw_data": b"123456789"}, "9 bytes"),
        ({"dims": [2], "data_type": FLOAT}, "0 elements of float_data"),
        ({"dims": [2], "data_type": FLOAT, "float_data": [1.0]}, "1 elements"),
        ({"dims": [1], "data_type": FLOAT, "int64_data": [1]}, "stored in int64_data"),
        ({"dims": [1], "data_type": FLOAT, "raw_data": b"1234", "float_data": [1.0]}, "both raw_data and"),
        ({"dims": [-1], "data_type": FLOAT, "float_data": [1.0]}, "negative"),
        ({"dims": [2**40, 2**40], "data_type": FLOAT}, "impossible size"),
        ({"dims": [0, 2**62, 2**62], "data_type": FLOAT}, "impossible size"),
        ({"dims": [1] * 65, "data_type": FLOAT, "float_data": [1.0]}, "65 axes"),
        ({"dims": [1], "data_type": 99}, "unknown dtype 99"),
        ({"dims": [1]}, "no dtype"),
        ({"dims": [1], "data_type": STRING, "raw_data": b"a"}, "raw_data"),
        ({"dims": [2], "data_type": STRING, "string_data": [b"a"]}, "1 elements of string_data"),
        ({"dims": [3], "data_type": TensorProto.INT4, "int32_data": [1, 2, 3]}, "3 elements.* need 2"),
        ({"dims": [1], "data_type": TensorProto.COMPLEX64, "float_data": [1.0]}, "need 2"),
        (
            {"dims": [1], "data_type": INT64, "int64_data": [1], "segment": TensorProto.Segment(begin=0)},
            "segments",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_and_the_tensor_named(fields: dict[str, Any], pattern: str) -> None:
    tensor = TensorProto(name="weight", **fields)
    with pytest.raises(ModelError, match=pattern) as caught:
        loaded(tensor)
    assert caught.value.operand == "weight"
    assert "'weight'" in str(caught.value)


def test_tensors_in_attributes_are_checked_too() -> None:
    bad = TensorProto(name="k", dims=[3], data_type=FLOAT, raw_data=b"1234")
    with pytest.raises(ModelError, match="'k'"):
        load_model(model([node("Constant", [], ["y"], value=bad)], []))


def test_an_ir_model_with_damaged_tensors_is_refused() -> None:
    for bad in (
        ir.serde.TensorProtoTensor(TensorProto(name="w", dims=[3], data_type=FLOAT, raw_data=b"1234")),
        ir.StringTensor([b"a"], shape=ir.Shape([2]), name="w"),
        ir.LazyTensor(lambda: ir.tensor(np.zeros(3)), dtype=ir.DataType.FLOAT, shape=ir.Shape([2]), name="w"),
    ):
        source = ir.from_proto(model([node("Identity", ["w"], ["y"])], [], w=np.zeros(2, np.float32)))
        source.graph.initializers["w"].const_value = bad
        with pytest.raises(ModelError, match="'w'"):
            load_model(source).weights["w"]
    source.graph.initializers["w"].const_value = None
    with pytest.raises(ModelError, match="'w'"):
        load_model(source)


def test_a_good_tensor_passes() -> None:
    check_tensor(numpy_helper.from_array(np.zeros((2, 0, 3), np.int32), "w"))
    check_tensor(onnx.helper.make_tensor("w", FLOAT, [], [1.0]))


def test_string_tensors_in_attributes_survive_the_way_to_protobuf_and_back() -> None:
    keys = TensorProto(name="k", data_type=STRING, dims=[2], string_data=["é".encode(), b"a\0"])
    proto = model([node("Odd", ["x"], ["y"], domain="my", keys=keys)], domains={"my": 1})
    attribute = load_model(proto).ir.graph[0].attributes["keys"]
    assert attribute.as_tensor().numpy().tolist() == ["é", "a\0"]
    back = ir.to_proto(load_model(proto).ir)
    assert list(back.graph.node[0].attribute[0].t.string_data) == ["é".encode(), b"a\0"]
