"""Models that are odd but sound run; whatever else is odd about one is an error at load, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.errors import ModelError, UnsupportedNodeError
from tests.hostile.harness import PROVIDERS, bounded, executor
from tests.hostile.seeds import f32

X = f32(2, 3)


def info(name: str, shape: Any = None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, Any] | None = None,
    value_info: list[onnx.ValueInfoProto] | None = None,
    domain: str = "",
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers, value_info=value_info or [])
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def relu(source: str = "x", target: str = "y") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name="relu")


RELU = {"y": np.maximum(X, 0)}
ODD: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any], dict[str, Any]]] = {
    "no nodes and no outputs": (lambda: model([], [], []), {}, {}),
    "nodes but no outputs": (lambda: model([relu()], [info("x")], []), {"x": X}, {}),
    "an output that is an input": (lambda: model([], [info("x")], [info("x")]), {"x": X}, {"x": X}),
    "an output that is an initializer": (lambda: model([], [], [info("w")], {"w": X}), {}, {"w": X}),
    "an output listed twice": (lambda: model([relu()], [info("x")], [info("y"), info("y")]), {"x": X}, RELU),
    "names with a zero byte": (
        lambda: model([relu("a\0b", "\0")], [info("a\0b")], [info("\0")]),
        {"a\0b": X},
        {"\0": RELU["y"]},
    ),
    "names of another direction": (
        lambda: model([relu("\u202ex", "\ufeff")], [info("\u202ex")], [info("\ufeff")]),
        {"\u202ex": X},
        {"\ufeff": RELU["y"]},
    ),
    "a name of a million letters": (
        lambda: model([relu("x", "y" * 10**6)], [info("x")], [info("y" * 10**6)]),
        {"x": X},
        {"y" * 10**6: RELU["y"]},
    ),
    "20,000 inputs of one node": (
        lambda: model([helper.make_node("Concat", ["x"] * 20_000, ["y"], axis=0)], [info("x")], [info("y")]),
        {"x": X[:1]},
        {"y": np.repeat(X[:1], 20_000, axis=0)},
    ),
    "an output declared of another shape": (
        lambda: model([relu()], [info("x", [2, 3])], [info("y", [5, 9])]),
        {"x": X},
        RELU,
    ),
    "a value declared of another shape": (
        lambda: model([relu("x", "m"), relu("m")], [info("x", [2, 3])], [info("y")], None, [info("m", [7])]),
        {"x": X},
        RELU,
    ),
    "an initializer declared of another type": (
        lambda: model(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [info("x"), info("w", [9], TensorProto.INT64)],
            [info("y")],
            {"w": np.zeros_like(X)},
        ),
        {"x": X},
        {"y": X},
    ),
    "extents of -1": (lambda: model([relu()], [info("x", [-1, -5])], [info("y")]), {"x": X}, RELU),
    "symbols that are code": (
        lambda: model([relu()], [info("x", ["__import__('os')", "9**9**9**9"])], [info("y")]),
        {"x": X},
        RELU,
    ),
    "a symbol of 2,000 brackets": (
        lambda: model([relu()], [info("x", ["(" * 2000 + "n" + ")" * 2000, "n("])], [info("y")]),
        {"x": X},
        RELU,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_model_runs(name: str) -> None:
    make, feeds, expected = ODD[name]
    with bounded(), executor(make(), PROVIDERS[0]) as ex:
        found = ex.run(feeds)
    assert found.keys() == expected.keys()
    for key, want in expected.items():
        np.testing.assert_array_equal(found[key], want)


BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto], type[Exception], str]] = {
    "a node that reads itself": (
        lambda: model([helper.make_node("Add", ["x", "a"], ["a"], name="own")], [info("x")], [info("a")]),
        ModelError,
        r"cycle.*'own'",
    ),
    "an unknown operator": (
        lambda: model([helper.make_node("Foo", ["x"], ["y"], name="foo")], [info("x")], [info("y")]),
        UnsupportedNodeError,
        "'foo'",
    ),
    "an unknown domain": (
        lambda: model(
            [helper.make_node("Foo", ["x"], ["y"], name="foo", domain="q")],
            [info("x")],
            [info("y")],
            domain="q",
        ),
        UnsupportedNodeError,
        "'foo'.*q::Foo",
    ),
    "an output declared of another dtype": (
        lambda: model([relu()], [info("x")], [info("y", None, TensorProto.INT64)]),
        ModelError,
        "'y' is declared INT64.*'relu'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_refused_by_name(name: str) -> None:
    make, kind, words = BROKEN[name]
    with bounded(), pytest.raises(kind, match=words):
        executor(make(), PROVIDERS[0]).close()
