"""How far a program may nest and grow; the same bounds hold when lowering, validating and decoding."""

from __future__ import annotations

MAX_DEPTH = 32
"""Bodies within bodies. Deeper ones would exhaust the interpreter's stack before they ran."""
MAX_TYPE_DEPTH = 8
"""Sequences and optionals around one tensor type; ONNX itself knows optional(seq(tensor))."""
MAX_VERSION = 2**31 - 1
"""Opset versions cross into onnx as a C int."""
