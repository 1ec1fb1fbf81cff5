"""Cast and CastLike: every pair of dtypes, strings included."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor, viewed
from hetero.kernels.convert import FLOAT8, FLOAT32, ROUND_MODES, conversion, from_text, to_text
from hetero.kernels.fused import chain
from hetero.kernels.operands import dtype_attribute
from hetero.kernels.quiet import quiet
from hetero.program.operation import Operation
from hetero.types import STRING, Spec, TensorSpec


@kernel("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25, 28), views=True)
def cast(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X -> X in the dtype that `to` names."""
    target = dtype_attribute(op, "to")
    if target is None:
        raise KernelError("is missing", op=op.id, node=op.name, operand="to")
    return cast_to(op, tensor(op, specs, 0), target, xp)


@kernel("CastLike", versions=(15, 19, 21, 23, 24, 25), views=True)
def cast_like(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, target -> X in target's dtype."""
    return cast_to(op, tensor(op, specs, 0), tensor(op, specs, 1).dtype, xp)


def cast_to(op: Operation, x: TensorSpec, target: np.dtype[Any], xp: Any) -> Compiled:
    """X in `target`: a view where that is its dtype already. Float to integer out of range is undefined."""
    output = TensorSpec(target, x.shape)
    if x.dtype == target:
        return viewed(
            (output,),
            lambda inputs: (inputs[0],),
            lambda i, o, _: partial(o[0].__setitem__, ..., i[0]),
        )
    if STRING in (x.dtype, target):
        return _text(op, x, output, xp)
    mode = op.attr("round_mode", "up")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if mode not in ROUND_MODES:
        raise KernelError(f"{mode!r} is none of {ROUND_MODES}", op=op.id, node=op.name, operand="round_mode")
    step, scratch = conversion(xp, x.dtype, target, saturate=bool(op.attr("saturate", 1)), round_mode=mode)
    if scratch:
        return chain(xp, x, step, output=output, scratch=scratch, in_place=False)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        store = outputs[0].__setitem__
        # Only from a float can a value be out of range in a way that NumPy warns of.
        if x.dtype.kind in "iub":
            return partial(store, ..., inputs[0])
        return quiet(store, ..., inputs[0])

    return computed((output,), bind, stretch=lambda s: (TensorSpec(target, tensor(op, s, 0).shape), 0))


def _text(op: Operation, x: TensorSpec, output: TensorSpec, xp: Any) -> Compiled:
    if xp is not np:
        raise UnsupportedError("strings live on the host", op=op.id, node=op.name)
    target = output.dtype
    if target == STRING:
        return computed((output,), lambda i, o, _: partial(to_text, i[0], o[0]), capture="strings")
    # Narrow numbers are read as float32 first, so that they round and saturate as numbers do.
    detour = target.kind == "V" or target in FLOAT8
    step, scratch = conversion(np, FLOAT32, target, saturate=bool(op.attr("saturate", 1)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0]

        def call() -> None:
            wide = np.empty(out.shape, FLOAT32) if detour else out
            try:
                from_text(source, wide)
            except (ValueError, OverflowError) as error:
                raise KernelError(f"not a {target}: {error}", op=op.id, node=op.name) from error
            if detour:
                step(wide, out, *(np.empty(out.shape, dtype) for dtype in scratch))

        return quiet(call)

    return computed((output,), bind, capture="strings")
