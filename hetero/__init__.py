"""The ONNX runtime for models and pipelines that no single device can or should run."""

from __future__ import annotations

from hetero.errors import HeteroError
from hetero.executor import HeterogeneousExecutor, plan
from hetero.options import RuntimeOptions
from hetero.types import SequenceValue

__all__ = ["HeteroError", "HeterogeneousExecutor", "RuntimeOptions", "SequenceValue", "plan"]
