"""Operators of a user's own: registered once, planned like any other, prepared once per child, run where they say."""

from hetero.extensions.contract import Extension, ExtensionContext
from hetero.extensions.registry import find, load_modules, register, unregister

__all__ = ["Extension", "ExtensionContext", "find", "load_modules", "register", "unregister"]
