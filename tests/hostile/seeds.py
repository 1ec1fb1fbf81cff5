"""Sound models, small and of every kernel family, for the tests to damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero.types import onnx_dtype

OPSET = 21
_RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Seed:
    """A model and feeds that it takes. `drawn`: its results differ from run to run."""

    name: str
    model: bytes
    feeds: dict[str, Any]
    drawn: bool = False

    def proto(self) -> onnx.ModelProto:
        """A copy of the model that may be changed."""
        return onnx.ModelProto.FromString(self.model)


def f32(*shape: int) -> Any:
    """Standard normal float32."""
    return _RNG.standard_normal(shape).astype(np.float32)


def i64(*values: int) -> Any:
    """A vector of int64."""
    return np.array(values, np.int64)


def scalar(value: Any, dtype: Any = np.int64) -> Any:
    """A tensor of rank 0."""
    return np.array(value, dtype)


def tensor_input(name: str, array: Any, *, shaped: bool = False) -> onnx.ValueInfoProto:
    """An input of the array's dtype, of any shape unless `shaped`."""
    return helper.make_tensor_value_info(name, int(onnx_dtype(array.dtype)), array.shape if shaped else None)


def node_model(
    op_type: str,
    inputs: Sequence[Any],
    n_outputs: int = 1,
    *,
    opset: int = OPSET,
    constants: Sequence[int] = (),
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node, and its feeds. None leaves an input out; inputs in `constants` become initializers."""
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"o{k}" for k in range(n_outputs)], name="bad", **attributes)
    fed = {f"i{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}
    graph = helper.make_graph(
        [node],
        "one_node",
        [tensor_input(name, x) for name, x in fed.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [onnx.numpy_helper.from_array(inputs[k], f"i{k}") for k in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), fed


_Node = tuple[str, Callable[[], list[Any]], dict[str, Any]]
_NODES: tuple[_Node, ...] = (
    ("Add", lambda: [f32(2, 3), f32(3)], {}),
    ("Mod", lambda: [i64(5, -7), i64(3, 2)], {}),
    ("BitShift", lambda: [np.array([1, 2], np.uint8), np.array([1, 3], np.uint8)], {"direction": "LEFT"}),
    ("Cast", lambda: [f32(2, 3)], {"to": TensorProto.INT32}),
    ("Clip", lambda: [f32(3), scalar(-1, np.float32), scalar(1, np.float32)], {}),
    ("MatMul", lambda: [f32(2, 3), f32(3, 4)], {}),
    ("Gemm", lambda: [f32(2, 3), f32(3, 4), f32(4)], {"alpha": 0.5, "transA": 0}),
    ("Einsum", lambda: [f32(2, 3), f32(3, 4)], {"equation": "ij,jk->ik"}),
    ("Conv", lambda: [f32(1, 2, 5, 5), f32(4, 1, 3, 3), f32(4)], {"group": 2, "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", lambda: [f32(1, 2, 3, 3), f32(2, 1, 2, 2)], {"strides": [2, 2]}),
    ("MaxPool", lambda: [f32(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [2, 2], "n_outputs": 2}),
    ("AveragePool", lambda: [f32(1, 1, 5, 5)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("LpPool", lambda: [f32(1, 1, 5)], {"kernel_shape": [2], "p": 2}),
    ("GlobalMaxPool", lambda: [f32(1, 2, 3, 3)], {}),
    (
        "MaxUnpool",
        lambda: [f32(1, 1, 2, 2), np.array([[[[0, 3], [10, 15]]]]), i64(1, 1, 4, 4)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    ("ReduceSum", lambda: [f32(2, 3), i64(1)], {"keepdims": 0}),
    ("ReduceMax", lambda: [f32(2, 3), i64(0)], {}),
    ("ArgMax", lambda: [f32(2, 3)], {"axis": 1}),
    ("Softmax", lambda: [f32(2, 3)], {"axis": -1}),
    ("CumSum", lambda: [f32(2, 3), scalar(1)], {"exclusive": 1}),
    ("TopK", lambda: [f32(2, 5), i64(3)], {"axis": 1, "n_outputs": 2}),
    ("Unique", lambda: [f32(2, 3)], {"axis": 0, "n_outputs": 4}),
    ("LayerNormalization", lambda: [f32(2, 3), f32(3), f32(3)], {"axis": -1}),
    ("GroupNormalization", lambda: [f32(1, 4, 3), f32(4), f32(4)], {"num_groups": 2}),
    ("LRN", lambda: [f32(1, 4, 3)], {"size": 3}),
    ("Gather", lambda: [f32(4, 3), np.array([[0, 3]])], {"axis": 0}),
    ("GatherElements", lambda: [f32(3, 3), np.array([[0, 2, 1]])], {"axis": 0}),
    ("GatherND", lambda: [f32(3, 3), np.array([[0, 2], [1, 1]])], {"batch_dims": 0}),
    ("ScatterElements", lambda: [f32(3, 3), np.array([[0, 2, 1]]), f32(1, 3)], {"reduction": "add"}),
    ("ScatterND", lambda: [f32(4, 3), np.array([[1], [3]]), f32(2, 3)], {}),
    ("OneHot", lambda: [i64(0, 2), scalar(3), f32(2)], {"axis": -1}),
    ("Slice", lambda: [f32(4, 5), i64(0, -1), i64(3, -9), i64(0, 1), i64(1, -2)], {}),
    ("Reshape", lambda: [f32(2, 6), i64(3, -1)], {"allowzero": 0}),
    ("Transpose", lambda: [f32(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Squeeze", lambda: [f32(2, 1), i64(1)], {}),
    ("Unsqueeze", lambda: [f32(2), i64(0)], {}),
    ("Expand", lambda: [f32(3, 1), i64(2, 1, 4)], {}),
    ("Tile", lambda: [f32(2, 3), i64(2, 1)], {}),
    ("Concat", lambda: [f32(2, 3), f32(2, 1)], {"axis": 1}),
    ("Split", lambda: [f32(6, 2), i64(2, 4)], {"axis": 0, "n_outputs": 2}),
    ("Pad", lambda: [f32(2, 3), i64(0, 1, 0, 2), scalar(1, np.float32)], {"mode": "constant"}),
    ("Range", lambda: [scalar(0), scalar(10), scalar(3)], {}),
    ("ConstantOfShape", lambda: [i64(2, 3)], {}),
    ("EyeLike", lambda: [f32(3, 4)], {"k": 1}),
    ("Trilu", lambda: [f32(3, 4), scalar(1)], {"upper": 0}),
    ("DepthToSpace", lambda: [f32(1, 4, 2, 2)], {"blocksize": 2}),
    ("ReverseSequence", lambda: [f32(4, 2), i64(4, 2)], {"time_axis": 0, "batch_axis": 1}),
    ("Col2Im", lambda: [f32(1, 4, 4), i64(4, 4), i64(2, 2)], {"strides": [2, 2]}),
    ("CenterCropPad", lambda: [f32(5, 4), i64(3, 6)], {}),
    ("Compress", lambda: [f32(3, 2), np.array([True, False, True])], {"axis": 0}),
    ("NonZero", lambda: [f32(3, 2)], {}),
    ("Resize", lambda: [f32(1, 1, 3, 3), None, np.array([1, 1, 2, 1.5], np.float32)], {"mode": "linear"}),
    ("GridSample", lambda: [f32(1, 1, 3, 3), f32(1, 2, 2, 2)], {"mode": "linear"}),
    ("AffineGrid", lambda: [f32(1, 2, 3), i64(1, 1, 3, 4)], {}),
    (
        "RoiAlign",
        lambda: [f32(1, 1, 4, 4), np.array([[0, 0, 3, 3]], np.float32), i64(0)],
        {"output_height": 2, "output_width": 2},
    ),
    (
        "NonMaxSuppression",
        lambda: [f32(1, 4, 4), f32(1, 1, 4), i64(2), np.array([0.5], np.float32)],
        {"center_point_box": 0},
    ),
    ("STFT", lambda: [f32(1, 16, 1), scalar(4), f32(8), scalar(8)], {"onesided": 1}),
    ("DFT", lambda: [f32(1, 6, 1), scalar(6), scalar(1)], {}),
    ("HannWindow", lambda: [scalar(6)], {"periodic": 1}),
    ("LSTM", lambda: [f32(3, 2, 2), f32(1, 12, 2), f32(1, 12, 3)], {"hidden_size": 3, "n_outputs": 3}),
    (
        "GRU",
        lambda: [f32(3, 2, 2), f32(2, 9, 2), f32(2, 9, 3), None, np.array([2, 3], np.int32)],
        {"hidden_size": 3, "direction": "bidirectional", "n_outputs": 2},
    ),
    ("QuantizeLinear", lambda: [f32(2, 3), scalar(0.1, np.float32), scalar(3, np.uint8)], {"axis": 1}),
    ("StringConcat", lambda: [np.array(["a", "b"], object), np.array(["c"], object)], {}),
    ("StringSplit", lambda: [np.array(["a b", "c"], object)], {"maxsplit": 2, "n_outputs": 2}),
    ("Dropout", lambda: [f32(3), scalar(0.5, np.float32), scalar(True, np.bool_)], {"n_outputs": 2}),
    ("RandomNormalLike", lambda: [f32(2, 3)], {"mean": 1.0, "scale": 2.0}),
    ("Multinomial", lambda: [f32(2, 3)], {"sample_size": 4}),
)
_DRAWN = frozenset({"Dropout", "RandomNormalLike", "Multinomial"})


@cache
def nodes() -> tuple[Seed, ...]:
    """One model of one node per operator."""
    found = []
    for op_type, inputs, attributes in _NODES:
        model, feeds = node_model(op_type, inputs(), **attributes)
        found.append(Seed(op_type, model.SerializeToString(), feeds, op_type in _DRAWN))
    return tuple(found)


@cache
def graphs() -> tuple[Seed, ...]:
    """Models of several nodes: shape arithmetic, bodies and what they capture, functions, sequences."""
    return (_shapes(), _bodies(), _functions(), _sequences())


def _info(name: str, shape: Sequence[int | str] | None = None, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def _seed(name: str, graph: onnx.GraphProto, feeds: dict[str, Any], **keywords: Any) -> Seed:
    opsets = keywords.pop("opset_imports", [helper.make_opsetid("", OPSET)])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **keywords)
    return Seed(name, model.SerializeToString(), feeds)


def _shapes() -> Seed:
    rows = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], name="first"),
        helper.make_node("Concat", ["n", "rest"], ["target"], name="target", axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"], name="reshape"),
        helper.make_node("Slice", ["r", "zero", "two", "one"], ["part"], name="slice"),
        helper.make_node("MatMul", ["part", "w"], ["y"], name="product"),
    ]
    constants = {"zero": i64(0), "rest": i64(-1), "one": i64(1), "two": i64(2), "w": f32(2, 3)}
    graph = helper.make_graph(
        rows,
        "shapes",
        [_info("x", ["n", 2, 3])],
        [_info("y", ["n", 3]), _info("s", None, TensorProto.INT64)],
        [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return _seed("shapes", graph, {"x": f32(4, 2, 3)})


def _bodies() -> Seed:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "a"], ["w"], name="grow"),
            helper.make_node("Identity", ["go"], ["on"], name="on"),
            helper.make_node("Mul", ["w", "w"], ["square"], name="square"),
        ],
        "body",
        [_info("i", [], TensorProto.INT64), _info("go", [], TensorProto.BOOL), _info("v", [2])],
        [_info("on", [], TensorProto.BOOL), _info("w", [2]), _info("square", [2])],
    )
    branches = [
        helper.make_graph([helper.make_node(op, ["last"], [f"{op}_out"])], op, [], [_info(f"{op}_out", [2])])
        for op in ("Relu", "Neg")
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["trips", "", "a"], ["last", "all"], name="loop", body=body),
            helper.make_node("If", ["p"], ["y"], name="if", then_branch=branches[0], else_branch=branches[1]),
        ],
        "bodies",
        [_info("trips", [], TensorProto.INT64), _info("a", [2]), _info("p", [], TensorProto.BOOL)],
        [_info("y", [2]), _info("all", None)],
    )
    return _seed("bodies", graph, {"trips": scalar(3), "a": f32(2), "p": scalar(True, np.bool_)})


def _functions() -> Seed:
    inner = helper.make_function(
        "own",
        "Scaled",
        ["x"],
        ["y"],
        [
            helper.make_node("Constant", [], ["c"], value_float=0.5),
            helper.make_node("Mul", ["x", "c"], ["m"]),
            helper.make_node("Softmax", ["m"], ["y"]),
        ],
        [helper.make_opsetid("", OPSET)],
        [],
    )
    outer = helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [
            helper.make_node("Scaled", ["x"], ["t"], domain="own"),
            helper.make_node("Scaled", ["t"], ["y"], domain="own"),
        ],
        [helper.make_opsetid("own", 1)],
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="own", name="twice")],
        "functions",
        [_info("x", ["n", 3])],
        [_info("y", ["n", 3])],
    )
    return _seed(
        "functions",
        graph,
        {"x": f32(2, 3)},
        functions=[inner, outer],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)],
    )


def _sequences() -> Seed:
    graph = helper.make_graph(
        [
            helper.make_node("SplitToSequence", ["x"], ["s"], name="split", axis=0),
            helper.make_node("SequenceAt", ["s", "k"], ["y"], name="at"),
            helper.make_node("SequenceInsert", ["s", "y"], ["t"], name="insert"),
            helper.make_node("ConcatFromSequence", ["t"], ["z"], name="join", axis=0),
        ],
        "sequences",
        [_info("x", [3, 2]), _info("k", [], TensorProto.INT64)],
        [_info("y", None), _info("z", None)],
    )
    return _seed("sequences", graph, {"x": f32(3, 2), "k": scalar(-1)})
