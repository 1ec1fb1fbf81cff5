"""DynamicQuantizeLSTM against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.quantized import by_depth, rounded_product
from hetero.types import TensorSpec
from tests.kernels.harness import assert_close, compile_op, node_model, run_op
from tests.kernels.quantities import Quantities

Q = Quantities(43)
RNG = Q.rng
CONSTANT = (1, 2, 3, 7, 8, 9, 10, 11)
"""onnxruntime takes these operands only as initializers."""


def operands(
    directions: int,
    per_column: bool,
    steps: int = 5,
    inputs: int = 6,
    hidden: int = 7,
    batch: int = 1,
    lengths: list[int] | None = None,
) -> list[Any]:
    def normal(*shape: int) -> Any:
        return RNG.standard_normal(shape).astype(np.float32)

    def weights(rows: int) -> Any:
        return Q.integers(np.int8, directions, rows, 4 * hidden)

    shape = (directions, 4 * hidden) if per_column else (directions,)
    scales = [(RNG.random(shape) * 0.01 + 0.001).astype(np.float32) for _ in range(2)]
    zeros = np.zeros(shape, np.int8)
    states = [normal(directions, batch, hidden) for _ in range(2)]
    return [
        normal(steps, batch, inputs), weights(inputs), weights(hidden), normal(directions, 8 * hidden),
        None if lengths is None else np.array(lengths, np.int32), *states,
        normal(directions, 3 * hidden), scales[0], zeros, scales[1], zeros,
    ]  # fmt: skip


def onnxruntime_lstm(inputs: list[Any], **attributes: Any) -> Any:
    """With a thread per sequence: how it rounds the states of a batch depends on its threads."""
    model = node_model(
        "DynamicQuantizeLSTM", inputs, opset=1, domain="com.microsoft", n_outputs=3, **attributes
    )
    names = {f"i{k}" for k in CONSTANT if inputs[k] is not None}
    model.graph.initializer.extend(numpy_helper.from_array(inputs[int(n[1:])], n) for n in sorted(names))
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    options = ort.SessionOptions()
    options.intra_op_num_threads = inputs[0].shape[1]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: inputs[int(i.name[1:])] for i in kept})


@pytest.mark.parametrize("per_column", [False, True], ids=["one scale", "scale per column"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_dynamic_quantize_lstm_agrees_with_onnxruntime(direction: str, per_column: bool) -> None:
    inputs = operands(2 if direction == "bidirectional" else 1, per_column)
    for dropped in ((), (3, 7), (5, 6)):
        some = [None if i in dropped else x for i, x in enumerate(inputs)]
        attributes: dict[str, Any] = {"direction": direction, "hidden_size": 7}
        actual = run_op(
            "DynamicQuantizeLSTM", some, opset=1, domain="com.microsoft", n_outputs=3, **attributes
        )
        assert_close(actual, onnxruntime_lstm(some, **attributes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("steps", "lengths", "batch", "hidden"),
    [
        (1, None, 2, 7),
        (6, None, 2, 7),
        (4, None, 3, 7),
        (7, None, 3, 260),
        (5, [3], 1, 7),
        (6, [2, 4], 2, 7),
        (5, [5, 1, 3], 3, 7),
    ],
)
def test_a_batch_agrees_with_onnxruntime_that_has_a_thread_per_sequence(
    steps: int, lengths: list[int] | None, batch: int, hidden: int, direction: str
) -> None:
    inputs = operands(2 if direction == "bidirectional" else 1, False, steps, 6, hidden, batch, lengths)
    inputs[8], inputs[10] = (s * 0 + np.float32(0.04 / hidden) for s in (inputs[8], inputs[10]))
    if lengths is not None:
        inputs[0][max(lengths) :] *= 9  # What no sequence reads has no part in the input's range.
    inputs[5][:, 0] *= 4  # The states' ranges differ.
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    actual = run_op("DynamicQuantizeLSTM", inputs, opset=1, domain="com.microsoft", n_outputs=3, **attributes)
    assert_close(actual, onnxruntime_lstm(inputs, **attributes), rtol=1e-4, atol=2e-4)


def test_what_a_sequence_gives_does_not_depend_on_the_states_of_others() -> None:
    inputs = operands(1, False, batch=3)
    inputs[0][0, :, :2] = [-5, 5]  # The input has one range for the batch: the same for each alone.
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", "n_outputs": 3, "hidden_size": 7}
    inputs[5][:, 1] *= 50
    whole = run_op("DynamicQuantizeLSTM", inputs, **keywords)
    for b in range(3):
        alone = [x[:, b : b + 1] if i in (0, 5, 6) else x for i, x in enumerate(inputs)]
        y, h, c = run_op("DynamicQuantizeLSTM", alone, **keywords)
        assert_close([whole[0][:, :, b : b + 1], whole[1][:, b : b + 1], whole[2][:, b : b + 1]], [y, h, c])


def test_an_empty_batch_and_no_steps_give_empty_outputs_and_the_initial_states() -> None:
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", "n_outputs": 3, "hidden_size": 7}
    y, h, _ = run_op("DynamicQuantizeLSTM", operands(1, False, batch=0, lengths=[]), **keywords)
    assert (y.shape, h.shape) == ((5, 1, 0, 7), (1, 0, 7))
    inputs = operands(1, False, steps=0)
    y, h, c = run_op("DynamicQuantizeLSTM", inputs, **keywords)
    assert y.shape == (0, 1, 1, 7)
    assert_close([h, c], inputs[5:7])


def test_an_input_of_zeros_has_no_scale_and_no_warning() -> None:
    inputs = operands(1, False)
    inputs[0] = inputs[0] * 0
    actual = run_op(
        "DynamicQuantizeLSTM", inputs, opset=1, domain="com.microsoft", n_outputs=3, hidden_size=7
    )
    assert_close(actual, onnxruntime_lstm(inputs, hidden_size=7), rtol=1e-4, atol=1e-4)


def test_other_dtypes_and_shapes_are_refused() -> None:
    inputs = operands(1, False)
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", "n_outputs": 3, "hidden_size": 7}
    with pytest.raises(UnsupportedError, match="float64"):
        compile_op("DynamicQuantizeLSTM", [inputs[0].astype(np.float64), *inputs[1:]], **keywords)
    with pytest.raises(UnsupportedError, match="int32"):
        compile_op("DynamicQuantizeLSTM", [inputs[0], inputs[1].astype(np.int32), *inputs[2:]], **keywords)
    with pytest.raises(KernelError, match="W_scale"):
        compile_op("DynamicQuantizeLSTM", [*inputs[:8], np.ones(3, np.float32), *inputs[9:]], **keywords)


@pytest.mark.parametrize("byte", [np.int8, np.uint8])
@pytest.mark.parametrize("batch", [1, 3, 9], ids=["one", "a range for each", "step by step"])
def test_the_twin_agrees_with_the_compiled_sequence(
    batch: int, byte: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = operands(2, True, batch=batch, hidden=21)
    inputs[7] = None
    for i in (1, 2):
        inputs[i] = (inputs[i].astype(np.int16) + (128 if byte is np.uint8 else 0)).astype(byte)
    for i in (9, 11):
        inputs[i] = RNG.integers(100, 127, inputs[i].shape).astype(byte)
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", "n_outputs": 3, "hidden_size": 21}
    keywords["direction"] = "bidirectional"
    fast = run_op("DynamicQuantizeLSTM", inputs, **keywords)
    monkeypatch.setenv("HETERO_JIT", "0")
    # A state that rounds the other way is a level off: 1/255 of the range.
    assert_close(run_op("DynamicQuantizeLSTM", inputs, **keywords), fast, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("lengths", [None, [5, 2]], ids=["compiled", "step by step"])
def test_constant_and_variable_weights_give_the_same_bits(lengths: list[int] | None) -> None:
    inputs = operands(1, False, batch=2, lengths=lengths)
    keywords: dict[str, Any] = {"opset": 1, "domain": "com.microsoft", "n_outputs": 3, "hidden_size": 7}
    _, compiled = compile_op("DynamicQuantizeLSTM", inputs, **keywords)
    found = set()
    for writeable in (True, False):
        bound = [None if x is None else x.copy() for x in inputs]
        for x in bound:
            if x is not None:
                x.flags.writeable = writeable
        outputs = [np.empty(s.shape, s.dtype) for s in compiled.outputs if isinstance(s, TensorSpec)]
        assert compiled.bind is not None
        call = compiled.bind(bound, outputs, np.empty(compiled.workspace_bytes, np.uint8))
        for _ in range(2):
            call()
            found.add(b"".join(y.tobytes() for y in outputs))
    assert len(found) == 1


def test_a_product_cut_by_depth_is_exact() -> None:
    weights = RNG.integers(-255, 256, (600, 5)).astype(np.float32)
    source = RNG.standard_normal((4, 600)).astype(np.float32)
    expected, target = np.empty((2, 4, 5), np.float32)
    scale = np.float32(0.5)
    rounded_product(np, [weights.astype(np.float64)], scale, True, source, expected)
    rounded_product(np, by_depth(weights), scale, True, source, target)
    assert target.tobytes() == expected.tobytes()
