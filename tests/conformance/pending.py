"""What of onnx's backend suite does not pass yet, by kind; the one place for it."""

from __future__ import annotations

PENDING: dict[str, tuple[str, ...]] = {
    "Gradient differentiates the graph around it, which no provider does": (
        "test_gradient_of_add",
        "test_gradient_of_add_and_mul",
    ),
}
"""Reason -> cases. Each is run, and must fail: whoever makes one pass takes it out of here."""
