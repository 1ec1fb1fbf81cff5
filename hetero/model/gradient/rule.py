"""The table of derivatives, and how a rule enters it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from hetero.model.gradient.emit import Emitter

Grads: TypeAlias = "Sequence[ir.Value | None]"
Rule: TypeAlias = Callable[[Emitter, ir.Node, Grads], Grads]
"""(emitter, node, gradients of its outputs, None where nothing flows) -> gradients of its inputs, in order, None where
nothing flows; fewer than there are inputs where nothing flows to the rest. At least one output has a gradient."""

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """The decorated function gives the derivatives of these operators of the ONNX domain."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def first(grads: Grads) -> ir.Value:
    """The gradient of an operator's one output."""
    assert grads[0] is not None
    return grads[0]
