"""Folding: what follows from weights or shapes alone is computed on the host, once, while a section is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import KernelDef
from hetero.mapped import let_go
from hetero.runtime.operands import run_once
from hetero.runtime.shape_arithmetic import evaluated
from hetero.runtime.slots import Kind, Slot
from hetero.types import HostArray, SequenceSpec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

KNOWN_LIMIT_BYTES = 64 << 10
"""Shape arithmetic is small; a larger value that follows from shapes (a mask, say) is computed like any other."""
Results = tuple[HostArray | None, ...]


def fold(
    runner: Runner, at: int, definition: KernelDef | None, operands: Sequence[Slot]
) -> tuple[Kind, Results] | None:
    """The results of instruction `at`, read-only, and whether they are CONSTANT or hold while shapes do (KNOWN).

    None where they depend on data, are too large to keep, or are no plain tensors. What follows from weights alone is
    computed once per runner, whatever the shapes.
    """
    if not runner.options.fold_constants or (definition is not None and not definition.deterministic):
        return None
    metadata = definition is not None and definition.metadata
    present = [o for o in operands if o.kind is not Kind.NOTHING]
    if metadata:
        if not all(isinstance(o.spec, TensorSpec | SequenceSpec) for o in present):
            return None
    elif not all(o.value is not None for o in present):
        return None
    constant = not metadata and all(o.kind is Kind.CONSTANT for o in present)
    results = runner.folded.get(at) if constant else None
    if results is None:
        limit_bytes = runner.options.fold_limit_bytes if constant else KNOWN_LIMIT_BYTES
        results = _evaluate(runner, at, definition, operands, limit_bytes)
        if results is None:
            return None
        if constant:
            runner.folded[at] = results
            let_go(*(o.value for o in operands))
    runner.statistics.folded += 1
    return Kind.CONSTANT if constant else Kind.KNOWN, results


def _evaluate(
    runner: Runner, at: int, definition: KernelDef | None, operands: Sequence[Slot], limit_bytes: int
) -> Results | None:
    """The results on the host, or None where they are larger than `limit_bytes` or no plain tensors."""
    host = runner.host
    metadata = definition is not None and definition.metadata
    if definition is not None:
        op = runner.program.instructions[at].op
        small = evaluated(op, [o.spec for o in operands], [o.value for o in operands])
        if small is not None:
            small.flags.writeable = False
            return (small,) if small.nbytes <= limit_bytes else None
    specs = [
        # a kernel that was compiled for a value is of no use for the next one: only where the value is asked for
        o.known_spec() if definition is None or k in definition.values or o.kind is Kind.CONSTANT else o.spec
        for k, o in enumerate(operands)
    ]
    try:
        compiled = runner.compile(at, host, specs)
    except UnsupportedError:
        return None
    if sum(s.nbytes for s in compiled.outputs if isinstance(s, TensorSpec)) > limit_bytes:
        return None
    inputs = [None if metadata else o.value for o in operands]
    results = host.view(compiled, inputs) if compiled.view is not None else None
    if results is None:
        results = run_once(host, compiled, inputs)
    if not all(r is None or isinstance(r, np.ndarray) for r in results):
        return None
    if sum(0 if r is None else r.nbytes for r in results) > limit_bytes:
        return None
    for result in results:
        if result is not None:
            result.flags.writeable = False
    return results
