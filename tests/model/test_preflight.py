"""What onnx's shape inference would trust to the end of the process is refused by name before it sees it."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from hetero.errors import ModelError
from hetero.model import load_model
from tests.model.build import info, model, node

HIGHEST, LOWEST = 2**63 - 1, -(2**63)


def gather(**attributes: Any) -> onnx.ModelProto:
    return model(
        [node("GatherND", ["x", "k"], ["y"], name="gather", **attributes)],
        inputs=[info("x"), info("k", [2, 1], TensorProto.INT64)],
    )


@pytest.mark.parametrize("axis", [2**31, HIGHEST, 65, -65, LOWEST])
def test_an_axis_that_no_tensor_has_is_refused(axis: int) -> None:
    for op_type, attributes in (("LayerNormalization", {"axis": axis}), ("Transpose", {"perm": [0, axis]})):
        inputs = ["x", "x"][: 2 if op_type == "LayerNormalization" else 1]
        proto = model([node(op_type, inputs, ["y"], name="bad", **attributes)])
        with pytest.raises(ModelError, match=rf"{axis} is not from -64 to 64") as caught:
            load_model(proto)
        assert (caught.value.node, caught.value.op) == ("bad", op_type)
        assert caught.value.operand in attributes


@pytest.mark.parametrize("count", [-2, -100, LOWEST, HIGHEST])
def test_gather_nd_has_batch_axes_from_none_to_all(count: int) -> None:
    with pytest.raises(ModelError, match=rf"'batch_dims': {count} is not from 0 to 64.*'gather'"):
        load_model(gather(batch_dims=count))
    assert load_model(gather(batch_dims=0)).outputs[0][0] == "y"


@pytest.mark.parametrize("count", [1, 3, 0, -1, 2**40])
def test_split_says_how_many_outputs_it_has(count: int) -> None:
    rows = [
        node("Split", ["x"], ["a", "b"], name="split", num_outputs=count),
        node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    with pytest.raises(ModelError, match=r"is not the number of outputs, 2.*'split'"):
        load_model(model(rows))


def test_the_value_that_a_call_hands_to_a_function_is_checked() -> None:
    inner = node("LayerNormalization", ["a", "a"], ["b"])
    inner.attribute.append(AttributeProto(name="axis", type=AttributeProto.INT, ref_attr_name="where"))
    outer = node("Inner", ["a"], ["b"], domain="f")
    outer.attribute.append(AttributeProto(name="where", type=AttributeProto.INT, ref_attr_name="which"))
    functions = [
        helper.make_function("f", name, ["a"], ["b"], [row], opsets, [parameter])
        for name, row, parameter, opsets in (
            ("Inner", inner, "where", [helper.make_opsetid("", 21)]),
            ("Outer", outer, "which", [helper.make_opsetid("f", 1)]),
        )
    ]

    def calling(axis: int) -> onnx.ModelProto:
        call = node("Outer", ["x"], ["y"], domain="f", name="call", which=axis)
        return model([call], domains={"f": 1}, functions=functions)

    assert load_model(calling(-1)).outputs[0][0] == "y"
    with pytest.raises(ModelError, match=r"'which': 9223372036854775807 is not from.*'call'"):
        load_model(calling(HIGHEST))


def test_so_is_a_functions_default() -> None:
    row = node("LayerNormalization", ["a", "a"], ["b"])
    row.attribute.append(AttributeProto(name="axis", type=AttributeProto.INT, ref_attr_name="axis"))
    function = helper.make_function(
        "f",
        "Normal",
        ["a"],
        ["b"],
        [row],
        [helper.make_opsetid("", 21)],
        [],
        [helper.make_attribute("axis", HIGHEST)],
    )
    with pytest.raises(ModelError, match=r"'axis'.*Normal"):
        load_model(model([node("Normal", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=[function]))


def test_bodies_are_checked_too() -> None:
    branch = helper.make_graph(
        [node("Softmax", ["x"], ["r"], name="inside", axis=HIGHEST)], "b", [], [info("r")]
    )
    proto = model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        inputs=[info("x"), info("c", (), TensorProto.BOOL)],
    )
    with pytest.raises(ModelError, match="'inside'"):
        load_model(proto)


@pytest.mark.parametrize(
    ("op_type", "inputs", "message"),
    [
        ("EyeLike", [""], r"takes 1 inputs in opset 21, has 0.*'bad', op EyeLike"),
        ("Add", ["x"], r"takes 2 inputs in opset 21, has 1.*'bad'"),
        ("Add", ["x", "x", "x"], r"takes 2 inputs in opset 21, has 3.*'bad'"),
        ("Concat", ["", "x"], r"input 0 \(inputs\) is required but left out"),
        ("Gemm", ["x", "", "x"], r"input 1 \(B\) is required but left out.*'bad', op Gemm, operand 'B'"),
        ("Concat", [], r"takes 1 or more inputs in opset 21, has 0"),
        ("Clip", ["x", "", "", "x"], r"takes 1 to 3 inputs"),
    ],
)
def test_operands_are_counted(op_type: str, inputs: list[str], message: str) -> None:
    attributes = {"axis": 0} if op_type == "Concat" else {}
    with pytest.raises(ModelError, match=message):
        load_model(model([node(op_type, inputs, ["y"], name="bad", **attributes)]))


def test_optional_operands_may_be_left_out() -> None:
    assert load_model(model([node("Clip", ["x", "", ""], ["y"])])).outputs[0][0] == "y"


def test_operands_are_counted_inside_functions_too() -> None:
    function = helper.make_function(
        "f", "A", ["a"], ["b"], [node("EyeLike", [""], ["b"], name="inside")], [helper.make_opsetid("", 21)]
    )
    with pytest.raises(ModelError, match=r"required but left out.*'inside"):
        load_model(model([node("A", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=[function]))
