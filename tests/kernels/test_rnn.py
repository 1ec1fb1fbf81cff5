"""RNN, GRU and LSTM against onnxruntime over random combinations of operands, directions and activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, compile_op, reference, run_op

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RNG = np.random.default_rng(41)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return (RNG.standard_normal(shape) * 0.7).astype(dtype)


def operands(
    op_type: str, steps: int, batch: int, inputs: int, hidden: int, directions: int = 1
) -> list[Any]:
    """X, W, R and every optional operand."""
    wide = GATES[op_type] * hidden
    found = [
        normal(steps, batch, inputs),
        normal(directions, wide, inputs),
        normal(directions, wide, hidden),
        normal(directions, 2 * wide),
        RNG.integers(1, steps + 1, batch).astype(np.int32),
        normal(directions, batch, hidden),
    ]
    if op_type == "LSTM":
        found += [normal(directions, batch, hidden), normal(directions, 3 * hidden)]
    return found


ACTIVATIONS = {
    "Tanh": 0, "Sigmoid": 0, "Relu": 0, "Softsign": 0, "Softplus": 0, "LeakyRelu": 1, "ThresholdedRelu": 1,
    "Elu": 1, "HardSigmoid": 2, "ScaledTanh": 2, "Affine": 2,
}  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(sorted(GATES)), st.sampled_from(["forward", "reverse", "bidirectional"]))
def test_recurrences_agree_with_onnxruntime(data: st.DataObject, op_type: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = (data.draw(st.integers(1, n)) for n in (5, 3, 4, 4))
    inputs = operands(op_type, steps, batch, width, hidden, directions)
    dropped = data.draw(st.sets(st.integers(3, len(inputs) - 1)))
    inputs = [None if i in dropped else x for i, x in enumerate(inputs)]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if data.draw(st.booleans()):
        attributes["clip"] = 0.5
    if op_type == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if op_type == "LSTM" and data.draw(st.booleans()):
        attributes["input_forget"] = 1
    if data.draw(st.booleans()):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op_type] * directions
        names = data.draw(st.lists(st.sampled_from(sorted(ACTIVATIONS)), min_size=count, max_size=count))
        attributes["activations"] = names
        alphas, betas = (sum(ACTIVATIONS[n] >= k for n in names) for k in (1, 2))
        if alphas:
            attributes["activation_alpha"] = [0.3 + 0.05 * k for k in range(alphas)]
        if betas:
            attributes["activation_beta"] = [0.4 - 0.03 * k for k in range(betas)]
    n_outputs = 3 if op_type == "LSTM" else 2
    actual = run_op(op_type, inputs, opset=14, n_outputs=n_outputs, **attributes)
    expected = reference(op_type, inputs, opset=14, n_outputs=n_outputs, **attributes)
    if all(np.abs(e).max() < 1e3 for e in expected):  # what grows without bound magnifies the last bit
        assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_versions_floats_and_omitted_outputs(op_type: str) -> None:
    inputs = operands(op_type, 4, 2, 3, 5)
    n_outputs = 3 if op_type == "LSTM" else 2
    whole = run_op(op_type, inputs, opset=7, n_outputs=n_outputs, hidden_size=5)
    assert_close(run_op(op_type, inputs, opset=22, n_outputs=n_outputs, hidden_size=5), whole)
    for omit in range(n_outputs):
        part = run_op(op_type, inputs, opset=14, n_outputs=n_outputs, omit=(omit,), hidden_size=5)
        assert_close(part, [None if i == omit else y for i, y in enumerate(whole)])
    (only,) = run_op(op_type, inputs, opset=14, n_outputs=1, hidden_size=5)
    assert_close([only], whole[:1])
    double = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    wide = run_op(op_type, double, opset=14, n_outputs=n_outputs, hidden_size=5)
    assert_close([y.astype(np.float32) for y in wide], whole, rtol=1e-4, atol=1e-5)
    half = [x.astype(np.float16) if x.dtype == np.float32 else x for x in inputs]
    narrow = run_op(op_type, half, opset=14, n_outputs=n_outputs, hidden_size=5)
    assert narrow[0].dtype == np.float16
    np.testing.assert_allclose(narrow[0], whole[0], atol=2e-2)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", sorted(GATES))
def test_batch_first_is_the_same_transposed(op_type: str, direction: str) -> None:
    inputs = operands(op_type, 4, 3, 2, 5, 2 if direction == "bidirectional" else 1)
    n_outputs = 3 if op_type == "LSTM" else 2
    keywords: dict[str, Any] = {"opset": 14, "n_outputs": n_outputs, "direction": direction, "hidden_size": 5}
    y, *states = run_op(op_type, inputs, **keywords)
    swapped = [
        x.swapaxes(0, 1) if i in (0, 5) or (i == 6 and op_type == "LSTM") else x for i, x in enumerate(inputs)
    ]
    y_first, *states_first = run_op(op_type, swapped, layout=1, **keywords)
    assert_close([y_first], [y.transpose(2, 0, 1, 3)], rtol=1e-5)
    assert_close(states_first, [s.swapaxes(0, 1) for s in states], rtol=1e-5)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_the_twin_agrees_with_compiled_gates(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = operands(op_type, 6, 2, 3, 17)[:4]
    keywords: dict[str, Any] = {"opset": 14, "hidden_size": 17}
    if op_type == "GRU":
        keywords["linear_before_reset"] = 1
    fast = run_op(op_type, inputs, **keywords)
    monkeypatch.setenv("HETERO_JIT", "0")
    assert_close(run_op(op_type, inputs, **keywords), fast, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_no_steps_leave_the_state_as_it_was(op_type: str) -> None:
    x, w, r, b, _, *states = operands(op_type, 1, 2, 3, 4)
    n_outputs = 3 if op_type == "LSTM" else 2
    inputs = [x[:0], w, r, b, None, *states[: n_outputs - 1]]
    y, *last = run_op(op_type, inputs, opset=14, n_outputs=n_outputs, hidden_size=4)
    assert y.shape == (0, 1, 2, 4)
    assert_close(last, states[: n_outputs - 1])


def test_large_gates_do_not_overflow() -> None:
    inputs = [x * 1e4 if x.dtype == np.float32 else x for x in operands("LSTM", 3, 2, 3, 4)[:4]]
    check_op("LSTM", inputs, opset=14, n_outputs=3, hidden_size=4, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "attributes",
    [
        {"direction": "sideways"},
        {"layout": 2},
        {"hidden_size": 5},
        {"direction": "bidirectional"},
        {"activations": ["Tanh"]},
        {"activations": ["Tanh", "Tanh", "Swish"]},
        {"clip": -1.0},
    ],
    ids=str,
)
def test_attributes_that_cannot_be_meant_are_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="node 'node'"):
        compile_op("LSTM", operands("LSTM", 3, 2, 3, 4), opset=14, n_outputs=3, **attributes)


def test_operands_of_other_shapes_and_dtypes_are_refused() -> None:
    inputs = operands("LSTM", 3, 2, 3, 4)
    for i, operand in ((3, "B"), (4, "sequence_lens"), (5, "initial_h"), (6, "initial_c"), (7, "P")):
        wrong = [x[:, :1] if k == i and x.ndim > 1 else x[:1] if k == i else x for k, x in enumerate(inputs)]
        with pytest.raises(KernelError, match=operand):
            compile_op("LSTM", wrong, opset=14, hidden_size=4)
    with pytest.raises(UnsupportedError, match="int32"):
        compile_op("LSTM", [x.astype(np.int32) for x in inputs[:3]], opset=14, hidden_size=4)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize("hidden", [1, 7, 64, 150], ids=["one", "odd", "one loop", "step by step"])
@pytest.mark.parametrize(("op_type", "linear"), [("LSTM", None), ("GRU", 0), ("GRU", 1)])
def test_every_route_agrees_with_onnxruntime(
    op_type: str, linear: int | None, hidden: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
    if linear is not None:
        attributes["linear_before_reset"] = linear
    x, w, r, b, _, *states = operands(op_type, 7, 3, 4, hidden, 2)
    n_outputs = 3 if op_type == "LSTM" else 2
    inputs = [x, w, r / hidden**0.5, b, None, *states[: n_outputs - 1]]
    check_op(op_type, inputs, opset=14, n_outputs=n_outputs, rtol=1e-3, atol=1e-5, **attributes)
    inputs = [*inputs[:3], None, *inputs[4:]]
    check_op(op_type, inputs, opset=14, n_outputs=n_outputs, omit=(0,), rtol=1e-3, atol=1e-5, **attributes)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_constant_and_variable_weights_give_the_same_bits(op_type: str) -> None:
    inputs = operands(op_type, 5, 2, 3, 6)[:4]
    _, compiled = compile_op(op_type, inputs, opset=14, hidden_size=6)
    found = set()
    for writeable in (True, False):
        bound = [x.copy() for x in inputs]
        for x in bound:
            x.flags.writeable = writeable
        y = np.empty((5, 1, 2, 6), np.float32)
        assert compiled.bind is not None
        compiled.bind(bound, [y], np.empty(compiled.workspace_bytes, np.uint8))()
        found.add(y.tobytes())
    assert len(found) == 1
