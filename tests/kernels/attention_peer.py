"""An attention operator of com.microsoft through its kernel and through onnxruntime, which must take the case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper

from hetero.types import onnx_dtype
from tests.kernels.harness import assert_close, node_model, run_op

DOMAIN = "com.microsoft"


def onnxruntime_gives(
    op_type: str, inputs: Sequence[Any], *, n_outputs: int = 1, omit: Sequence[int] = (), **attributes: Any
) -> list[Any]:
    """The operator's outputs from onnxruntime's CPU provider, None for those in `omit`."""
    model = node_model(op_type, inputs, opset=1, domain=DOMAIN, n_outputs=n_outputs, omit=omit, **attributes)
    for output in model.graph.output:  # onnxruntime cannot tell the dtype of scores that are given out
        output.CopyFrom(helper.make_tensor_value_info(output.name, int(onnx_dtype(inputs[0].dtype)), None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {f"i{k}": x for k, x in enumerate(inputs) if x is not None}
    found = iter(session.run(None, feeds))
    return [None if k in omit else next(found) for k in range(n_outputs)]


def check_contrib(
    op_type: str, inputs: Sequence[Any], *, rtol: float = 1e-4, atol: float = 2e-5, **keywords: Any
) -> list[Any]:
    """The kernel against onnxruntime; returns the kernel's outputs."""
    actual = run_op(op_type, inputs, opset=1, domain=DOMAIN, **keywords)
    assert_close(actual, onnxruntime_gives(op_type, inputs, **keywords), rtol=rtol, atol=atol)
    return actual


def softmax(x: Any) -> Any:
    """Along the last axis, in float64."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads_of(x: Any, heads: int) -> Any:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attended(q: Any, k: Any, v: Any, bias: Any = 0.0, scale: float | None = None) -> Any:
    """Attention of (batch, heads, length, size) arrays in float64 -> (batch, queries, heads * size)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / np.sqrt(q.shape[-1])) + bias
    out = softmax(scores) @ v
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)
