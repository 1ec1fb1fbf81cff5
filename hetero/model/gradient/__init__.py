"""Gradient: the operator that asks for derivatives of the graph around it becomes the graph that computes them."""

from hetero.model.gradient.expand import expand_gradients
from hetero.model.gradient.resolve import resolve_gradients

__all__ = ["expand_gradients", "resolve_gradients"]
