"""Types and shapes: inferred through bodies and past large weights; lies about shapes dropped, about dtypes refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from hetero.errors import ModelError
from hetero.model import load_model, value_type
from hetero.types import DataType, OptionalType, SequenceType, TensorType
from tests.model.build import graph, info, model, node, with_branches


def types(proto: onnx.ModelProto) -> dict[str, str]:
    loaded = load_model(proto)
    return {v.name or "": str(value_type(v)) for n in loaded.ir.graph.all_nodes() for v in n.outputs}


def test_symbolic_shapes_flow_through() -> None:
    proto = model(
        [
            node("MatMul", ["x", "w"], ["h"]),
            node("Shape", ["h"], ["s"]),
            node("Gather", ["s", "zero"], ["b"]),
            node("Concat", ["b", "minus"], ["t"], axis=0),
            node("Reshape", ["h", "t"], ["y"]),
        ],
        [info("x", ("batch", "seq", 4))],
        w=np.ones((4, 6), np.float32),
        zero=np.array([0]),
        minus=np.array([-1]),
    )
    got = types(proto)
    assert got["h"] == "float[batch, seq, 6]"
    assert got["s"] == "int64[3]"
    assert got["y"].startswith("float[batch, ")


def test_values_in_bodies_are_typed() -> None:
    then = graph(
        [node("Cast", ["x"], ["a"], to=TensorProto.INT32), node("Neg", ["a"], ["p"])],
        outputs=[info("p", None, 6)],
    )
    other = graph([node("Cast", ["x"], ["q"], to=TensorProto.INT32)], outputs=[info("q", None, 6)])
    got = types(with_branches(then, other, outputs=[info("y", None, 6)]))
    assert got["a"] == got["p"] == got["q"] == "int32[n]"
    assert got["y"] == "int32[n]"


def test_large_weights_are_not_handed_to_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = onnx.shape_inference.infer_shapes

    def spy(proto: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        sizes.append(proto.ByteSize())
        result: onnx.ModelProto = original(proto, **options)
        return result

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    got = types(
        model(
            [node("MatMul", ["x", "w"], ["y"])], [info("x", ("n", 1000))], w=np.ones((1000, 1000), np.float32)
        )
    )
    assert got["y"] == "float[n, 1000]"
    assert sizes
    assert max(sizes) < 2000


def test_what_cannot_be_inferred_stays_open_or_as_declared() -> None:
    nodes = [
        node("Odd", ["x"], ["h"], domain="my"),
        node("Abs", ["h"], ["k"]),
        node("Odd", ["k"], ["y"], domain="my"),
    ]
    open_end = helper.make_empty_tensor_value_info("y")
    got = types(model(nodes, outputs=[open_end], domains={"my": 1}))
    assert got == {"h": "None", "k": "None", "y": "None"}
    declared = model(nodes, outputs=[open_end], domains={"my": 1})
    declared.graph.value_info.append(info("h", ("a", 2)))
    assert types(declared) == {"h": "float[a, 2]", "k": "float[a, 2]", "y": "None"}


def test_a_declared_shape_fills_a_gap_and_onnx_goes_on_from_it() -> None:
    proto = model(
        [node("Reshape", ["x", "s"], ["h"]), node("Transpose", ["h"], ["y"])],
        [info("x"), info("s", (2,), TensorProto.INT64)],
    )
    proto.graph.value_info.append(info("h", ("rows", 8)))
    assert types(proto) == {"h": "float[rows, 8]", "y": "float[8, rows]"}


def test_a_declared_shape_that_is_wrong_is_dropped() -> None:
    proto = model(
        [node("Abs", ["x"], ["h"]), node("Neg", ["h"], ["y"])], [info("x", (2, 3))], [info("y", (7, 7))]
    )
    proto.graph.value_info.append(info("h", (5, 3, 1)))
    assert types(proto) == {"h": "float[2, 3]", "y": "float[2, 3]"}


def test_a_declared_dtype_that_contradicts_the_operator_is_refused() -> None:
    proto = model([node("Abs", ["x"], ["y"], name="abs")], outputs=[info("y", None, TensorProto.INT64)])
    with pytest.raises(ModelError, match=r"'y' is declared INT64.*'abs'"):
        load_model(proto)
    inner = model([node("Abs", ["x"], ["h"], name="abs"), node("Neg", ["h"], ["y"])])
    inner.graph.value_info.append(info("h", ("n",), TensorProto.INT64))
    with pytest.raises(ModelError, match="'h' is declared INT64"):
        load_model(inner)


def test_a_graph_that_onnx_cannot_digest_loads_without_types() -> None:
    got = types(
        model(
            [node("Concat", ["x", "m"], ["h"], axis=9), node("Abs", ["h"], ["y"])],
            m=np.ones((2, 2), np.float32),
        )
    )
    assert set(got) == {"h", "y"}


def test_a_models_own_function_is_seen_through() -> None:
    twice = helper.make_function(
        "f", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    proto = model(
        [node("Twice", ["x"], ["h"], domain="f"), node("Neg", ["h"], ["y"])],
        domains={"f": 1},
        functions=[twice],
    )
    assert types(proto)["h"] == "float[n]"


def test_value_type_converts_every_kind() -> None:
    def value(type_: ir.TypeProtocol | None, shape: list[int | str | None] | None = None) -> ir.Value:
        return ir.Value(name="v", type=type_, shape=None if shape is None else ir.Shape(shape))

    tensor = ir.TensorType(ir.DataType.FLOAT)
    assert value_type(value(None)) is None
    assert value_type(value(tensor)) == TensorType(ir.DataType.FLOAT)
    assert value_type(value(tensor, [1, "n", None, -1])) == TensorType(
        ir.DataType.FLOAT, (1, "n", None, None)
    )
    assert value_type(value(ir.SequenceType(tensor), [2])) == SequenceType(
        TensorType(ir.DataType.FLOAT, (2,))
    )
    nested = ir.OptionalType(ir.SequenceType(tensor))
    assert value_type(value(nested)) == OptionalType(SequenceType(TensorType(ir.DataType.FLOAT)))
    with pytest.raises(ModelError, match="SparseTensorType"):
        value_type(value(ir.SparseTensorType(ir.DataType.FLOAT)))


@pytest.mark.parametrize("text", ["?", "-1", "*", " "])
def test_names_that_name_nothing_are_unknown_extents(text: str) -> None:
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Neg", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [text, "n", text])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    ((_, found),) = load_model(proto).inputs
    assert found == TensorType(DataType.FLOAT, (None, "n", None))
