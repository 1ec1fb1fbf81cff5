"""Dimension expressions and the guards that hold concrete shapes to declared ones."""

from hetero.shapes.expression import evaluate, is_symbol, symbols
from hetero.shapes.guards import GuardChecker, check, guards_for

__all__ = ["GuardChecker", "check", "evaluate", "guards_for", "is_symbol", "symbols"]
