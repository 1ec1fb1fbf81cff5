"""Sources: files, bytes, protobufs and onnx_ir models; damaged ones end in ModelError and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from hetero.errors import ModelError
from hetero.model import load_model
from tests.model.build import graph, info, model, node, with_branches


def rich() -> onnx.ModelProto:
    """Every feature in one small file: weights, a body, a function, a constant, metadata."""
    function = helper.make_function(
        "f", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    then = graph([node("Mul", ["t", "w"], ["p"])], outputs=[info("p", (2, 3))])
    other = graph([node("Constant", [], ["q"], value_floats=[1.0, 2.0, 3.0])], outputs=[info("q", (3,))])
    proto = model(
        [
            node("Twice", ["x"], ["t"], domain="f", name="call"),
            node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if"),
        ],
        [info("x", ("batch", 3)), info("c", (), onnx.TensorProto.BOOL)],
        domains={"f": 1},
        functions=[function],
        w=np.arange(3, dtype=np.float32),
    )
    helper.set_model_props(proto, {"author": "me"})
    return proto


def test_path_bytes_proto_and_ir_model_load_alike(tmp_path: Path) -> None:
    proto = rich()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    sources = (path, str(path), path.read_bytes(), proto, ir.from_proto(proto))
    digests = {load_model(source).digest for source in sources}
    assert len(digests) == 1
    loaded = load_model(path)
    assert [name for name, _ in loaded.inputs] == ["x", "c"]
    assert str(loaded.inputs[0][1]) == "float[batch, 3]"
    assert loaded.metadata == {"author": "me"}


@pytest.mark.parametrize("kind", ["proto", "ir"])
def test_the_callers_model_is_never_changed(kind: str) -> None:
    body = graph(
        [node("Relu", ["x"], ["w"], name="if")], outputs=[info("w")]
    )  # clashes with an initializer's name
    other = graph([node("Constant", [], ["k"], value_float=1.0)], outputs=[info("k", ())])
    proto = with_branches(body, other, w=np.ones(2, np.float32), unused=np.ones(2, np.float32))
    source: onnx.ModelProto | ir.Model = proto if kind == "proto" else ir.from_proto(proto)
    before = proto.SerializeToString(deterministic=True)
    load_model(source)
    after = source if isinstance(source, onnx.ModelProto) else ir.to_proto(source)
    expected = proto if kind == "proto" else ir.to_proto(ir.from_proto(proto))
    assert proto.SerializeToString(deterministic=True) == before
    assert after.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_an_unsorted_ir_model_loads_without_being_sorted() -> None:
    proto = model([node("Relu", ["h"], ["y"], name="b"), node("Abs", ["x"], ["h"], name="a")])
    source = ir.from_proto(proto)
    assert [n.name for n in load_model(source).ir.graph] == ["a", "b"]
    assert [n.name for n in source.graph] == ["b", "a"]


def test_what_is_no_model_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.onnx"
    empty.touch()
    text = tmp_path / "text.onnx"
    text.write_text("hello, this is no model at all\n" * 20)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, pattern in (
        (empty, "is empty"),
        (text, "not ONNX|no graph"),
        (tmp_path, "no regular file"),
        (pipe, "no regular file"),
        (tmp_path / "missing.onnx", "cannot be read"),
        ("nul\0byte", "cannot be read"),
    ):
        with pytest.raises(ModelError, match=pattern):
            load_model(path)
    for data in (b"", b"\x00", os.urandom(2000)):
        with pytest.raises(ModelError):
            load_model(data)
    with pytest.raises(ModelError, match="not int"):
        load_model(3)  # type: ignore[arg-type]


def load_or_refuse(data: bytes) -> None:
    try:
        loaded = load_model(data)
        for name in loaded.weights:
            loaded.weights[name]
    except ModelError:
        pass


RICH = rich().SerializeToString()


@settings(max_examples=250, deadline=2000, database=None)
@given(st.lists(st.tuples(st.integers(0, len(RICH) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_mutated_model_loads_or_is_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(RICH)
    for position, value in changes:
        data[position] = value
    load_or_refuse(bytes(data))


@settings(max_examples=100, deadline=2000, database=None)
@given(st.integers(0, len(RICH) - 1), st.binary(max_size=20))
def test_a_truncated_model_loads_or_is_refused(end: int, tail: bytes) -> None:
    load_or_refuse(RICH[:end] + tail)


def test_a_body_may_return_a_value_of_the_graph_around_it() -> None:
    proto = with_branches(
        graph([], outputs=[info("x")]), graph([node("Neg", ["x"], ["b"])], outputs=[info("b")])
    )
    loaded = load_model(proto)
    then = loaded.ir.graph[0].attributes["then_branch"].as_graph()
    assert [n.op_type for n in then] == ["Identity"]
    assert then[0].inputs[0] is loaded.ir.graph.inputs[1]


def test_sparse_initializers_and_constants_become_dense() -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "s")
    linear = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5])), [2, 3])
    pairs = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([[0, 1], [1, 2]])), [2, 3])
    proto = model(
        [node("Constant", [], ["k"], sparse_value=pairs), node("Add", ["k", "s"], ["y"])], inputs=()
    )
    proto.graph.sparse_initializer.append(linear)
    before = proto.SerializeToString()
    loaded = load_model(proto)
    for name in ("s", "k"):
        np.testing.assert_array_equal(loaded.weights[name], [[0, 5, 0], [0, 0, 7]])
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    ("dims", "indices", "pattern"),
    [
        ([2, 3], [1, 6], "outside"),
        ([2, 3], [-1, 2], "outside"),
        ([2**20, 2**20], [0, 1], "limit"),
        ([6], [1], "indices"),
    ],
)
def test_a_bad_sparse_tensor_is_refused(dims: list[int], indices: list[int], pattern: str) -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "s")
    sparse = onnx.SparseTensorProto(
        values=values, indices=numpy_helper.from_array(np.array(indices)), dims=dims
    )
    proto = model([node("Relu", ["s"], ["y"])], inputs=())
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match=pattern):
        load_model(proto)
