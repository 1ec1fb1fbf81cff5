"""Map types of a model: read, inferred, checked."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from hetero.errors import ModelError
from hetero.model import load_model
from hetero.types import DataType, MapType, SequenceType, TensorType

STRINGS = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
FLOATS = TensorType(DataType.FLOAT, ())


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def zip_map(output: Any = None, **labels: Any) -> onnx.ModelProto:
    return model(
        [
            helper.make_node("Relu", ["x"], ["h"]),
            helper.make_node("ZipMap", ["h"], ["z"], domain="ai.onnx.ml", **labels),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [onnx.ValueInfoProto(name="z") if output is None else helper.make_value_info("z", output)],
    )


def test_a_map_that_is_fed_has_its_declared_type() -> None:
    node = helper.make_node("DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a"])
    proto = model([node], [helper.make_value_info("m", STRINGS)], [onnx.ValueInfoProto(name="y")])
    before = proto.SerializeToString()
    assert load_model(proto).inputs == (("m", MapType(DataType.STRING, FLOATS)),)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("declared", [False, True])
def test_a_sequence_of_maps_is_inferred_or_declared(declared: bool) -> None:
    proto = zip_map(
        helper.make_sequence_type_proto(STRINGS) if declared else None, classlabels_strings=["a", "b"]
    )
    assert load_model(proto).outputs == (("z", SequenceType(MapType(DataType.STRING, FLOATS))),)


def test_the_type_of_a_map_is_written_as_onnx_writes_it() -> None:
    assert str(SequenceType(MapType(DataType.INT64, FLOATS))) == "seq(map(int64, float))"


def test_a_map_in_a_body_may_be_declared() -> None:
    inner = zip_map(helper.make_sequence_type_proto(STRINGS), classlabels_strings=["a", "b"]).graph
    del inner.input[:]
    node = helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=inner)
    proto = model(
        [node],
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", 1, ["n", 2]),
        ],
        [onnx.ValueInfoProto(name="r")],
    )
    assert [name for name, _ in load_model(proto).outputs] == ["r"]


def broken(change: Any) -> onnx.ModelProto:
    type_ = onnx.TypeProto()
    type_.CopyFrom(STRINGS)
    change(type_.map_type)
    node = helper.make_node("DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a"])
    return model([node], [helper.make_value_info("m", type_)], [onnx.ValueInfoProto(name="y")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "key_type", TensorProto.FLOAT), "keys of dtype 1"),
        (lambda m: m.ClearField("key_type"), "keys of dtype 0"),
        (lambda m: m.ClearField("value_type"), "other than scalars"),
        (lambda m: setattr(m.value_type.tensor_type, "elem_type", 4242), "other than scalars"),
        (lambda m: m.value_type.CopyFrom(STRINGS), "other than scalars"),
    ],
)
def test_a_map_of_another_kind_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(broken(change))


def test_an_operator_that_gives_another_kind_of_map_than_declared_is_refused() -> None:
    proto = zip_map(helper.make_sequence_type_proto(STRINGS), classlabels_int64s=[0, 1])
    with pytest.raises(ModelError, match="declared"):
        load_model(proto)
