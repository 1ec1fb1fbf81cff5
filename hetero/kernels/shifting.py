"""Numbers of a bound call: what compiled loops know of its operands; calls that are bound alike can follow one of them.

Compiled loops read their operands' sizes, strides and addresses from an array of int64. Two calls of the same loops,
over operands of the same shapes and strides, differ there in the addresses alone. So when both go over to other
shapes and nothing moves, what is added to the numbers of one is added to those of the other, and it is bound for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.kernels.base import Call
from hetero.kernels.jit_call import bound
from hetero.types import Array

_KEY = "numbers"


def bind_numbers(function: Any, words: tuple[int, ...], places: int, operands: Any, parallel: bool) -> Call:
    """The call of a jitted `function` of "i8[1], i8[2]": `words`, and (3, `places`) addresses to fill in (`places_of`).

    The caller promises that its operands' addresses each count once wherever they are part of a number, and that all
    else follows from shapes and strides. `operands` are kept: the numbers do not hold them.
    """
    numbers = np.empty(len(words) + 3 * places, np.int64)
    head, table = numbers[: len(words)], numbers[len(words) :].reshape(3, places)
    head[:] = words
    return _knowing(bound(function.variant(head, table, parallel=parallel), head, table), numbers, operands)


def bind_words(function: Any, words: Sequence[int], operands: Any, parallel: bool) -> Call:
    """As `bind_numbers`, for a `function` of "i8[1]"."""
    numbers = np.array(words, np.int64)
    return _knowing(bound(function.variant(numbers, parallel=parallel), numbers), numbers, operands)


def _knowing(call: Call, numbers: Array, operands: Any) -> Call:
    """The call, which reads these numbers and keeps its operands."""
    call.__dict__[_KEY] = numbers
    call.__dict__["operands"] = operands
    return call


def places_of(call: Call) -> Array:
    """The table of addresses, int64 (3, places), of what `bind_numbers` returned."""
    return call.__dict__["arguments"][1]


def numbers_of(call: Call) -> Array | None:
    """The numbers that `call` reads; None where it reads none, or others may not follow it."""
    found: Array | None = getattr(call, "__dict__", {}).get(_KEY)
    return found


def same_code(*calls: Call) -> bool:
    """Whether all of these run the same loops over as many numbers, so that nothing but those tells them apart."""
    sizes = {None if n is None else n.size for n in map(numbers_of, calls)}
    codes = {id(getattr(call, "func", call)) for call in calls}
    return None not in sizes and len(sizes) == len(codes) == 1
