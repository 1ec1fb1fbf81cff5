"""com.microsoft's Tokenizer: strings into tokens, by characters, separators or a regular expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero.kernels.base import Compiled, dynamic, kernel
from hetero.kernels.operands import fail, text_of
from hetero.kernels.prepared import once
from hetero.kernels.regex import compiled
from hetero.kernels.text import padded, strings, texts
from hetero.program.operation import Operation
from hetero.types import HostArray, Spec

START, END = "\x02", "\x03"
Split = Callable[[str], list[str]]


def _splitter(op: Operation) -> Split:
    least: int = op.attr("mincharnum", 1)
    expression = text_of(op, "tokenexp", "")
    separators = texts(op.attr("separators", ()))
    if least < 1:
        fail(op, f"{least} is not positive", "mincharnum")
    if bool(expression) == bool(separators):
        fail(op, "either this or tokenexp must be there", "separators")
    if expression:
        tokens = compiled(op, expression, "tokenexp")
        return lambda text: [m[0] for m in tokens.finditer(text) if len(m[0]) >= least]
    if separators == [""]:
        return list
    patterns = [compiled(op, s, "separators") for s in separators]

    def split(text: str) -> list[str]:
        parts = [text]
        for pattern in patterns:
            parts = [piece for part in parts for piece in _between(pattern.finditer(part), part)]
        return [part for part in parts if len(part) >= least]

    return split


def _between(matches: Any, text: str) -> list[str]:
    parts, at = [], 0
    for match in matches:
        if match.end() > match.start():
            parts.append(text[at : match.start()])
            at = match.end()
    return [*parts, text[at:]]


@kernel("Tokenizer", domain="com.microsoft", versions=(1,), portable=False, strided=True)
def tokenizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [n] or [rows, n] -> its elements' tokens along a new axis, padded with `pad_value`.

    Tokens of fewer than `mincharnum` characters are left out. With `mark`, each element's tokens stand between the
    characters 2 and 3, unless every element is empty.
    """
    x = strings(op, specs)
    if len(x.shape) not in (1, 2):
        fail(op, f"must be [n] or [rows, n], has shape {list(x.shape)}", "X")
    prepared = once(op, _splitter)
    pad, marked = text_of(op, "pad_value", ""), bool(op.attr("mark", 0))

    def run(inputs: Sequence[Any]) -> tuple[HostArray]:
        given = inputs[0].reshape(-1).tolist()
        rows = [prepared.value(text) for text in given]
        if marked and any(given):
            rows = [[START, *row, END] for row in rows]
        return (padded(rows, x.shape, pad),)

    return dynamic(run)
