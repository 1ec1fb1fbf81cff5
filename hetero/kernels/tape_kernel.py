"""One operator as a kernel that runs a tape: what float32 operators with a transcendental inside are on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed
from hetero.kernels.jit import enabled
from hetero.kernels.tape import Tape, TapeWriter, address
from hetero.kernels.tape_ops import LOWERINGS
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

_FLOAT32 = np.dtype(np.float32)


def taped(op: Operation, specs: Sequence[Spec], shape: tuple[int, ...], xp: Any) -> Compiled | None:
    """The kernel of `op`, whose operands broadcast to `shape`; None where it is no float32 on the host, where nothing
    is compiled, or where a tape cannot hold it: the caller's ufuncs then do."""
    tensors = [(k, s) for k, s in enumerate(specs) if isinstance(s, TensorSpec)]
    lower = LOWERINGS.get((op.domain, op.op_type))
    if lower is None or xp is not np or any(s.dtype != _FLOAT32 for _, s in tensors) or not enabled():
        return None
    writer = TapeWriter(shape)
    operands: list[int | None] = [None] * len(specs)
    for k, spec in tensors:
        operands[k] = writer.input(spec.shape)
    result = lower(writer, op, operands, [None] * len(specs))
    if result is None:
        return None
    apart, shared = writer.finish((result,)), writer.finish((result,), (0,))
    if apart is None or shared is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        given = [inputs[k] for k, _ in tensors]
        if not all(x.flags.aligned for x in given):
            return _over_copies(apart, given, outputs, workspace)
        arrays = [*given, outputs[0]]
        addresses = [address(x) for x in arrays]
        chosen = shared if addresses[-1] in addresses[:-1] else apart
        return chosen.bind(arrays, addresses, workspace)

    return computed(
        (TensorSpec(_FLOAT32, shape),),
        bind,
        contiguous=[k for k, _ in tensors],
        overwrites=[(k, 0) for k, s in tensors if s.shape == shape],
        workspace_bytes=max(apart.scratch_bytes, shared.scratch_bytes),
    )


def _over_copies(tape: Tape, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Any) -> Call:
    """For inputs that are not aligned to their items, as those in a mapped file may be."""
    copies = [np.empty(x.shape, x.dtype) for x in inputs]
    arrays = [*copies, *outputs]
    run = tape.bind(arrays, [address(x) for x in arrays], workspace)

    def call() -> None:
        for copy, x in zip(copies, inputs, strict=True):
            copy[...] = x
        run()

    return call
