"""Regular expressions of models, which ONNX writes in RE2's syntax, through Python's re.

What both share runs as it stands, POSIX classes are translated; what only RE2 has (\\pL, \\z, \\C) does not compile and
is an error. re backtracks: a pattern that a model's author made to, such as (a+)+b, can take time that grows
exponentially with the text, so a model that is not trusted should not be given long texts.
"""

from __future__ import annotations

import re
import warnings

from hetero.errors import KernelError
from hetero.program.operation import Operation

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_CLASS = re.compile(r"\[:(\w+):\]")


def compiled(op: Operation, pattern: str, operand: str) -> re.Pattern[str]:
    r"""The pattern; \d, \w and \s mean ASCII, as in RE2. Raises: KernelError where re cannot take it."""
    translated = _CLASS.sub(lambda m: _POSIX.get(m[1], m[0]), pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", FutureWarning
            )  # a set operation, which means something else in RE2
            return re.compile(translated, re.ASCII)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise KernelError(
            f"{pattern!r} does not compile: {error}", op=op.id, node=op.name, operand=operand
        ) from error
