"""An inline executor for a model in onnx's text form, and what tests ask of one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import onnx.parser

from hetero import HeterogeneousExecutor, RuntimeOptions

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
MIXED: list[Any] = [("sim:0", {"except_ops": ["Exp"]}), "cpu"]
PROVIDERS: list[list[Any]] = [["cpu"], ["sim:0", "cpu"], MIXED]
NAMES = ["cpu", "device", "mixed"]


def executor(text: str, providers: Sequence[Any] = ("cpu",), **options: Any) -> HeterogeneousExecutor:
    """An executor for "g (inputs) => (outputs) { nodes }"."""
    model = onnx.parser.parse_model(HEAD + text)
    return HeterogeneousExecutor(model, list(providers), children="inline", options=RuntimeOptions(**options))


def held(ex: HeterogeneousExecutor) -> dict[str, tuple[int, int]]:
    """Child name -> (steps whose values it keeps, live bytes of its memory)."""
    gc.collect()
    children = ex.stats()["children"]
    return {name: (c["resident_steps"], c["memory"]["live_bytes"]) for name, c in children.items()}
