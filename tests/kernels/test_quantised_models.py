"""Quantised operators in whole models: the same bits on the CPU, on a simulated device and split over both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import hetero
from tests.kernels.quantities import Quantities

Q = Quantities(37)
DOMAIN = "com.microsoft"


class Model:
    """Nodes in a row, each fed by the one before; all other operands are weights."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"

    def then(self, op_type: str, operands: list[Any], *, domain: str = DOMAIN, **attributes: Any) -> Model:
        """`operands`: arrays, None where one is left out, and ... where the value before goes in."""
        names = []
        for k, operand in enumerate(operands):
            name = "" if operand is None else self.last if operand is ... else f"n{len(self.nodes)}_{k}"
            if name and operand is not ...:
                self.weights.append(numpy_helper.from_array(operand, name))
            names.append(name)
        self.last = f"y{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, names, [self.last], name=self.last, domain=domain, **attributes)
        )
        return self

    def proto(self) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        given = helper.make_tensor_value_info(
            "x", helper.np_dtype_to_tensor_dtype(self.x.dtype), self.x.shape
        )
        made = helper.make_empty_tensor_value_info(self.last)
        graph = helper.make_graph(self.nodes, "quantised", [given], [made], self.weights)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def image_model() -> Model:
    """Quantised convolution, arithmetic and pools."""
    u8 = np.uint8
    model = Model(Q.normal(2, 4, 9, 9))
    pairs = [Q.pair(u8) for _ in range(8)]
    model.then("QuantizeLinear", [..., *pairs[0]], domain="")
    kernels, zero = Q.integers(np.int8, 6, 4, 3, 3), np.zeros(6, np.int8)
    conv = [..., *pairs[0], kernels, Q.scale(6, high=0.02), zero, *pairs[1]]
    model.then("QLinearConv", conv, domain="", pads=[1, 1, 1, 1])
    model.then("QLinearLeakyRelu", [..., *pairs[1], *pairs[2]], alpha=0.1)
    model.then("QLinearAdd", [..., *pairs[2], Q.integers(u8, 1, 6, 1, 1), *pairs[3], *pairs[4]])
    model.then("QLinearAveragePool", [..., *pairs[4], *pairs[5]], kernel_shape=[2, 2])
    model.then("QLinearGlobalAveragePool", [..., *pairs[5], *pairs[6]])
    model.then("QLinearSigmoid", [..., *pairs[6], *pairs[7]])
    return model.then("DequantizeLinear", [..., *pairs[7]], domain="")


def text_model() -> Model:
    """A packed embedding, packed matrices, experts, and products of rounded activations."""
    model = Model(Q.rng.integers(0, 9, (2, 5)))
    table = [Q.integers(np.uint8, 9, 16), ..., Q.scale(9, 2)]
    model.then("GatherBlockQuantized", table, block_size=16)
    packed = [..., Q.integers(np.uint8, 64, 2, 8), Q.scale(64, 2)]
    model.then("MatMulNBits", packed, K=32, N=64, bits=4, block_size=16)
    model.then("DynamicQuantizeMatMul", [..., Q.integers(np.int8, 64, 32), Q.scale(32), None, Q.scale(32)])
    router = np.tile(Q.normal(1, 4), (10, 1))
    experts = [
        ..., router, Q.integers(np.uint8, 4, 48, 16), Q.scale(4, 48), None, Q.integers(np.uint8, 4, 32, 24),
        Q.scale(4, 32),
    ]  # fmt: skip
    return model.then("QMoE", experts, k=2, activation_type="silu", expert_weight_bits=4)


@pytest.mark.parametrize("make", [image_model, text_model])
def test_the_bits_hang_neither_on_the_device_nor_on_the_split(make: Any) -> None:
    model = make()
    proto = model.proto()
    names = [node.op_type for node in proto.graph.node]
    placements: list[list[Any]] = [["cpu"], ["sim:0", "cpu"]]
    placements += [[("sim:0", {"except_ops": [op, f"{DOMAIN}::{op}"]}), "cpu"] for op in names[1::2]]
    found = []
    for providers in placements:
        with hetero.HeterogeneousExecutor(proto, providers=providers, children="inline") as executor:
            before = model.x.copy()
            runs = [next(iter(executor.run({"x": model.x}).values())) for _ in range(3)]
            assert (model.x == before).all()
            assert len({r.tobytes() for r in runs}) == 1
            found.append(runs[0])
    assert np.isfinite(found[0]).all()
    assert len({r.tobytes() for r in found}) == 1


@pytest.mark.parametrize("make", [image_model, text_model])
def test_a_device_takes_quantised_operators(make: Any) -> None:
    plan = hetero.plan(make().proto(), providers=["sim:0", "cpu"], strict=True)
    assert len(plan.partitions) == 1
