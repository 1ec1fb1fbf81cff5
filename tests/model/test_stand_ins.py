"""Types of operators that onnx has no schema of, and of what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero.backend
from hetero import kernels
from hetero.kernels.base import registered
from hetero.model import load_model, value_type
from hetero.model.stand_ins import RULES
from tests.model.build import graph, info, model, node

MS = {"com.microsoft": 1}
HALF = TensorProto.FLOAT16


def contrib(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain="com.microsoft", **attributes)


def open_outputs(*names: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_empty_tensor_value_info(name) for name in names]


def types(proto: onnx.ModelProto) -> dict[str, str]:
    loaded = load_model(proto)
    return {v.name: str(value_type(v)) for n in loaded.ir.graph.all_nodes() for v in n.outputs if v.name}


def test_types_flow_through_operators_that_onnx_does_not_know() -> None:
    proto = model(
        [
            contrib("FusedConv", ["x", "w"], ["a"], activation="Relu"),
            contrib("QuickGelu", ["a"], ["b"]),
            node("Relu", ["b"], ["c"]),
            contrib("ExpandDims", ["c", "axis"], ["d"]),
            contrib("MurmurHash3", ["c"], ["e"]),
            contrib("FusedMatMul", ["c", "c"], ["f"], transB=1),
            contrib("FusedMatMul", ["c", "m"], ["y"], alpha=2.0),
        ],
        [info("x", ("n", 3, 8, 8), HALF)],
        open_outputs("d", "e", "f", "y"),
        domains=MS,
        w=np.zeros((4, 3, 1, 1), np.float16),
        m=np.zeros((8, 5), np.float16),
        axis=np.array(0, np.int32),
    )
    assert types(proto) == {
        "a": "float16[n, 4, 8, 8]",
        "b": "float16[n, 4, 8, 8]",
        "c": "float16[n, 4, 8, 8]",
        "d": "float16[?]",
        "e": "uint32[n, 4, 8, 8]",
        "f": "float16[?]",
        "y": "float16[n, 4, 8, 5]",
    }


def test_operators_that_became_standard_later_are_typed_in_older_opsets() -> None:
    proto = model(
        [node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=-1)],
        [info("x", ("n", 4), HALF)],
        open_outputs("y", "mean"),
        opset=12,
        s=np.ones(4, np.float16),
    )
    assert types(proto) == {"y": "float16[n, 4]", "mean": "float[?]"}


def test_omitted_operands_and_outputs_are_left_out() -> None:
    proto = model(
        [
            contrib("SkipLayerNormalization", ["x", "x", "s"], ["a", "", "", "sum"]),
            contrib("QuantizeLinear", ["sum", "scale"], ["q"]),
            node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
        ],
        [info("x", (2, 3, 4))],
        domains=MS,
        s=np.ones(4, np.float32),
        scale=np.float32(0.1),
    )
    assert types(proto) == {"a": "float[2, 3, 4]", "sum": "float[2, 3, 4]", "q": "uint8[?]", "y": "float[?]"}


def test_a_function_of_the_model_is_not_replaced_by_what_has_its_name() -> None:
    body = helper.make_function(
        "com.microsoft", "Gelu", ["X"], ["Y"], [node("Cast", ["X"], ["Y"], to=TensorProto.INT32)],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    proto = model([contrib("Gelu", ["x"], ["y"])], outputs=open_outputs("y"), domains=MS, functions=[body])
    assert types(proto)["y"] == "int32[n]"


def test_a_model_without_the_standard_domain_is_typed() -> None:
    proto = model([contrib("Gelu", ["x"], ["y"])], outputs=open_outputs("y"), domains=MS)
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("com.microsoft", 1)])
    assert types(proto) == {"y": "float[n]"}


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_of_no_iterations_knows_the_type_of_what_it_would_have_stacked(trips: int) -> None:
    body = graph(
        [
            node("Identity", ["go"], ["again"]),
            contrib("Gelu", ["x"], ["g"]),
            contrib("QuickGelu", ["g"], ["h"]),
        ],
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL)],
        [info("again", (), TensorProto.BOOL), *open_outputs("h")],
    )
    proto = model(
        [node("Loop", ["m", "yes"], ["y"], body=body)],
        [info("m", (), TensorProto.INT64), info("x", (3,), HALF)],
        open_outputs("y"),
        domains=MS,
        yes=np.array(True),
    )
    (y,) = hetero.backend.run_model(proto, [np.array(trips), np.ones(3, np.float16)])
    assert (y.shape, y.dtype) == ((trips, 3), np.dtype(np.float16))


def test_every_kernel_of_microsofts_domain_has_its_types() -> None:
    kernels.load_all()
    served = {(d.domain, d.op_type) for d in registered() if d.domain == "com.microsoft"}
    assert served - RULES.keys() == set()
