"""Small models by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def info(
    name: str, shape: Sequence[int | str | None] | None = ("n",), dtype: int = FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    **arrays: np.ndarray[Any, Any],
) -> onnx.GraphProto:
    weights = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    return helper.make_graph(nodes, "graph", inputs, outputs, initializer=weights)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (info("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (info("y", None),),
    *,
    opset: int = 21,
    domains: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 10,
    **arrays: np.ndarray[Any, Any],
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(
        graph(nodes, inputs, outputs, **arrays),
        opset_imports=opsets,
        functions=list(functions),
        ir_version=ir_version,
    )


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def external(name: str, shape: Sequence[int], dtype: int = FLOAT, **entries: object) -> onnx.TensorProto:
    tensor = TensorProto(name=name, dims=list(shape), data_type=dtype, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def with_branches(then: onnx.GraphProto, otherwise: onnx.GraphProto, **more: Any) -> onnx.ModelProto:
    """A model whose one node is an If on `c`, with input `x` for the branches to capture."""
    return model(
        [node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=otherwise)],
        [info("c", (), TensorProto.BOOL), info("x")],
        **more,
    )
