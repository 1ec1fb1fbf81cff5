"""One operator in onnxruntime on the host, with operands as initializers and options where a test needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnxruntime as ort
from onnx import helper

from tests.kernels.harness import node_model


def onnxruntime(
    op_type: str,
    inputs: Sequence[Any],
    *,
    domain: str = "com.microsoft",
    opset: int = 1,
    n_outputs: int = 1,
    constant: Sequence[int] = (),
    optimised: bool = False,
    extra: dict[str, Any] | None = None,
    **attributes: Any,
) -> list[Any]:
    """The operator's outputs. Raises whatever onnxruntime does where it does not take the case.

    `constant`: inputs that become initializers, the only form in which it takes int4, float8 and the like. `extra`:
    attributes whose names are parameters here.
    """
    model = node_model(op_type, inputs, opset=opset, domain=domain, n_outputs=n_outputs, **attributes)
    model.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in (extra or {}).items())
    fixed = {f"i{k}": inputs[k] for k in constant if inputs[k] is not None}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in fixed.items())
    fed = [i for i in model.graph.input if i.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(fed)
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, {i.name: inputs[int(i.name[1:])] for i in fed})
    return found
