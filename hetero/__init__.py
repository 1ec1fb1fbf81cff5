"""The ONNX runtime for models and pipelines that no single device can or should run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero import backend
    from hetero.errors import HeteroError
    from hetero.executor import HeterogeneousExecutor, plan
    from hetero.extensions import Extension, ExtensionContext
    from hetero.extensions import register as register_extension
    from hetero.options import RuntimeOptions
    from hetero.types import SequenceValue

__all__ = [
    "Extension",
    "ExtensionContext",
    "HeteroError",
    "HeterogeneousExecutor",
    "RuntimeOptions",
    "SequenceValue",
    "backend",
    "plan",
    "register_extension",
]

# Loaded at first use: an actor or the command line needs only some of it, and onnx alone takes half a second.
_HOME = {
    "Extension": "hetero.extensions:Extension",
    "ExtensionContext": "hetero.extensions:ExtensionContext",
    "HeteroError": "hetero.errors:HeteroError",
    "HeterogeneousExecutor": "hetero.executor:HeterogeneousExecutor",
    "RuntimeOptions": "hetero.options:RuntimeOptions",
    "SequenceValue": "hetero.types:SequenceValue",
    "plan": "hetero.executor:plan",
    "register_extension": "hetero.extensions:register",
}


def __getattr__(name: str) -> Any:
    if name == "backend":
        return import_module("hetero.backend")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hetero' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
