"""Finding and compiling our own kernels: what every provider with an array module shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from hetero.errors import HeteroError, KernelError, MemoryLimitError, UnsupportedError
from hetero.extensions.registry import definition as extension_definition
from hetero.kernels.base import Compiled, KernelDef, lookup
from hetero.program.operation import Operation
from hetero.types import Spec, ValueType

CONTROL_OPS = frozenset({"If", "Loop", "Scan"})


def is_control(op: Operation) -> bool:
    """Whether the runtime itself runs this operation (its bodies are programs)."""
    return op.domain == "" and op.op_type in CONTROL_OPS


def find(op: Operation) -> KernelDef | None:
    """Our kernel, or a user's extension, for this operation at its version; None where there is neither."""
    return lookup(op.domain, op.op_type, op.version) or extension_definition(op)


def why_not(definition: KernelDef | None, op: Operation, types: Sequence[ValueType | None]) -> str | None:
    """None where the kernel takes these declared types, otherwise the reason."""
    if definition is None:
        return f"no kernel for {op.id}-{op.version}"
    if definition.check is None:
        return None
    try:
        return definition.check(op, types)
    except UnsupportedError as error:
        return error.message


def compile_kernel(
    definition: KernelDef, op: Operation, specs: Sequence[Spec], xp: Any, device: str
) -> Compiled:
    """`definition.compile`, its errors naming op, node and device.

    Raises: UnsupportedError (the kernel declines), KernelError (the operands contradict the operator's text).
    """
    try:
        return definition.compile(op, specs, xp)
    except Exception as error:
        fail(error, op, device)


def failure(error: Exception, op: Operation | None, device: str) -> HeteroError:
    """What stands for `error` out of a kernel of `op`: itself where it is one of ours, else a KernelError
    (MemoryLimitError where memory ran out) that it causes."""
    where = {"op": op.id, "node": op.name or None} if op is not None else {}
    if isinstance(error, HeteroError):
        return error.at(device=device, **where)
    kind = MemoryLimitError if isinstance(error, MemoryError) else KernelError
    wrapped = kind(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped.at(device=device, **where)


def fail(error: Exception, op: Operation | None, device: str) -> NoReturn:
    """Raise `failure`."""
    raise failure(error, op, device)
