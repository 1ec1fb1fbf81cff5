"""TfIdfVectorizer: how often the n-grams of a pool occur in rows of integers or strings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import fail, text_of
from hetero.kernels.prepared import once
from hetero.kernels.text import REASON, texts
from hetero.program.operation import Operation
from hetero.types import STRING, HostArray, Spec

MODES = ("TF", "IDF", "TFIDF")
FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Pool:
    """n-grams by length: each with its column of the output and its weight. `strings`: of texts, else of integers.

    `skips`: n-grams are read with 0 to that many elements between one and the next. `counts`: an n-gram that occurs
    counts as often as it occurs, otherwise once. `columns`: of the output.
    """

    ngrams: dict[int, dict[tuple[Any, ...], tuple[int, float]]]
    strings: bool
    skips: int
    counts: bool
    columns: int

    def add(self, row: Sequence[Any], out: HostArray) -> None:
        """Add the row's n-grams to `out` (columns,)."""
        for n, known in self.ngrams.items():
            found: Counter[tuple[Any, ...]] = Counter()
            # Single elements have nothing between them; and no n-gram is longer than the row.
            last = 1 if n == 1 else min(self.skips + 1, (len(row) - 1) // (n - 1))
            for distance in range(1, last + 1):
                found.update(zip(*(row[k * distance :] for k in range(n)), strict=False))
            for ngram in found.keys() & known.keys():
                column, weight = known[ngram]
                out[column] += weight * (found[ngram] if self.counts else 1)


def _pool(op: Operation) -> Pool:
    mode = text_of(op, "mode", "")
    if mode not in MODES:
        fail(op, f"{mode!r} is none of {list(MODES)}", "mode")
    words = texts(op.attr("pool_strings", ()))
    items: list[Any] = words or list(op.attr("pool_int64s", ()))
    starts, columns = list(op.attr("ngram_counts", ())), op.attr("ngram_indexes", ())
    low, high, skips = (
        op.attr(f"{name}", 0) for name in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    if not 1 <= low <= high <= len(starts):
        fail(op, f"{low} to {high}, the pool has 1 to {len(starts)}", "min_gram_length")
    if skips < 0:
        fail(op, f"{skips} is negative", "max_skip_count")
    if not columns or min(columns) < 0:
        fail(op, "must hold columns from 0 on", "ngram_indexes")
    given = op.attr("weights") if mode != "TF" else None
    weights = [1.0] * len(columns) if given is None else list(given)
    if len(weights) != len(columns):
        fail(op, f"{len(weights)} weights for {len(columns)} n-grams", "weights")
    ngrams: dict[int, dict[tuple[Any, ...], tuple[int, float]]] = {}
    at = 0
    for n, (start, stop) in enumerate(zip(starts, [*starts[1:], len(items)], strict=True), 1):
        if not 0 <= start <= stop <= len(items) or (stop - start) % n:
            fail(op, f"{start} to {stop} of {len(items)} hold no whole {n}-grams", "ngram_counts")
        some = [tuple(items[k : k + n]) for k in range(start, stop, n)]
        if at + len(some) > len(columns):
            fail(op, f"{len(columns)} columns, but the pool has more n-grams", "ngram_indexes")
        if low <= n <= high and some:
            entries = zip(columns[at:], weights[at:], strict=True)
            ngrams[n] = dict(zip(some, entries, strict=False))
            if len(ngrams[n]) != len(some):
                fail(op, f"a {n}-gram is there twice", "pool_strings" if words else "pool_int64s")
        at += len(some)
    return Pool(ngrams, bool(words), skips, mode != "IDF", max(columns) + 1)


@kernel("TfIdfVectorizer", versions=(9,), portable=False, strided=True)
def tf_idf_vectorizer(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X [n] or [rows, n] (integers or strings) -> [columns] or [rows, columns] float32: how often each n-gram of the
    pool occurs (TF), its weight where it does (IDF), or both multiplied (TFIDF)."""
    x = tensor(op, specs, 0)
    prepared = once(op, _pool)
    if len(x.shape) > 2:
        fail(op, f"must be [n] or [rows, n], has shape {list(x.shape)}", "X")
    if prepared.value.strings != (x.dtype == STRING):
        fail(op, f"is {x.dtype}; the pool holds {'strings' if prepared.value.strings else 'integers'}", "X")
    output = bounded(op, FLOAT32, (*x.shape[:-1], prepared.value.columns))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        pool = prepared.value
        width = x.shape[-1] if x.shape else 1
        target = outputs[0].reshape(-1, pool.columns)

        def call() -> None:
            target[...] = 0
            if width:
                for row, out in zip(inputs[0].reshape(-1, width).tolist(), target, strict=True):
                    pool.add(row, out)

        return call

    return computed([output], bind, capture=REASON)
