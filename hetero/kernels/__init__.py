"""Kernels: what each operator computes, once, for any array module; one file per operator family."""

from __future__ import annotations

import functools
import importlib
import pkgutil


@functools.cache
def load_all() -> None:
    """Import every family so that its kernels are registered. Later calls do nothing."""
    for module in pkgutil.iter_modules(__path__):
        if module.name != "__main__":
            importlib.import_module(f"{__name__}.{module.name}")
