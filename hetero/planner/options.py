"""Provider options as plain data: what may stand in a plan, packed so that equal options give equal bytes."""

from __future__ import annotations

from typing import Any

from hetero.errors import OptionError, PlanError
from hetero.program.packing import dumps

_MAX_DEPTH = 16
_TUPLE, _LIST, _DICT = "t", "l", "d"


def pack_option(value: Any, depth: int = 0) -> Any:
    """None, bool, int (64 bits), float, str, and tuples, lists and dicts of those, as nested lists for msgpack.

    A dict's items are sorted, so that equal dicts give equal bytes. Raises: OptionError for anything else.
    """
    if depth > _MAX_DEPTH:
        raise OptionError(f"option values nest deeper than {_MAX_DEPTH}")
    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"an option value is no text: {value!r}") from error
        return value
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise OptionError(f"option value {value} does not fit 64 bits")
        return value
    if kind in (tuple, list):
        return [_TUPLE if kind is tuple else _LIST, *(pack_option(v, depth + 1) for v in value)]
    if kind is dict:
        items = [[pack_option(k, depth + 1), pack_option(v, depth + 1)] for k, v in value.items()]
        return [_DICT, *sorted(items, key=lambda item: dumps(item[0]))]
    raise OptionError(
        f"an option value must be plain data (None, bool, int, float, str, tuple, list, dict), not {kind.__name__}"
    )


def unpack_option(plain: Any, depth: int = 0) -> Any:
    """What `pack_option` packed. Raises: PlanError."""
    if depth > _MAX_DEPTH:
        raise PlanError(f"option values nest deeper than {_MAX_DEPTH}")
    if plain is None or type(plain) in (bool, int, float, str):
        return plain
    if not isinstance(plain, list) or not plain or plain[0] not in (_TUPLE, _LIST, _DICT):
        raise PlanError(f"damaged option value {str(plain)[:80]}")
    kind, *items = plain
    if kind == _TUPLE:
        return tuple(unpack_option(v, depth + 1) for v in items)
    if kind == _LIST:
        return [unpack_option(v, depth + 1) for v in items]
    made: dict[Any, Any] = {}
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise PlanError("damaged option value: a dict item is a pair")
        key = unpack_option(item[0], depth + 1)
        try:
            made[key] = unpack_option(item[1], depth + 1)
        except TypeError as error:
            raise PlanError("damaged option value: a dict key cannot be hashed") from error
    return made
