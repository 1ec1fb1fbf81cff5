"""Random models over many operator kinds: neural layers, casts, data-dependent shapes, sequences, control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.properties.graphs import N, RandomModel

F, INT = TensorProto.FLOAT, TensorProto.INT64
Step = Callable[["Author", str, str], str]

_RNG = np.random.default_rng(5)


def _weight(*shape: int) -> np.ndarray:
    return (_RNG.standard_normal(shape) / 2).astype(np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CONSTANTS: dict[str, np.ndarray] = {
    "w": _weight(N, N),
    "bias": _weight(N),
    "scale": np.abs(_weight(N)),
    "conv": _weight(N, N, 3),
    "up": _weight(N, N, 2),
    "lstm_w": _weight(1, 4 * N, N),
    "lstm_r": _weight(1, 4 * N, N),
    "gru_w": _weight(1, 3 * N, N),
    "gru_r": _weight(1, 3 * N, N),
    "twice": np.array([1, 1, 2], np.float32),
    "flat": _ints(0, -1),
    "rows": _ints(-1, N),
    "cube": _ints(-1, N, N),
    "image": _ints(0, 1, N, N),
    "back3": _ints(0, N, N),
    "minus1": _ints(-1),
    "zero1": _ints(0),
    "one1": _ints(1),
    "two1": _ints(2),
    "n1": _ints(N),
    "lowest": _ints(-(2**31)),
    "highest": _ints(2**31),
    "halves": _ints(1, N - 1),
    "axes12": _ints(1, 2),
    "pick": _ints(-1, 0, 2, 1),
    "zero": np.array(0, np.float32),
    "half": np.array(0.5, np.float32),
    "zero_i": np.array(0, np.int64),
    "one_i": np.array(1, np.int64),
    "three_i": np.array(3, np.int64),
    "true": np.array(True),
    "zp": np.array(3, np.uint8),
    "byte_scale": np.array(0.02, np.float32),
    "pads": _ints(0, 1, 0, 0, 0, 1),
}


class Author:
    """Appends operator groups that take and give float32[batch, N, N]; `extra` collects what else may be an output."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.extra: list[str] = []
        self.count = 0

    def node(self, op: str, inputs: Sequence[str], n_outputs: int = 1, **attributes: Any) -> list[str]:
        """A node; returns its output names."""
        self.count += 1
        outputs = [f"{self.prefix}v{self.count}_{k}" for k in range(n_outputs)]
        name = f"{self.prefix}n{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=name, **attributes))
        return outputs

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output; returns its name."""
        return self.node(op, inputs, **attributes)[0]

    def body(
        self,
        name: str,
        inputs: Sequence[tuple[str, int, Sequence[Any] | None]],
        outputs: Sequence[tuple[str, int]],
    ) -> onnx.GraphProto:
        """What was written so far, as a body graph."""
        shapes = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        return helper.make_graph(
            self.nodes, name, shapes, [helper.make_tensor_value_info(n, t, None) for n, t in outputs]
        )


def unary(op: str, **attributes: Any) -> Step:
    return lambda g, a, b: g.one(op, a, **attributes)


def binary(op: str) -> Step:
    return lambda g, a, b: g.one(op, a, b)


def cast_chain(*types: int) -> Step:
    def step(g: Author, a: str, b: str) -> str:
        for to in types:
            a = g.one("Cast", a, to=to)
            g.extra.append(a)
        return g.one("Cast", a, to=F)

    return step


def omitted_operands(g: Author, a: str, b: str) -> str:
    clipped = g.one("Clip", a, "", "half")
    y, _ = g.node("Dropout", [clipped, ""], 2)
    values, _ = g.node("TopK", [y, "n1"], 2, axis=1)
    return values


def views_of_views(g: Author, a: str, b: str) -> str:
    back = g.one("Slice", a, "minus1", "lowest", "two1", "minus1")
    turned = g.one("Transpose", back, perm=[2, 1, 0])
    again = g.one("Slice", turned, "minus1", "lowest", "one1", "minus1")
    g.extra += [back, turned, again]
    return g.one("Add", g.one("Transpose", again, perm=[2, 1, 0]), g.one("Neg", back))


def in_place_under_a_view(g: Author, a: str, b: str) -> str:
    base = g.one("Neg", a)
    view = g.one("Transpose", base, perm=[0, 2, 1])
    chain = g.one("Abs", g.one("Sin", g.one("Neg", base)))
    return g.one("Add", g.one("Mul", chain, chain), view)


def duplicated(g: Author, a: str, b: str) -> str:
    total = g.one("Add", a, a)
    return g.one("Concat", *g.node("Split", [g.one("Sub", total, total), "halves"], 2, axis=2), axis=2)


def conv(g: Author, a: str, b: str) -> str:
    return g.one("Conv", a, "conv", "bias", kernel_shape=[3], pads=[1, 1])


def conv_transpose(g: Author, a: str, b: str) -> str:
    return g.one("MaxPool", g.one("ConvTranspose", a, "up", strides=[2]), kernel_shape=[2], strides=[2])


def pool(g: Author, a: str, b: str) -> str:
    average = g.one("AveragePool", a, kernel_shape=[3], pads=[1, 1], count_include_pad=1)
    most, _ = g.node("MaxPool", [b], 2, kernel_shape=[3], pads=[1, 1])
    return g.one("Sub", average, g.one("Mul", most, g.one("GlobalAveragePool", a)))


def norms(g: Author, a: str, b: str) -> str:
    batch = g.one("BatchNormalization", a, "scale", "bias", "bias", "scale")
    layer = g.node("LayerNormalization", [b, "scale"], 1)[0]
    return g.one("Add", batch, g.one("InstanceNormalization", layer, "scale", "bias"))


def gemm(g: Author, a: str, b: str) -> str:
    rows = g.one("Reshape", a, "rows")
    return g.one("Reshape", g.one("Gemm", rows, "w", "bias", alpha=0.5, transB=1), "cube")


def lstm(g: Author, a: str, b: str) -> str:
    y, h, c = g.node("LSTM", [g.one("Transpose", a, perm=[1, 0, 2]), "lstm_w", "lstm_r"], 3, hidden_size=N)
    g.extra += [h, c]
    return g.one("Transpose", g.one("Squeeze", y, "one1"), perm=[1, 0, 2])


def gru(g: Author, a: str, b: str) -> str:
    y = g.one(
        "GRU", g.one("Transpose", a, perm=[1, 0, 2]), "gru_w", "gru_r", hidden_size=N, linear_before_reset=1
    )
    return g.one("Transpose", g.one("Squeeze", y, "one1"), perm=[1, 0, 2])


def resize(g: Author, a: str, b: str) -> str:
    large = g.one("Resize", a, "", "twice", mode="nearest")
    return g.one("Slice", large, "one1", g.one("Add", "n1", "one1"), "two1")


def choose(g: Author, a: str, b: str) -> str:
    mask = g.one("And", g.one("Greater", a, b), g.one("Not", g.one("Less", b, "half")))
    g.extra.append(mask)
    return g.one("Where", mask, a, b)


def arg_max(g: Author, a: str, b: str) -> str:
    best = g.one("ArgMax", a, axis=2, keepdims=1)
    g.extra.append(best)
    return g.one("Add", b, g.one("GatherElements", a, best, axis=2))


def top_k(g: Author, a: str, b: str) -> str:
    values, indices = g.node("TopK", [a, "two1"], 2, axis=-1)
    return g.one("ScatterElements", b, indices, values, axis=2)


def non_zero(g: Author, a: str, b: str) -> str:
    places = g.one("NonZero", g.one("Relu", a))
    g.extra.append(places)
    found = g.one("GatherND", b, g.one("Transpose", places, perm=[1, 0]))
    return g.one("Sub", a, g.one("Tanh", g.one("ReduceSum", found, keepdims=0)))


def compress(g: Author, a: str, b: str) -> str:
    flat = g.one("Reshape", a, "minus1")
    kept = g.one("Compress", flat, g.one("Reshape", g.one("Greater", b, "zero"), "minus1"))
    g.extra.append(kept)
    padded = g.one("Concat", kept, flat, axis=0)
    return g.one("Reshape", g.one("Slice", padded, "zero1", g.one("Shape", flat)), g.one("Shape", b))


def by_count(g: Author, a: str, b: str) -> str:
    count = g.one("ReduceSum", g.one("Cast", g.one("Greater", a, b), to=INT), keepdims=0)
    steps = g.one("Range", "zero_i", count, "one_i")
    g.extra.append(steps)
    return g.one("Add", a, g.one("Tanh", g.one("Cast", g.one("ReduceSum", steps, keepdims=0), to=F)))


def sequence(g: Author, a: str, b: str) -> str:
    items = g.one("SequenceInsert", g.one("SequenceConstruct", a, b, a), g.one("Neg", a), "one_i")
    shorter = g.one("SequenceErase", items, "zero_i")
    return g.one("Add", g.one("SequenceAt", shorter, "zero_i"), g.one("SequenceAt", shorter, "one_i"))


def pieces(g: Author, a: str, b: str) -> str:
    parts = g.one("SplitToSequence", a, "halves", axis=1)
    return g.one("ConcatFromSequence", g.one("SequenceInsert", g.one("SequenceErase", parts, "zero_i"),
                 g.one("SequenceAt", parts, "zero_i")), axis=1)  # fmt: skip


def quantized(g: Author, a: str, b: str) -> str:
    q = g.one("QuantizeLinear", a, "byte_scale", "zp")
    g.extra.append(q)
    return g.one("DequantizeLinear", q, "byte_scale", "zp")


def padded(g: Author, a: str, b: str) -> str:
    wide = g.one("Pad", a, "pads", "half", mode="constant")
    return g.one("Gather", g.one("Gather", wide, "pick", axis=1), "pick", axis=2)


def by_shape(g: Author, a: str, b: str) -> str:
    flat = g.one("Flatten", a, axis=2)
    filled = g.one("ConstantOfShape", g.one("Shape", b))
    return g.one("Max", g.one("Reshape", flat, g.one("Shape", b)), filled)


def identities(g: Author, a: str, b: str) -> str:
    for _ in range(3):
        a = g.one("Identity", a)
        g.extra.append(a)
    return a


def branch(g: Author, a: str, b: str) -> str:
    condition = g.one("Greater", g.one("ReduceSum", a, keepdims=0), "zero")
    then, other = Author(f"{g.prefix}t{g.count}_"), Author(f"{g.prefix}e{g.count}_")
    y, z = then.one("MatMul", then.one("Transpose", a, perm=[0, 2, 1]), b), other.one("Identity", b)
    return g.one(
        "If",
        condition,
        then_branch=then.body("then", [], [(y, F)]),
        else_branch=other.body("else", [], [(z, F)]),
    )


def loop(g: Author, a: str, b: str) -> str:
    inner = Author(f"{g.prefix}l{g.count}_")
    i, go, carried = (inner.prefix + n for n in ("i", "go", "x"))
    turned = inner.one("Transpose", inner.one("Add", carried, b), perm=[0, 2, 1])
    y = inner.one("Tanh", inner.one("Mul", turned, inner.one("Cast", i, to=F)))
    grown = inner.one("Range", "zero_i", i, "one_i")
    size = inner.one("ReduceSum", grown, keepdims=0)
    kept = inner.one("Identity", go)
    body = inner.body(
        "body",
        [(i, INT, []), (go, TensorProto.BOOL, []), (carried, F, ["batch", N, N])],
        [(kept, TensorProto.BOOL), (y, F), (size, INT), (turned, F)],
    )
    out, sizes, all_ = g.node("Loop", ["three_i", "true", a], 3, body=body)
    g.extra += [sizes, all_]
    return out


def scan(g: Author, a: str, b: str) -> str:
    inner = Author(f"{g.prefix}s{g.count}_")
    state, row = inner.prefix + "h", inner.prefix + "r"
    h = inner.one("Tanh", inner.one("Add", state, inner.one("MatMul", row, "w")))
    y = inner.one("Identity", h)
    body = inner.body("body", [(state, F, ["batch", N]), (row, F, ["batch", N])], [(h, F), (y, F)])
    first = g.one("ReduceMax", b, axes=[1], keepdims=0)
    _, rows = g.node(
        "Scan", [first, a], 2, body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    return rows


STEPS: dict[str, Step] = {
    "add": binary("Add"), "mul": binary("Mul"), "div": lambda g, a, b: g.one("Div", a, g.one("Exp", b)),
    "exp": unary("Exp"), "gelu": lambda g, a, b: g.one("Mul", a, g.one("Erf", b)), "matmul": binary("MatMul"),
    "transpose": unary("Transpose", perm=[0, 2, 1]), "softmax": unary("Softmax", axis=1),
    "log_softmax": unary("LogSoftmax", axis=2),
    "mean": lambda g, a, b: g.one("Sub", a, g.one("ReduceMean", b, axes=[2])),
    "cumsum": lambda g, a, b: g.one("CumSum", a, "one_i", reverse=1),
    "einsum": lambda g, a, b: g.one("Einsum", a, b, equation="bij,bkj->bik"),
    "half": cast_chain(TensorProto.FLOAT16), "bfloat": cast_chain(TensorProto.BFLOAT16, TensorProto.DOUBLE),
    "whole": cast_chain(INT, TensorProto.INT32, TensorProto.BOOL),
    "bytes": cast_chain(TensorProto.INT8, TensorProto.FLOAT16),
    "omitted": omitted_operands, "views": views_of_views, "in place": in_place_under_a_view, "twice": duplicated,
    "conv": conv, "conv transpose": conv_transpose, "pool": pool, "norms": norms, "gemm": gemm,
    "lstm": lstm, "gru": gru,
    "resize": resize, "choose": choose, "arg max": arg_max, "top k": top_k, "non zero": non_zero, "compress": compress,
    "count": by_count, "sequence": sequence, "pieces": pieces, "quantized": quantized, "padded": padded,
    "shape": by_shape, "identities": identities, "branch": branch, "loop": loop, "scan": scan,
}  # fmt: skip


@st.composite
def rich_models(draw: st.DrawFn, max_steps: int = 10, steps: Sequence[str] = tuple(STEPS)) -> RandomModel:
    """Random DAGs of up to `max_steps` groups; any value may be an output."""
    g, values = Author(), ["x", "y"]
    for _ in range(draw(st.integers(1, max_steps))):
        step = STEPS[draw(st.sampled_from(steps))]
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        made = step(g, a, b)
        # keep magnitudes bounded, so that products of products do not overflow
        values.append(g.one("Tanh", made) if draw(st.booleans()) else g.one("Clip", made, "", "half"))
        g.extra.append(made)
    outputs = draw(st.lists(st.sampled_from([*values[2:], *g.extra, "scale"]), max_size=5, unique=True))
    if values[-1] not in outputs:
        outputs.append(values[-1])

    def port(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, F, ["batch", N, N])

    ports = [helper.make_tensor_value_info(n, F, [N]) if n == "scale" else _open_port(n) for n in outputs]
    initializers = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    inputs = [port("x"), port("y"), port("unused")]
    graph = helper.make_graph(g.nodes, "random", inputs, ports, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return RandomModel(_typed(proto), tuple(n.name for n in g.nodes))


def _open_port(name: str) -> onnx.ValueInfoProto:
    port = onnx.ValueInfoProto()
    port.name = name
    return port


def _typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Output types filled in by shape inference: extras have many."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    known = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
    for output in proto.graph.output:
        if not output.HasField("type"):
            output.CopyFrom(known[output.name])
    return proto
