"""Which operator has which derivative: by name, from output gradients to input gradients."""

from __future__ import annotations

from hetero.model.gradient import (
    rules_elementwise,
    rules_layout,
    rules_linear,
    rules_norm,
    rules_reduce,
    rules_window,
)
from hetero.model.gradient.rule import RULES

__all__ = ["BLOCKED", "RULES"]

BLOCKED = frozenset(
    {"ArgMax", "ArgMin", "Ceil", "Equal", "EyeLike", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN",
     "Less", "LessOrEqual", "NonZero", "Round", "Shape", "Sign", "Size"}
)  # fmt: skip
"""Operators of floats through which nothing flows: their results are integers, conditions, or constant in between."""

_LOADED = (rules_elementwise, rules_layout, rules_linear, rules_norm, rules_reduce, rules_window)
