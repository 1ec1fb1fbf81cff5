"""Half precision in single: runs a float32 kernel between casts of a narrower float's operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, CompileFunction
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.mapped import let_go
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

NARROW = frozenset((np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)))
FLOAT32 = np.dtype(np.float32)


def is_constant(array: Any) -> bool:
    """Whether what is derived from the array may be kept between calls: weights are bound read-only, once.

    A read-only view of memory that can be written (a broadcast, a caller's own precaution) is none: nobody may write
    it through the view, but what it shows changes all the same.
    """
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        if array.base is None:
            return True
        array = array.base
    return array is not None


def widened(inner: CompileFunction, op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """`inner` compiled for float32, for float16 or bfloat16 operands: inputs are cast in, outputs back."""
    narrow = next((s.dtype for s in specs if isinstance(s, TensorSpec) and s.dtype in NARROW), None)
    if narrow is None:
        return inner(op, specs, xp)
    wide = [replace(s, dtype=FLOAT32, value=None if s.value is None else s.value.astype(FLOAT32))
            if isinstance(s, TensorSpec) and s.dtype == narrow else s for s in specs]  # fmt: skip
    compiled = inner(op, wide, xp)
    bind_wide = compiled.bind
    if bind_wide is None:
        raise UnsupportedError(f"{op.id} has no {narrow} kernel", op=op.id, node=op.name)
    cast_in = [i for i, (a, b) in enumerate(zip(specs, wide, strict=True)) if a is not b]
    cast_out = [i for i, s in enumerate(compiled.outputs) if isinstance(s, TensorSpec) and s.dtype == FLOAT32]
    outputs = tuple(
        replace(s, dtype=narrow) if i in cast_out and isinstance(s, TensorSpec) else s
        for i, s in enumerate(compiled.outputs)
    )
    shapes = [wide[i].shape for i in cast_in] + [outputs[i].shape for i in cast_out]  # type: ignore[union-attr]
    parts: list[Part] = [((compiled.workspace_bytes,), np.uint8), *((shape, FLOAT32) for shape in shapes)]

    def bind(inputs: Sequence[Any], results: Sequence[Any], workspace: Any) -> Call:
        scratch, *arrays = carve(workspace, *parts)
        wide_in, wide_out = list(inputs), list(results)
        every: list[tuple[Array, Array]] = []
        for i, array in zip(cast_in, arrays[: len(cast_in)], strict=True):
            if is_constant(inputs[i]):
                wide_in[i] = inputs[i].astype(FLOAT32)
                wide_in[i].flags.writeable = False
                let_go(inputs[i])
            else:
                wide_in[i] = array
                every.append((array, inputs[i]))
        back: list[tuple[Array, Array]] = []
        for i, array in zip(cast_out, arrays[len(cast_in) :], strict=True):
            if results[i] is not None:
                wide_out[i] = array
                back.append((results[i], array))
        call_wide = bind_wide(wide_in, wide_out, scratch if compiled.workspace_bytes else None)

        def call() -> None:
            for target, source in every:
                xp.copyto(target, source, casting="unsafe")
            call_wide()
            with np.errstate(over="ignore", invalid="ignore"):
                for target, source in back:
                    xp.copyto(target, source, casting="unsafe")

        return call

    return Compiled(
        outputs,
        bind=bind,
        contiguous=compiled.contiguous - frozenset(cast_in),
        workspace_bytes=carved_bytes(*parts),
        capture=compiled.capture,
    )
