"""The ONNX runtime for models and pipelines that no single device can or should run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero import backend
    from hetero.errors import HeteroError
    from hetero.executor import HeterogeneousExecutor, plan
    from hetero.options import RuntimeOptions
    from hetero.types import SequenceValue

__all__ = ["HeteroError", "HeterogeneousExecutor", "RuntimeOptions", "SequenceValue", "backend", "plan"]

# Loaded at first use: an actor or the command line needs only some of it, and onnx alone takes half a second.
_HOME = {
    "HeteroError": "hetero.errors",
    "HeterogeneousExecutor": "hetero.executor",
    "RuntimeOptions": "hetero.options",
    "SequenceValue": "hetero.types",
    "plan": "hetero.executor",
}


def __getattr__(name: str) -> Any:
    if name == "backend":
        return import_module("hetero.backend")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hetero' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
