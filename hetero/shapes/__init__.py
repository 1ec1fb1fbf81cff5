"""Dimension expressions and the guards that hold concrete shapes to declared ones."""

from hetero.shapes.expression import evaluate, is_symbol, symbols
from hetero.shapes.guards import GuardChecker, check

__all__ = ["GuardChecker", "check", "evaluate", "is_symbol", "symbols"]
