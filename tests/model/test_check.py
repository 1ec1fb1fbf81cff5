"""Models that are not well formed are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from hetero.errors import ModelError
from hetero.model import load_model
from tests.model.build import graph, info, model, node, with_branches


def good() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"], name="relu")])


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = good()
    change(proto)
    return proto


def deep(levels: int) -> onnx.ModelProto:
    body = graph([node("Relu", ["x"], ["r0"])], outputs=[info("r0")])
    for k in range(1, levels):
        branch = node("If", ["c"], [f"r{k}"], then_branch=body, else_branch=body) if k == 1 else None
        if branch is None:
            other = graph([node("Relu", ["x"], [f"e{k}"])], outputs=[info(f"e{k}")])
            branch = node("If", ["c"], [f"r{k}"], then_branch=body, else_branch=other)
        body = graph([branch], outputs=[info(f"r{k}")])
    return with_branches(body, graph([node("Relu", ["x"], ["o"])], outputs=[info("o")]))


def nest(type_: onnx.TypeProto, levels: int) -> None:
    for _ in range(levels):
        type_ = type_.sequence_type.elem_type
        type_.SetInParent()
    type_.tensor_type.elem_type = 1


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "no graph": (lambda: changed(lambda m: m.ClearField("graph")), "no graph"),
    "no opset": (lambda: changed(lambda m: m.ClearField("opset_import")), "imports no opset"),
    "opset too new": (lambda: model(list(good().graph.node), opset=999), "opset 999"),
    "opset zero": (lambda: model(list(good().graph.node), opset=0), "opset 0"),
    "ml opset too new": (
        lambda: model(list(good().graph.node), domains={"ai.onnx.ml": 77}),
        "opset 77.*ai.onnx.ml",
    ),
    "opset of an unknown domain beyond a C int": (
        lambda: model(list(good().graph.node), domains={"own": 2**31}),
        r"opset 2147483648 of domain 'own'",
    ),
    "two opsets": (lambda: changed(lambda m: m.opset_import.add(domain="", version=20)), "two opsets"),
    "two spellings": (
        lambda: changed(lambda m: m.opset_import.add(domain="ai.onnx", version=20)),
        "two opsets",
    ),
    "no ir_version": (lambda: changed(lambda m: m.ClearField("ir_version")), "no ir_version"),
    "ir_version too new": (lambda: model(list(good().graph.node), ir_version=99), "99"),
    "domain not imported": (lambda: model([node("Foo", ["x"], ["y"], domain="bar")]), "'bar'.*not imported"),
    "cycle": (
        lambda: model(
            [
                node("Add", ["x", "b"], ["a"], name="one"),
                node("Relu", ["a"], ["b"], name="two"),
                node("Relu", ["b"], ["y"], name="three"),
            ]
        ),
        "cycle.*'(one|two)'",
    ),
    "self-loop": (lambda: model([node("Add", ["x", "y"], ["y"], name="loop")]), "cycle.*'loop'"),
    "undefined value": (lambda: model([node("Add", ["x", "ghost"], ["y"], name="add")]), "'ghost'.*'add'"),
    "undefined output": (lambda: model([node("Relu", ["x"], ["z"])]), "'y'"),
    "undefined in a body": (
        lambda: with_branches(
            graph([node("Relu", ["nowhere"], ["a"], name="inner")], outputs=[info("a")]),
            graph([node("Relu", ["x"], ["b"])], outputs=[info("b")]),
        ),
        "'nowhere'.*'inner'",
    ),
    "a sibling's value": (
        lambda: with_branches(
            graph([node("Relu", ["x"], ["a"])], outputs=[info("a")]),
            graph([node("Relu", ["a"], ["b"], name="spy")], outputs=[info("b")]),
        ),
        "'a'.*'spy'",
    ),
    "two producers": (
        lambda: model([node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["y"], name="second")]),
        "'y' is produced twice.*'second'",
    ),
    "an input produced": (
        lambda: model([node("Relu", ["x"], ["x"]), node("Abs", ["x"], ["y"])]),
        "'x' is produced",
    ),
    "duplicate inputs": (lambda: model(list(good().graph.node), [info("x"), info("x")]), "two inputs.*'x'"),
    "duplicate initializers": (
        lambda: changed(lambda m: m.graph.initializer.extend([helper.make_tensor("w", 1, [1], [1.0])] * 2)),
        "two initializers are named 'w'",
    ),
    "unnamed required output": (
        lambda: model([node("Relu", ["x"], [""]), node("Abs", ["x"], ["y"])]),
        "required",
    ),
    "unnamed graph output": (
        lambda: model(list(good().graph.node), outputs=[info("y"), info("")]),
        "no name",
    ),
    "input without type": (lambda: changed(lambda m: m.graph.input[0].ClearField("type")), "'x' has no type"),
    "input without dtype": (
        lambda: changed(lambda m: m.graph.input[0].type.tensor_type.ClearField("elem_type")),
        "'x' has no type",
    ),
    "map input": (
        lambda: changed(lambda m: m.graph.input[0].type.map_type.CopyFrom(onnx.TypeProto.Map(key_type=7))),
        "map",
    ),
    "sparse input": (
        lambda: changed(
            lambda m: m.graph.input[0].type.sparse_tensor_type.CopyFrom(
                onnx.TypeProto.SparseTensor(elem_type=1)
            )
        ),
        "'x' is a SparseTensorType",
    ),
    "unknown dtype": (
        lambda: changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 4242)),
        "4242",
    ),
    "too deep": (lambda: deep(32), "deep"),
    "endless type": (lambda: changed(lambda m: nest(m.graph.input[0].type, 12)), "nests"),
    "unnamed attribute": (
        lambda: changed(lambda m: m.graph.node[0].attribute.add(type=2, i=1)),
        "attribute ''",
    ),
    "attribute twice": (
        lambda: changed(lambda m: [m.graph.node[0].attribute.add(name="a", type=2, i=1) for _ in "12"]),
        "'a'",
    ),
    "attribute without type": (
        lambda: changed(lambda m: m.graph.node[0].attribute.add(name="a", i=1)),
        "'a' has no type",
    ),
    "attribute of an earlier opset": (
        lambda: model([node("Squeeze", ["x"], ["y"], name="squeeze", axes=[0])]),
        "Squeeze has no attribute 'axes' in opset 21.*'squeeze'",
    ),
    "unknown attribute in a function": (
        lambda: model(
            [node("A", ["x"], ["y"], domain="f")],
            domains={"f": 1},
            functions=[
                helper.make_function(
                    "f", "A", ["a"], ["b"], [node("Relu", ["a"], ["b"], k=1)], [helper.make_opsetid("", 21)]
                )
            ],
        ),
        "no attribute 'k' in opset 21 in function f::A",
    ),
    "attribute of another type": (
        lambda: model([node("Softmax", ["x"], ["y"], axis="1")]),
        "Softmax wants attribute 'axis' as INT, not STRING, in opset 21",
    ),
    "list for a number": (
        lambda: model([node("Concat", ["x", "x"], ["y"], axis=[0])]),
        "Concat wants attribute 'axis' as INT, not INTS",
    ),
    "integer for a float": (
        lambda: model([node("LeakyRelu", ["x"], ["y"], alpha=1)]),
        "LeakyRelu wants attribute 'alpha' as FLOAT, not INT",
    ),
    "required attribute missing": (
        lambda: model([node("Concat", ["x", "x"], ["y"], name="join")]),
        r"Concat needs attribute 'axis' in opset 21.*'join'",
    ),
    "required body missing": (
        lambda: model([node("If", ["c"], ["y"])], [info("c", (), TensorProto.BOOL)]),
        "If needs attribute '(then|else)_branch'",
    ),
    "no op_type": (lambda: changed(lambda m: m.graph.node[0].ClearField("op_type")), "no op_type"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_model_is_refused_and_named(case: str) -> None:
    make, pattern = CASES[case]
    proto = make()
    with pytest.raises(ModelError, match=pattern):
        load_model(proto)


def test_an_unknown_custom_domain_is_fine_at_load() -> None:
    loaded = load_model(model([node("Foo", ["x"], ["y"], domain="my.domain")], domains={"my.domain": 3}))
    assert loaded.opsets["my.domain"] == 3
    assert loaded.outputs[0][0] == "y"


def test_nesting_up_to_the_limit_loads() -> None:
    assert load_model(deep(20)).outputs[0][0] == "y"


def test_an_ir_model_is_checked_like_a_file() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    ghost = ir.Value(name="ghost")
    add = ir.Node("", "Add", [x, ghost], num_outputs=1, name="add")
    add.outputs[0].name = "y"
    broken = ir.Model(
        ir.Graph([x], add.outputs, nodes=[add], opset_imports={"": 21}, name="g"), ir_version=10
    )
    with pytest.raises(ModelError, match=r"'ghost'.*'add'"):
        load_model(broken)
    with pytest.raises(ModelError, match="no opset"):
        load_model(ir.Model(ir.Graph([], [], nodes=[], name="g"), ir_version=10))


def test_an_ir_models_attributes_are_held_against_the_opset() -> None:
    early = model([node("Squeeze", ["x"], ["y"], axes=[0])], opset=11)
    assert load_model(ir.from_proto(early)).opsets == {"": 11}
    late = model([node("Squeeze", ["x"], ["y"], axes=[0])], opset=13)
    with pytest.raises(ModelError, match="Squeeze has no attribute 'axes' in opset 13"):
        load_model(ir.from_proto(late))


def test_attributes_are_free_where_onnx_has_no_say() -> None:
    own = helper.make_function(
        "", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 21)], ["k"]
    )
    for proto in (
        model([node("Foo", ["x"], ["y"], domain="my.domain", k=1)], domains={"my.domain": 3}),
        model([node("Relu", ["x"], ["y"], __note="exported")]),
        model([node("Relu", ["x"], ["y"], k=1)], functions=[own]),
    ):
        assert load_model(proto).outputs[0][0] == "y"
        assert load_model(ir.from_proto(proto)).outputs[0][0] == "y"


def test_a_recursive_function_is_refused() -> None:
    def function(name: str, calls: str) -> onnx.FunctionProto:
        body = [node(calls, ["a"], ["b"], domain="f")]
        return helper.make_function("f", name, ["a"], ["b"], body, [helper.make_opsetid("f", 1)])

    for functions in ([function("A", "A")], [function("A", "B"), function("B", "A")]):
        with pytest.raises(ModelError, match=r"f::[AB] calls itself"):
            load_model(model([node("A", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=functions))


def test_calls_that_nest_without_measure_are_refused() -> None:
    def chain(levels: int) -> onnx.ModelProto:
        functions = [
            helper.make_function(
                "f",
                f"F{k}",
                ["a"],
                ["b"],
                [
                    node(f"F{k + 1}", ["a"], ["b"], domain="f")
                    if k + 1 < levels
                    else node("Relu", ["a"], ["b"])
                ],
                [helper.make_opsetid("f", 1), helper.make_opsetid("", 21)],
            )
            for k in range(levels)
        ]
        return model([node("F0", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=functions)

    assert load_model(chain(30)).outputs[0][0] == "y"
    with pytest.raises(ModelError, match=r"calls in function f::F\d+ nest deeper than 64"):
        load_model(chain(1000))


def test_a_function_with_an_undefined_value_is_refused() -> None:
    function = helper.make_function(
        "f", "A", ["a"], ["b"], [node("Add", ["a", "q"], ["b"])], [helper.make_opsetid("", 21)]
    )
    with pytest.raises(ModelError, match=r"'q' is used but never defined in function f::A"):
        load_model(model([node("A", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=[function]))


def test_a_string_input_and_a_sequence_input_are_typed() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n"])
    loaded = load_model(
        model(
            [node("Identity", ["t"], ["y"]), node("SequenceLength", ["s"], ["k"])],
            [info("t", (None, 2), TensorProto.STRING), sequence],
            [info("y", None, TensorProto.STRING), info("k", None, TensorProto.INT64)],
        )
    )
    assert [str(t) for _, t in loaded.inputs] == ["string[?, 2]", "seq(float[n])"]
