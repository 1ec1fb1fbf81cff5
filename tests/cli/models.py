"""Small model files for the verbs that run them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import parser

OPSETS = '<ir_version: 9, opset_import: ["" : 17]>'


def save(tmp_path: Path, text: str, name: str = "demo") -> Path:
    """Parse `text` (inputs, outputs and body of a graph) and save it; returns the file."""
    file = tmp_path / f"{name}.onnx"
    onnx.save(parser.parse_model(f"{OPSETS} {name} {text}"), file)
    return file


def chain(tmp_path: Path) -> Path:
    """Ten elementwise nodes over float[batch, 4], then a NonZero, whose shape depends on data."""
    nodes = " ".join(f"v{k + 1} = Tanh(v{k})" for k in range(8))
    return save(
        tmp_path,
        f"(float[batch, 4] x) => (float[batch, 4] y, int64[2, k] z) {{ v0 = Neg(x) {nodes} y = Abs(v8) "
        "z = NonZero(y) }",
    )


def products(tmp_path: Path) -> Path:
    """Ten MatMuls, which are not fused, so that a captured segment has as many calls."""
    nodes = " ".join(f"v{k + 1} = MatMul(v{k}, v{k})" for k in range(10))
    return save(tmp_path, f"(float[4, 4] v0) => (float[4, 4] v10) {{ {nodes} }}", "products")
