"""Attributes of onnx-ir nodes become plain, read-only Python values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from hetero.errors import ModelError
from hetero.program.attributes import attribute_value, host_array
from hetero.types import DataType, OptionalType, SequenceType, TensorType


@dataclass
class Sparse:
    values: ir.TensorProtocol
    indices: ir.TensorProtocol
    dims: Sequence[int]


def _sparse(values: Any, indices: Any, dims: tuple[int, ...]) -> Any:
    held = Sparse(ir.tensor(np.asarray(values)), ir.tensor(np.asarray(indices, np.int64)), dims)
    return attribute_value(ir.AttrSparseTensor("sparse_value", held))


def test_numbers_text_and_lists_are_themselves() -> None:
    assert attribute_value(ir.AttrInt64("a", 3)) == 3
    assert attribute_value(ir.AttrFloat32s("a", [1, 2.5])) == (1.0, 2.5)
    assert attribute_value(ir.AttrStrings("a", ["x", "y"])) == ("x", "y")
    assert attribute_value(ir.AttrInt64s("a", [])) == ()


def test_tensors_become_read_only_arrays() -> None:
    value = attribute_value(ir.AttrTensor("value", ir.tensor(np.array([1, 2], np.uint16))))
    assert value.dtype == np.uint16
    assert value.tolist() == [1, 2]
    assert not value.flags.writeable


def test_string_tensors_become_object_arrays_of_str() -> None:
    kind = onnx.TensorProto.STRING
    proto = onnx.TensorProto(data_type=kind, dims=[2, 1], string_data=[b"a\x00", "é".encode()])
    value = host_array(ir.serde.deserialize_tensor(proto))
    assert value.dtype == object
    assert value.tolist() == [["a\x00"], ["é"]]


def test_string_elements_that_are_not_utf8_are_refused() -> None:
    proto = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    with pytest.raises(ModelError, match="not UTF-8"):
        host_array(ir.serde.deserialize_tensor(proto))


def test_sparse_tensors_are_densified_from_flat_and_coordinate_indices() -> None:
    want = [[0, 0, 5], [7, 0, 0]]
    assert _sparse([5, 7], [2, 3], (2, 3)).tolist() == want
    assert _sparse([5, 7], [[0, 2], [1, 0]], (2, 3)).tolist() == want
    assert _sparse(np.zeros(0, np.float32), np.zeros((0, 2)), (2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("indices", [[6], [-1], [[0, 3]], [[2, 0]], [[0, -1]], [0, 1], [[0, 0, 0]]])
def test_sparse_indices_out_of_range_or_shape_are_refused(indices: list[Any]) -> None:
    with pytest.raises(ModelError, match="sparse ind"):
        _sparse([5], indices, (2, 3))


def test_a_sparse_tensor_of_absurd_dense_size_is_refused() -> None:
    with pytest.raises(ModelError, match="too large"):
        _sparse([5], [0], (2**30, 2**30))


def test_type_protos_become_value_types() -> None:
    inner = ir.TensorType(ir.DataType.FLOAT)
    nested = ir.TypeAndShape(ir.OptionalType(ir.SequenceType(inner)), ir.Shape(["n", 2, None, -1]))
    want = OptionalType(SequenceType(TensorType(DataType.FLOAT, ("n", 2, None, None))))
    assert attribute_value(ir.AttrTypeProto("type", nested)) == want
    assert attribute_value(ir.AttrTypeProtos("types", [nested])) == (want,)
    plain = ir.TypeAndShape(inner, None)
    assert attribute_value(ir.AttrTypeProto("type", plain)) == TensorType(DataType.FLOAT, None)


def test_references_and_missing_values_are_refused() -> None:
    with pytest.raises(ModelError, match="'outer' of a function"):
        attribute_value(ir.RefAttr("alpha", "outer", ir.AttributeType.FLOAT))
    with pytest.raises(ModelError, match="without a value"):
        attribute_value(ir.Attr("alpha", ir.AttributeType.UNDEFINED, None))
    with pytest.raises(ModelError, match="damaged tensor") as caught:
        attribute_value(ir.Attr("value", ir.AttributeType.TENSOR, 3))
    assert caught.value.operand == "value"
