"""Dimension expressions, the guards that hold concrete shapes to declared ones, and what operators demand of them."""

from hetero.shapes.expression import evaluate, is_symbol, symbols
from hetero.shapes.guards import GuardChecker
from hetero.shapes.obligations import Obligations, obligations_of

__all__ = ["GuardChecker", "Obligations", "evaluate", "is_symbol", "obligations_of", "symbols"]
