"""Gradient: the derivatives it gives are those that central differences in float64 measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hetero
from hetero.errors import ModelError
from hetero.model import load_model

GRADIENT = "ai.onnx.preview.training.Gradient"
Shapes = dict[str, tuple[int, ...]]


def text(
    nodes: str, shapes: Shapes, *, opset: int = 21, static: bool = True, functions: str = "", more: str = ""
) -> str:
    """A model of `nodes`, which make y of the inputs x, w…; its outputs are y, dx, dw… in float64."""
    names = list(shapes)

    def dims(name: str) -> str:
        return ", ".join(str(d) if static else f"{name}{k}" for k, d in enumerate(shapes[name]))

    inputs = ", ".join(f"double[{dims(n)}] {n}" for n in names)
    listed = ", ".join(f'"{n}"' for n in names)
    grads = ", ".join(f"d{n}" for n in names)
    return (
        f'<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.preview.training": 1, "f": 1]>\n'
        f"g ({inputs}) => (y, {grads}) {{ {nodes} {more}"
        f' {grads} = {GRADIENT} <xs = [{listed}], y = "y"> ({", ".join(names)}) }}\n{functions}'
    )


def executor(model: str | onnx.ModelProto, providers: Any = ("cpu",)) -> hetero.HeterogeneousExecutor:
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    return hetero.HeterogeneousExecutor(proto, providers, children="inline")


def measured(ex: hetero.HeterogeneousExecutor, feeds: dict[str, Any], name: str, step: float = 1e-6) -> Any:
    """The derivative of the sum of y by an input, by central differences."""
    found = np.zeros(feeds[name].shape)
    for index in np.ndindex(found.shape):
        sums = []
        for sign in (1, -1):
            moved = feeds[name].copy()
            moved[index] += sign * step
            sums.append(float(np.sum(ex.run({**feeds, name: moved})["y"])))
        found[index] = (sums[0] - sums[1]) / (2 * step)
    return found


def check(model: str, feeds: dict[str, Any]) -> None:
    with executor(model) as ex:
        found = ex.run(feeds)
        for name, x in feeds.items():
            grad = found[f"d{name}"]
            assert (grad.dtype, grad.shape) == (x.dtype, x.shape)
            np.testing.assert_allclose(grad, measured(ex, feeds, name), rtol=2e-6, atol=2e-8, err_msg=name)


def drawn(shapes: Shapes, low: float, high: float, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {name: generator.uniform(low, high, shape) for name, shape in shapes.items()}


# Weighted, so that no derivative is 1 throughout.
WEIGHTED = "q = Sin(p) y = Mul(q, p)"
UNARY: dict[str, tuple[float, float]] = {
    "Abs": (-2, 2), "Acos": (-0.9, 0.9), "Acosh": (1.1, 3), "Asin": (-0.9, 0.9), "Asinh": (-2, 2), "Atan": (-2, 2),
    "Atanh": (-0.9, 0.9), "Cos": (-2, 2), "Cosh": (-2, 2), "Elu<alpha = 1.5>": (-2, 2),
    "Erf": (-2, 2), "Exp": (-2, 2), "Gelu": (-2, 2), 'Gelu<approximate = "tanh">': (-2, 2),
    "HardSigmoid<alpha = 0.3>": (-3, 3), "HardSwish": (-4, 4), "LeakyRelu<alpha = 0.2>": (-2, 2), "Log": (0.1, 3),
    "Mish": (-2, 2), "Neg": (-2, 2), "Reciprocal": (0.3, 2), "Relu": (-2, 2), "Selu": (-2, 2), "Sigmoid": (-2, 2),
    "Sin": (-2, 2), "Sinh": (-2, 2), "Softplus": (-2, 2), "Softsign": (-2, 2), "Sqrt": (0.2, 3), "Tan": (-1, 1),
    "Tanh": (-2, 2), "ThresholdedRelu<alpha = 0.5>": (-2, 2), "Identity": (-2, 2), "Softmax<axis = 0>": (-2, 2),
    "LogSoftmax": (-2, 2), "Transpose": (-2, 2), "Flatten<axis = 0>": (-2, 2),
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_an_operator_of_one_tensor(op: str) -> None:
    shapes: Shapes = {"x": (2, 3)}
    check(text(f"p = {op}(x) {WEIGHTED}", shapes, static=False), drawn(shapes, *UNARY[op]))


BINARY: dict[str, tuple[str, Shapes]] = {
    "Add": ("p = Add(x, w)", {"x": (2, 3), "w": (3,)}),
    "Sub": ("p = Sub(x, w)", {"x": (2, 1), "w": (2, 3)}),
    "Mul": ("p = Mul(x, w)", {"x": (3,), "w": (2, 1)}),
    "Div": ("p = Div(x, w)", {"x": (2, 3), "w": (1, 1, 3)}),
    "Pow": ("p = Pow(x, w)", {"x": (2, 3), "w": (3,)}),
    "of itself": ("p = Mul(x, x)", {"x": (2, 3)}),
    "Max": ("p = Max(x, w, v)", {"x": (2, 3), "w": (3,), "v": ()}),
    "Min": ("p = Min(x, w)", {"x": (2, 3), "w": (2, 1)}),
    "Sum": ("p = Sum(x, w, x)", {"x": (2, 3), "w": (3,)}),
    "Mean": ("p = Mean(x, w)", {"x": (2, 3), "w": (3,)}),
    "Where": ("c = Less(x, w) p = Where(c, x, w)", {"x": (2, 3), "w": (3,)}),
    "PRelu": ("t = Log(x) p = PRelu(t, w)", {"x": (2, 3), "w": (3,)}),
    "Clip": ("p = Clip(x, lo, hi)", {"x": (2, 4), "lo": (), "hi": ()}),
    "MatMul": ("p = MatMul(x, w)", {"x": (2, 3), "w": (3, 4)}),
    "MatMul of a stack and a matrix": ("p = MatMul(x, w)", {"x": (2, 3, 4), "w": (4, 2)}),
    "MatMul of stacks": ("p = MatMul(x, w)", {"x": (2, 1, 3, 2), "w": (3, 2, 2)}),
    "MatMul of stacks alike": ("p = MatMul(x, w)", {"x": (2, 3, 2), "w": (2, 2, 3)}),
    "MatMul of vectors": ("p = MatMul(x, w)", {"x": (3,), "w": (3,)}),
    "MatMul of a vector and a stack": ("p = MatMul(x, w)", {"x": (3,), "w": (2, 3, 2)}),
    "MatMul of a stack and a vector": ("p = MatMul(x, w)", {"x": (2, 2, 3), "w": (3,)}),
    "Gemm": ("p = Gemm<alpha = 0.5, beta = 2.0>(x, w, v)", {"x": (2, 3), "w": (3, 4), "v": (4,)}),
    "Gemm transposed": ("p = Gemm<transA = 1, transB = 1>(x, w, v)", {"x": (3, 2), "w": (4, 3), "v": (2, 1)}),
    "Gemm, left transposed": ("p = Gemm<transA = 1>(x, w)", {"x": (3, 2), "w": (3, 4)}),
    "Einsum": ('p = Einsum<equation = "bij,bjk->bik">(x, w)', {"x": (2, 2, 3), "w": (2, 3, 2)}),
    "Einsum that sums": ('p = Einsum<equation = "ij,jk->k">(x, w)', {"x": (2, 3), "w": (3, 2)}),
    "Einsum without an arrow": ('p = Einsum<equation = "ij,jk">(x, w)', {"x": (2, 3), "w": (3, 2)}),
    "Concat": ("p = Concat<axis = 1>(x, w, x)", {"x": (2, 3), "w": (2, 1)}),
    "Expand": ("s = Constant<value = int64[3] {2, 2, 3}>() p = Expand(x, s)", {"x": (2, 1)}),
    "Conv": ("p = Conv<pads = [1, 0], strides = [2]>(x, w, b)", {"x": (2, 2, 6), "w": (3, 2, 3), "b": (3,)}),
    "Conv in two groups": (
        "p = Conv<group = 2, dilations = [2, 1], pads = [1, 1, 0, 1]>(x, w)",
        {"x": (1, 4, 4, 3), "w": (2, 2, 2, 2)},
    ),
    "Conv, same": ('p = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)', {"x": (1, 1, 4, 5), "w": (2, 1, 3, 2)}),
    "Conv, same below": ('p = Conv<auto_pad = "SAME_LOWER">(x, w)', {"x": (1, 1, 3, 3), "w": (1, 1, 2, 2)}),
    "Conv, rows left over": ("p = Conv<strides = [3], pads = [0, 2]>(x, w)", {"x": (1, 1, 9), "w": (1, 1, 2)}),
    "ConvTranspose": (
        "p = ConvTranspose<strides = [2], pads = [1, 0], output_padding = [1], group = 2>(x, w, b)",
        {"x": (2, 2, 3), "w": (2, 2, 3), "b": (4,)},
    ),
    "BatchNormalization": (
        "p = BatchNormalization(x, s, b, m, v)",
        {"x": (2, 2, 3), "s": (2,), "b": (2,), "m": (2,), "v": (2,)},
    ),
    "LayerNormalization": ("p = LayerNormalization(x, s, b)", {"x": (2, 3), "s": (3,), "b": (3,)}),
    "LayerNormalization over two axes": ("p = LayerNormalization<axis = 1>(x, s)", {"x": (2, 3, 2), "s": (3, 2)}),
    "RMSNormalization": ("p = RMSNormalization<axis = 1>(x, s)", {"x": (2, 3, 2), "s": (3, 2)}),
    "InstanceNormalization": ("p = InstanceNormalization(x, s, b)", {"x": (2, 2, 3), "s": (2,), "b": (2,)}),
    "ScatterElements": (
        "i = Constant<value = int64[1, 2] {2, 0}>() p = ScatterElements<axis = 1>(x, i, u)",
        {"x": (2, 3), "u": (1, 2)},
    ),
    "ScatterND": ("i = Constant<value = int64[1, 1] {1}>() p = ScatterND(x, i, u)", {"x": (2, 3), "u": (1, 3)}),
    "Pad": (
        "k = Constant<value = int64[4] {1, 0, 0, 2}>() p = Pad(x, k, c)",
        {"x": (2, 3), "c": ()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("static", [True, False], ids=["numbers", "symbols"])
@pytest.mark.parametrize("case", BINARY)
def test_an_operator_of_several_tensors(case: str, static: bool) -> None:
    nodes, shapes = BINARY[case]
    feeds = drawn(shapes, 0.5, 1.5)
    if case == "Clip":
        feeds |= {"lo": np.array(0.8), "hi": np.array(1.2)}
    check(text(f"{nodes} {WEIGHTED}", shapes, static=static, opset=23 if "RMS" in case else 21), feeds)


def ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>() "


ONE: dict[str, tuple[str, tuple[int, ...]]] = {
    "Reshape": (ints("s", 3, -1) + "p = Reshape(x, s)", (2, 3)),
    "Squeeze": (ints("a", 1) + "p = Squeeze(x, a)", (2, 1, 3)),
    "Unsqueeze": (ints("a", 0, -1) + "p = Unsqueeze(x, a)", (2, 3)),
    "Transpose by a permutation": ("p = Transpose<perm = [2, 0, 1]>(x)", (2, 1, 3)),
    "Slice": (ints("s", -1, 0) + ints("e", -5, 2) + ints("a", 0, 1) + ints("t", -2, 1) + "p = Slice(x, s, e, a, t)",
              (4, 3)),
    "Split": (ints("k", 1, 2) + "p, unused = Split<axis = 1>(x, k)", (2, 3)),
    "Split, both parts": (ints("k", 1, 2) + "a, b = Split<axis = 1>(x, k) c = Sin(b) p = Mul(a, c)", (2, 3)),
    "Gather": ("i = Constant<value = int64[2, 2] {1, -1, 1, 0}>() p = Gather<axis = 1>(x, i)", (2, 3)),
    "GatherElements": ("i = Constant<value = int64[2, 2] {1, 1, 0, -1}>() p = GatherElements<axis = 1>(x, i)", (2, 3)),
    "GatherND": ("i = Constant<value = int64[2, 2] {1, 1, 1, 1}>() p = GatherND(x, i)", (2, 3)),
    "Tile": (ints("r", 2, 2) + "p = Tile(x, r)", (2, 1)),
    "Pad by reflection": (ints("k", 0, 1, 0, 2) + 'p = Pad<mode = "reflect">(x, k)', (2, 3)),
    "Pad by the edge": (ints("k", 1, 0, 1, 0) + 'p = Pad<mode = "edge">(x, k)', (2, 3)),
    "DepthToSpace": ("p = DepthToSpace<blocksize = 2>(x)", (1, 4, 1, 2)),
    "SpaceToDepth": ("p = SpaceToDepth<blocksize = 2>(x)", (1, 1, 2, 4)),
    "Trilu": ("p = Trilu<upper = 0>(x)", (3, 3)),
    "CumSum": ("k = Constant<value = int64 {1}>() p = CumSum<exclusive = 1>(x, k)", (2, 3)),
    "CumSum backwards": ("k = Constant<value = int64 {0}>() p = CumSum<reverse = 1>(x, k)", (2, 3)),
    "ReduceSum": (ints("a", -1) + "p = ReduceSum<keepdims = 0>(x, a)", (2, 3, 2)),
    "ReduceSum of all": ("p = ReduceSum<keepdims = 0>(x)", (2, 3)),
    "ReduceSum of none": ("p = ReduceSum<noop_with_empty_axes = 1>(x)", (2, 3)),
    "ReduceMean": (ints("a", 0, 2) + "p = ReduceMean<keepdims = 0>(x, a)", (2, 3, 2)),
    "ReduceMean with its axes": (ints("a", 1) + "p = ReduceMean(x, a)", (2, 3)),
    "ReduceMax": (ints("a", 1) + "p = ReduceMax<keepdims = 0>(x, a)", (2, 3)),
    "ReduceMin of all": ("p = ReduceMin(x)", (2, 3)),
    "ReduceL1": (ints("a", 1) + "p = ReduceL1(x, a)", (2, 3)),
    "ReduceL2": (ints("a", 0) + "p = ReduceL2<keepdims = 0>(x, a)", (2, 3)),
    "ReduceLogSum": (ints("a", 1) + "p = ReduceLogSum(x, a)", (2, 3)),
    "ReduceLogSumExp": (ints("a", 1) + "p = ReduceLogSumExp<keepdims = 0>(x, a)", (2, 3)),
    "ReduceSumSquare": (ints("a", 1) + "p = ReduceSumSquare(x, a)", (2, 3)),
    "MaxPool": ("p = MaxPool<kernel_shape = [2, 2], strides = [2, 1], pads = [1, 0, 0, 0]>(x)", (1, 2, 3, 3)),
    "AveragePool": ("p = AveragePool<kernel_shape = [2, 3], strides = [2, 2], pads = [1, 1, 0, 1]>(x)", (2, 2, 4, 3)),
    "AveragePool, pads counted": (
        "p = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(x)", (1, 2, 4)),
    "AveragePool, same": ('p = AveragePool<kernel_shape = [3], auto_pad = "SAME_UPPER", strides = [2]>(x)', (1, 2, 4)),
    "GlobalAveragePool": ("p = GlobalAveragePool(x)", (2, 2, 2, 3)),
    "Resize": ("sc = Constant<value = float[2] {1.0, 2.0}>() p = Resize(x, , sc)", (2, 3)),
    "Cast there and back": ("c = Cast<to = 1>(x) d = Sin(x) e = Cast<to = 11>(d) p = Mul(e, x)", (2, 3)),
    "Dropout": ("p = Dropout(x)", (2, 3)),
    "Floor adds nothing": ("f = Floor(x) p = Mul(f, x)", (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("case", ONE)
def test_an_operator_that_moves_or_reduces(case: str) -> None:
    nodes, shape = ONE[case]
    for static in (True, False):
        check(text(f"{nodes} {WEIGHTED}", {"x": shape}, static=static), drawn({"x": shape}, 0.5, 1.5))


OLD: dict[str, tuple[str, tuple[int, ...], int]] = {
    "axes as attributes": (
        "s = ReduceSum<axes = [1], keepdims = 0>(x) p = Unsqueeze<axes = [0]>(s)",
        (2, 3),
        11,
    ),
    "Softmax over all axes behind": ("p = Softmax<axis = 1>(x)", (2, 2, 2), 11),
    "broadcasting in opset 7": ("r = ReduceMean<axes = [0]>(x) p = Mul(x, r)", (2, 3), 7),
    "Clip by attributes": ("p = Clip<min = 0.8, max = 1.2>(x)", (2, 3), 9),
    "Slice by attributes": ("p = Slice<starts = [1], ends = [3], axes = [1]>(x)", (2, 3), 9),
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", OLD)
def test_models_of_old_opsets(case: str, static: bool) -> None:
    nodes, shape, opset = OLD[case]
    model = text(f"{nodes} {WEIGHTED}", {"x": shape}, opset=opset, static=static)
    check(model, drawn({"x": shape}, 0.5, 1.5))


def test_what_y_does_not_depend_on_has_derivatives_of_zero() -> None:
    with executor(text("y = Sin(x)", {"x": (2,), "w": (3,)})) as ex:
        assert ex.run({"x": np.ones(2), "w": np.ones(3)})["dw"].tolist() == [0, 0, 0]


def test_other_inputs_of_y_are_constants() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (double[2] x, double[2] z) => (dx) { y = Mul(x, z)"
        f' dx = {GRADIENT} <xs = ["x"], zs = ["z"], y = "y"> (x, z) }}'
    )
    with executor(model) as ex:
        assert ex.run({"x": np.array([1.0, 2.0]), "z": np.array([3.0, 4.0])})["dx"].tolist() == [3, 4]


def test_a_derivative_by_a_value_inside() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (double[2] x) => (dh) { h = Exp(x) y = Mul(h, h)"
        + f' dh = {GRADIENT} <xs = ["h"], y = "y"> (h) }}'
    )
    with executor(model) as ex:
        x = np.array([0.5, 1.0])
        np.testing.assert_allclose(ex.run({"x": x})["dh"], 2 * np.exp(x))


def test_outputs_may_be_left_out() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (double[2] x, double[2] w) => (dw) { y = Mul(x, w)"
        f' , dw = {GRADIENT} <xs = ["x", "w"], y = "y"> (x, w) }}'
    )
    with executor(model) as ex:
        assert ex.run({"x": np.array([1.0, 2.0]), "w": np.ones(2)})["dw"].tolist() == [1, 2]


def test_the_derivative_at_other_values_than_those_named() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (double[n] x, double[m] at) => (y, dx, dw) { w = Exp(x) h = Mul(x, x) y = Mul(h, w)"
        f' dx, dw = {GRADIENT} <xs = ["x", "w"], y = "y"> (at, at) }}'
    )
    with executor(model) as ex:
        at = np.array([2.0, 3.0, 4.0])
        found = ex.run({"x": np.ones(2), "at": at})
        np.testing.assert_allclose(found["y"], np.e * np.ones(2))
        np.testing.assert_allclose(found["dx"], 2 * at * at)
        np.testing.assert_allclose(found["dw"], at * at)


def test_second_derivatives() -> None:
    nodes = (
        "h = Tanh(x) m = MatMul(h, w) o = Mul(m, m)"
        f' gx = {GRADIENT} <xs = ["x"], zs = ["w"], y = "o"> (x, w) y = Sin(gx)'
    )
    for static in (True, False):
        shapes: Shapes = {"x": (2, 3), "w": (3, 2)}
        check(text(nodes, shapes, static=static), drawn(shapes, 0.5, 1.5))


def test_third_derivatives() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (double[n] x) => (c) { y = Sin(x)"
        f' a = {GRADIENT} <xs = ["x"], y = "y"> (x) b = {GRADIENT} <xs = ["x"], y = "a"> (x)'
        f' c = {GRADIENT} <xs = ["x"], y = "b"> (x) }}'
    )
    with executor(model) as ex:
        x = np.array([0.3, 1.1])
        np.testing.assert_allclose(ex.run({"x": x})["c"], -np.cos(x))


def test_a_gradient_in_a_body() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (int64 trips, double[2] x) => (last) { more = Constant<value = bool {1}>()"
        " rate = Constant<value = double {0.1}>()"
        " last = Loop(trips, more, x) <body = b (int64 i, bool c, double[2] s) => (bool c2, double[2] t) {"
        f' c2 = Identity(c) loss = Mul(s, s) d = {GRADIENT} <xs = ["s"], y = "loss"> (s)'
        " step = Mul(rate, d) t = Sub(s, step) }> }"
    )
    with executor(model, ["sim:0", "cpu"]) as ex:
        x = np.array([1.0, -2.0])
        np.testing.assert_allclose(ex.run({"trips": np.array(5), "x": x})["last"], x * 0.8**5)


FUNCTION = '<domain: "f", opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'


def test_functions_on_the_way_are_inlined() -> None:
    body = (
        FUNCTION + "Twist <k> (a) => (b) { s = Sin(a) c = LeakyRelu <alpha: float = @k> (s) b = Mul(c, a) }"
    )
    shapes: Shapes = {"x": (2, 3)}
    check(text(f"p = f.Twist <k = 0.5> (x) {WEIGHTED}", shapes, functions=body), drawn(shapes, -1, 1))


def test_a_function_may_ask_for_derivatives_of_its_own() -> None:
    body = FUNCTION + (
        'Slope (a) => (b) { s = Sin(a) c = Mul(s, a) b = ai.onnx.preview.training.Gradient <xs = ["a"], y = "c"> (a) }'
    )
    shapes: Shapes = {"x": (2, 3)}
    check(text("y = f.Slope(x)", shapes, functions=body), drawn(shapes, -1, 1))


def test_the_derivative_is_split_over_providers_with_the_same_bits() -> None:
    shapes: Shapes = {"x": (4, 3), "w": (3, 5), "b": (5,)}
    nodes = "m = MatMul(x, w) p = Add(m, b) s = Softmax(p) l = Log(s) y = ReduceMean(l)"
    feeds = drawn(shapes, -1, 1)
    with executor(text(nodes, shapes)) as whole:
        expected = whole.run(feeds)
    with executor(text(nodes, shapes), [("sim:0", {"except_ops": ["Softmax", "Mul"]}), "cpu"]) as split:
        for name, value in split.run(feeds).items():
            assert value.tobytes() == expected[name].tobytes()


REFUSED = {
    "no derivative": (
        "p = ReduceProd<keepdims = 0>(x) y = Identity(p)",
        "has no derivative here.*op ReduceProd",
    ),
    "an unknown operator": ("y = f.Nobody(x)", "has no derivative here.*op f::Nobody"),
    "control flow": (
        "c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (p) { p = Sin(x) },"
        " else_branch = e () => (q) { q = Identity(x) }>",
        "has no derivative here.*op If",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_derivative_is_named(case: str) -> None:
    nodes, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        load_model(onnx.parser.parse_model(text(nodes, {"x": (2,)})))


def test_a_gradient_that_names_nothing_is_refused() -> None:
    def model(**attributes: Any) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(text("y = Sin(x)", {"x": (2,)}))
        request = proto.graph.node[-1]
        kept = [a for a in request.attribute if a.name not in attributes]
        del request.attribute[:]
        request.attribute.extend(kept)
        request.attribute.extend(
            onnx.helper.make_attribute(k, v) for k, v in attributes.items() if v is not None
        )
        return proto

    for attributes, message in (
        ({"y": "nothing"}, "names a tensor that does not exist: 'nothing'"),
        ({"xs": ["nobody"]}, "names a tensor that does not exist: 'nobody'"),
        ({"zs": ["x"]}, "1 inputs are given for 2 tensors in xs and zs"),
        ({"y": None}, "attribute 'y'"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(model(**attributes))


def test_there_is_no_derivative_by_integers() -> None:
    model = (
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
        "g (int64[2] x) => (dx) { c = Cast<to = 11>(x) y = Sin(c)"
        + f' dx = {GRADIENT} <xs = ["x"], y = "y"> (x) }}'
    )
    with pytest.raises(ModelError, match="no derivative by 'x', which is no tensor of floats"):
        load_model(onnx.parser.parse_model(model))


STEPS = [
    "{y} = Sin({a})", "{y} = Mul({a}, {b})", "{y} = Add({a}, {b})", "{y} = Sub({a}, {b})", "{y} = Tanh({a})",
    "{y} = MatMul({a}, {b})", "{y} = Transpose({a})", "{y} = Softmax<axis = 0>({a})",
    "{y}_0 = ReduceMean({a}, ax) {y} = Mul({y}_0, {b})",
    "{y}_0 = Concat<axis = 0>({a}, {b}) {y} = Slice({y}_0, lo, hi, ax0)", "{y}_0 = Exp({a}) {y} = Div({b}, {y}_0)",
    "{y} = Gather<axis = 1>({a}, at)", "{y} = Max({a}, {b})",
]  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=7),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_random_graphs(steps: list[tuple[str, int, int]], static: bool, seed: int) -> None:
    shapes: Shapes = {"x": (2, 2), "w": (2, 2)}
    values = ["x", "w"]
    nodes = ints("ax", 1) + ints("lo", 1) + ints("hi", 3) + ints("ax0", 0) + ints("at", 1, 1)
    for k, (step, a, b) in enumerate(steps):
        nodes += step.format(y=f"v{k}", a=values[a % len(values)], b=values[b % len(values)]) + " "
        values.append(f"v{k}")
    nodes += f"y = Sum({', '.join(values[2:])})"
    check(text(nodes, shapes, static=static), drawn(shapes, 0.2, 0.9, seed))
