"""Decode memo: a step that differs from the one before in growing extents alone binds anew only what they reach.

One token more, and the attention over the past has another shape; everything else has not. A section that was built
with room to grow is taken over to the next length: instructions whose operands stay are left as they are (their calls,
their views, their captured graphs), the others are compiled for the new shapes and bound to the same buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.runtime.pins import Pins
from hetero.runtime.section import Section
from hetero.types import TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.roots import Signature

Growth = tuple[tuple[int, int, int], ...]
"""(position among the moving inputs, axis, by how much) of each extent that changed; and (-1, position among those
whose values decide shapes, by how much) of each such value."""
Usual = tuple[tuple[int, np.dtype[Any], tuple[int, ...]], ...]
"""Position, dtype and shape of inputs that are arrays."""
STEADY_STEPS = 2
"""Steps in a row that grow alike, after which the next ones are expected to."""


@dataclass(slots=True, eq=False)
class Drive:
    """How one graph slot drives a program: the section it ran last, and how its shapes have grown."""

    last: tuple[Signature, Section] | None = None
    usual: Usual | None = None
    """What its inputs were, once they were so again."""
    pins: Pins | None = None
    """The caller's buffers that the last run was bound to."""
    growth: Growth = ()
    steady: int = 0
    off: bool = False
    """Whether most instructions depended on what grew: taking a section over costs no less than building one."""

    def missed(self, key: Signature) -> bool:
        """Shapes were not met before. Returns whether they differ from the last ones in extents (and values) alone."""
        growth = None if self.last is None else growth_of(self.last[0], key)
        if not growth:
            self.growth, self.steady = (), 0
            return False
        alike = [(k, axis) for k, axis, _ in growth] == [(k, axis) for k, axis, _ in self.growth]
        # Until it is steady, by the same amount; from then on (tokens may be taken back) by any.
        if growth == self.growth or (alike and self.steady >= STEADY_STEPS):
            self.steady += 1
        else:
            self.growth, self.steady = growth, 1
        return True


def growth_of(old: Signature, new: Signature) -> Growth | None:
    """The extents and values that differ; None where dtypes, ranks, the caller's buffers or anything else does."""
    if len(old[0]) != len(new[0]) or len(old[1]) != len(new[1]) or old[2] != new[2]:
        return None
    growth: list[tuple[int, int, int]] = []
    seen: tuple[object, object] = (None, None)
    changes: list[tuple[int, int]] = []
    for k, (a, b) in enumerate(zip(old[0], new[0], strict=True)):
        if a is seen[0] and b is seen[1]:  # as a decoder's states are
            growth += [(k, axis, by) for axis, by in changes]
            continue
        if a == b:
            continue
        if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
            return None
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            return None
        changes = [(axis, n - m) for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
        seen = a, b
        growth += [(k, axis, by) for axis, by in changes]
    for k, (x, y) in enumerate(zip(old[1], new[1], strict=True)):
        if x != y:
            if x is None or y is None or len(x) != len(y):
                return None
            growth.append((-1, k, int.from_bytes(y, "little") - int.from_bytes(x, "little")))
    return tuple(growth)
