"""Dropout passes its input on, and draws a mask in training: the same on every device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero import HeterogeneousExecutor
from hetero.errors import KernelError
from hetero.kernels.randomness import drawing
from tests.kernels.harness import assert_close, compile_op, run_op

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONES = np.ones((100, 200), np.float32)
TRUE = np.array(True)


def ratio_of(ratio: float) -> Any:
    return np.array(ratio, np.float32)


def train(inputs: list[Any], step: int = 0, opset: int = 13, **keywords: Any) -> Any:
    """Both outputs of one training run of a kernel compiled for it."""
    _, compiled = compile_op("Dropout", inputs, opset=opset, n_outputs=2, **keywords)
    assert compiled.run is not None
    with drawing(0, step):
        return compiled.run(inputs)


def trainer(ratio: float | None, weight: Any = None, mode: Any = None) -> bytes:
    """A model: t = Relu(x); y, mask = Dropout(t or `weight`); z = Relu(y). What is None is fed."""
    t = "t" if weight is None else "w"
    nodes = [
        helper.make_node("Relu", ["x"], ["t"]),
        helper.make_node("Dropout", [t, "ratio", "training"], ["y", "mask"], name="drop"),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "trainer",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16]),
            *([helper.make_tensor_value_info("ratio", TensorProto.FLOAT, [])] if ratio is None else []),
            *([helper.make_tensor_value_info("training", TensorProto.BOOL, [])] if mode is None else []),
        ],
        [
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [8, 16]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, [8, 16]),
        ],
        [
            *([] if ratio is None else [numpy_helper.from_array(ratio_of(ratio), "ratio")]),
            *([] if weight is None else [numpy_helper.from_array(weight, "w")]),
            *([] if mode is None else [numpy_helper.from_array(mode, "training")]),
        ],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10
    )
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_inference_is_a_view_and_the_mask_keeps_everything(opset: int) -> None:
    assert_close(run_op("Dropout", [X], opset=opset), [X])
    _, compiled = compile_op("Dropout", [X], opset=opset)
    assert compiled.view is not None
    mask = np.ones((2, 3), bool if opset >= 10 else np.float32)
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2), [X, mask])
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2, omit=[0]), [None, mask])
    assert_close(run_op("Dropout", [X], opset=opset, n_outputs=2, omit=[1]), [X, None])


@pytest.mark.parametrize(("ratio", "training"), [(0.5, False), (0.0, True), (None, False)])
def test_no_training_and_no_ratio_change_nothing(ratio: Any, training: bool) -> None:
    inputs = [X, None if ratio is None else ratio_of(ratio), np.array(training)]
    assert_close(run_op("Dropout", inputs, opset=13), [X])
    assert_close(run_op("Dropout", inputs, opset=13, n_outputs=2), [X, np.ones((2, 3), bool)])


@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("ratio", [None, 0.1, 0.75])
def test_training_drops_by_the_ratio_and_scales_what_it_keeps(ratio: float | None, opset: int) -> None:
    share = 0.5 if ratio is None else ratio
    y, mask = train([ONES, None if ratio is None else ratio_of(ratio), TRUE], opset=opset)
    assert (y.dtype, mask.dtype) == (np.float32, np.bool_)
    assert abs(mask.mean() - (1 - share)) < 0.02
    assert_close([y], [np.where(mask, np.float32(1 / (1 - share)), np.float32(0))])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_training_keeps_the_dtype_and_drops_the_same_elements(dtype: Any) -> None:
    y, mask = train([ONES.astype(dtype), ratio_of(0.5), TRUE], opset=22)
    assert y.dtype == dtype
    assert (y == mask * np.float32(2)).all()
    assert (mask == train([ONES, ratio_of(0.5), TRUE])[1]).all()


def test_outputs_left_out_in_training_are_not_made() -> None:
    inputs = [X, ratio_of(0.5), TRUE]
    y, mask = train(inputs)
    with drawing(0, 0):
        assert_close(compile_op("Dropout", inputs, opset=13)[1].run(inputs), [y])  # type: ignore[misc]
    assert_close(train(inputs, omit=[0]), [None, mask])
    assert_close(train(inputs, omit=[1]), [y, None])


def test_a_step_repeats_its_mask_and_steps_seeds_and_calls_differ() -> None:
    inputs = [ONES, ratio_of(0.5), TRUE]
    first = train(inputs)[1].tolist()
    assert train(inputs)[1].tolist() == first
    assert train(inputs, seed=0)[1].tolist() == first
    assert train(inputs, seed=7)[1].tolist() != first
    assert train(inputs, step=1)[1].tolist() != first
    _, compiled = compile_op("Dropout", inputs, opset=13, n_outputs=2)
    assert compiled.run is not None
    with drawing(0, 0):  # As in a loop body, where the ratio may differ too.
        assert compiled.run(inputs)[1].tolist() == first
        assert compiled.run(inputs)[1].tolist() != first


def test_a_dropped_infinity_is_no_number_and_warns_of_nothing() -> None:
    y, mask = train([ONES * np.inf, ratio_of(0.5), TRUE])
    assert np.isnan(y[~mask]).all()
    assert np.isinf(y[mask]).all()


@pytest.mark.parametrize("ratio", [-0.1, 1.0, np.nan])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(KernelError, match=r"outside \[0, 1\)"):
        train([X, ratio_of(ratio), TRUE])
    with pytest.raises(KernelError, match="one element"):
        train([X, np.zeros(2, np.float32), TRUE])


@pytest.mark.parametrize("ratio", [0.5, None], ids=["ratio is a weight", "ratio is fed"])
def test_whole_and_split_models_drop_the_same_in_each_step(ratio: float | None) -> None:
    model = trainer(ratio)
    feeds = {"x": np.ones((8, 16), np.float32)} | ({} if ratio is not None else {"ratio": ratio_of(0.5)})
    placements: list[list[Any]] = [
        ["cpu"],
        ["sim:0"],
        [("sim:0", {"except_ops": ["Relu"]}), "cpu"],
        [("sim:0", {"except_ops": ["Dropout"]}), "cpu"],
    ]
    runs: list[Any] = []
    for placement in placements:
        with HeterogeneousExecutor(model, placement, children="inline") as executor:
            found = []
            for training in (True, True, False, True):
                out = executor.run(feeds | {"training": np.array(training)})
                assert_close([out["z"]], [out["mask"] * np.float32(2 if training else 1)])
                found.append(np.asarray(out["mask"]).tolist())
            runs.append(found)
    assert runs[1:] == runs[:1] * 3
    first, second, inference, fourth = runs[0]
    assert np.array(inference).all()
    assert first != second
    assert fourth not in (first, second)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_a_weight_is_drawn_anew_in_training_and_at_inference_is_a_weight(training: bool) -> None:
    weight = np.arange(1, 129, dtype=np.float32).reshape(8, 16)
    model = trainer(0.5, weight, np.array(training))
    masks = []
    with HeterogeneousExecutor(model, ["cpu"], children="inline") as executor:
        for _ in range(3):
            out = executor.run({"x": ONES[:8, :16]})
            assert_close([out["z"]], [weight * out["mask"] * np.float32(2 if training else 1)])
            masks.append(np.asarray(out["mask"]).tolist())
    assert (masks[0] != masks[1] != masks[2]) == training
