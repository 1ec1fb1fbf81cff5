"""One ONNX operation with everything that decides its meaning: identity, version, attributes, arity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hetero.types import ValueType

if TYPE_CHECKING:
    from hetero.program.program import Program

AttributeValue: TypeAlias = (
    "int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...]"
    " | npt.NDArray[Any] | ValueType | Program | tuple[Program, ...]"
)
"""Attribute values in Python terms: tensors as host arrays, graphs as programs, types as value types."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation, apart from where its operands live.

    `version` is the since-version of the operator's schema under the opset the model imports (for domains whose
    schemas onnx does not know: the imported opset version itself). `domain` is "" for ai.onnx. `present_inputs` and
    `present_outputs` say which positional operands exist (an omitted optional one is False).
    `n_captures` trailing inputs are values that the bodies in `attributes` capture from the enclosing scope.
    """

    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    present_inputs: tuple[bool, ...] = ()
    present_outputs: tuple[bool, ...] = (True,)
    n_captures: int = 0
    name: str = ""
    opset: int = 0
    """The opset version of `domain` that the model imports (>= version)."""

    @property
    def id(self) -> str:
        """Readable identity, such as "Add" or "com.microsoft::Gelu"."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or `default` where the node does not carry it."""
        return self.attributes.get(name, default)

    def bodies(self) -> dict[str, Program]:
        """The graph-valued attributes, lowered, by name ("body"; "bodies[1]" in a list of them)."""
        from hetero.program.program import Program

        found: dict[str, Program] = {}
        for key, value in self.attributes.items():
            if isinstance(value, Program):
                found[key] = value
            elif isinstance(value, tuple):
                found |= {f"{key}[{k}]": body for k, body in enumerate(value) if isinstance(body, Program)}
        return found

    def __str__(self) -> str:
        attrs = ", ".join(f"{k}={_short(v)}" for k, v in sorted(self.attributes.items()))
        return f"{self.id}-{self.version}" + (f"({attrs})" if attrs else "")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype}{list(value.shape)}>"
    if hasattr(value, "instructions"):
        return f"<body of {len(value.instructions)}>"
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
