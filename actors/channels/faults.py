"""A child's error as data: its class by name, where it happened, and the traceback as text; never a pickle."""

from __future__ import annotations

import traceback
from typing import Any

from actors.failures import RemoteTracebackError
from hetero import errors
from hetero.errors import HeteroError, MemoryLimitError, TransportError

_ATTRIBUTES = ("op", "node", "operand", "device", "phase")
_CLASSES: dict[str, type[HeteroError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HeteroError)
}
_MAX_TEXT = 1 << 16

Fault = tuple[Any, ...]
"""Class name, message, step, the attributes above, the text of the traceback."""


def fault_of(error: BaseException) -> Fault:
    """The error as data. What is none of ours is told as a HeteroError (MemoryLimitError where memory ran out) that
    names its class."""
    text = "".join(traceback.format_exception(error))[-_MAX_TEXT:]
    if not isinstance(error, HeteroError):
        message = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
        kind = MemoryLimitError if isinstance(error, MemoryError) else HeteroError
        return kind.__name__, message, None, *[None] * len(_ATTRIBUTES), text
    name = next(k.__name__ for k in type(error).__mro__ if _CLASSES.get(k.__name__) is k)
    where = [_text(getattr(error, attribute)) for attribute in _ATTRIBUTES]
    step = error.step if isinstance(error.step, int) else None
    return name, error.message[:_MAX_TEXT], step, *where, text


def error_of(fault: Fault) -> HeteroError:
    """The error again; its `__cause__` holds the traceback over there. Of a malformed fault, a TransportError."""
    match fault:
        case (str(name), str(message), (None | int()) as step, *where, str(text)) if name in _CLASSES:
            if len(where) == len(_ATTRIBUTES) and all(w is None or isinstance(w, str) for w in where):
                found = dict(zip(_ATTRIBUTES, where, strict=True))
                error = _CLASSES[name](message, **found, step=step)
                error.__cause__ = RemoteTracebackError(text)
                return error
    return TransportError("a child failed, and its account of why is malformed")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:_MAX_TEXT]
