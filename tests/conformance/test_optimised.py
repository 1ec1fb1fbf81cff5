"""Models that onnxruntime optimised and saved, quantised ones among them: they run, and give what it gives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime import quantization

import hetero.backend
from tests.conformance.networks import NETWORKS, Network
from tests.conformance.suite import DEVICES, same_bits

LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
FUSED = {
    "cnn": {"FusedConv", "FusedGemm", "QuickGelu"},
    "encoder": {"BiasGelu", "SkipLayerNormalization", "FusedMatMul"},
    "encoder_tanh": {"SkipLayerNormalization", "FusedMatMul"},
    "encoder_sigmoid": {"QuickGelu", "SkipLayerNormalization"},
    "gated": {"SimplifiedLayerNormalization", "FusedMatMul", "QuickGelu"},
    "lstm": set(),
}
"""What level extended makes of a network, as far as it must: otherwise the test would show nothing."""
STEPS_OFF = 2
"""How many steps of the output's quantisation a result may be off: where a sum falls on a rounding boundary, the order
of its terms decides."""


def session(model: onnx.ModelProto, level: str, saved: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def optimised(model: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """`model` as onnxruntime saves it after optimising at `level`."""
    session(model, level, folder / "optimised.onnx")
    return onnx.load(folder / "optimised.onnx")


def quantised(network: Network, kind: str, folder: Path) -> onnx.ModelProto:
    """The network with int8 weights: `dynamic`, or `qdq` or `qoperator` calibrated on its own inputs."""
    model, feeds = network
    source, target = folder / "source.onnx", folder / "quantised.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), source)

    class Once(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [feeds]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    logging.disable(logging.WARNING)  # it recommends preprocessing
    try:
        # Seven bits: without VNNI onnxruntime adds pairs of products in 16.
        if kind == "dynamic":
            quantization.quantize_dynamic(source, target, reduce_range=True)
        else:
            form = quantization.QuantFormat.QDQ if kind == "qdq" else quantization.QuantFormat.QOperator
            quantization.quantize_static(source, target, Once(), quant_format=form, reduce_range=True)
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(target)


@pytest.mark.parametrize("level", ["basic", "extended"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_optimised_model_gives_what_the_model_gives(name: str, level: str, tmp_path: Path) -> None:
    model, feeds = NETWORKS[name]()
    expected = session(model, "none").run(None, feeds)
    changed = optimised(model, level, tmp_path)
    if level == "extended":
        assert FUSED[name] <= {node.op_type for node in changed.graph.node}
    found = [hetero.backend.run_model(changed, feeds, device) for device in DEVICES]
    assert same_bits(found[0], found[1])
    for got, wanted in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", ["none", "extended"])
@pytest.mark.parametrize("kind", ["dynamic", "qdq", "qoperator"])
@pytest.mark.parametrize("name", ["cnn", "encoder_tanh", "lstm"])
def test_a_quantised_model_gives_what_onnxruntime_gives(
    name: str, kind: str, level: str, tmp_path: Path
) -> None:
    network = NETWORKS[name]()
    model = quantised(network, kind, tmp_path)
    if level != "none":
        model = optimised(model, level, tmp_path)
    expected = session(model, "none").run(None, network[1])
    for got, wanted in zip(hetero.backend.run_model(model, network[1]), expected, strict=True):
        step = (wanted.max() - wanted.min()) / 255
        np.testing.assert_allclose(got, wanted, rtol=0, atol=STEPS_OFF * step)
