"""Runs every benchmark: a table of what was measured, against what, the ratio and the goal; then the real models."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks import corpus, elementwise, inline, planning, roads
from benchmarks.measure import Pair

THREADS = os.cpu_count() or 1
CORPUS_GOAL = 1.5
"""Geometric mean of ours over onnxruntime's."""


def pair_row(work: str, against: str, goal: str, measure: Callable[[], Pair]) -> tuple[str, ...]:
    """One line of the table for a paired measurement."""
    pair = measure()
    spread = f"{pair.low:.2f}-{pair.high:.2f}"
    return (
        work,
        against,
        f"{pair.ours_s * 1e3:.3f}",
        f"{pair.theirs_s * 1e3:.3f}",
        f"{pair.ratio:.2f}",
        spread,
        goal,
    )


def growth_row() -> tuple[str, ...]:
    """The line of the planning benchmark."""
    g = planning.growth()
    times = f"{g.large_s * 1e3:.0f}", f"{g.small_s * 1e3:.0f}"
    return "load + plan 100,000 nodes", "10,000 nodes", *times, f"{g.ratio:.1f}", "", "<= 12"


def main() -> None:
    """Measure and print."""
    table = Table("work", "against", "ours ms", "theirs ms", "ratio", "middle half", "goal")
    rows: list[Callable[[], tuple[str, ...]]] = [
        lambda: pair_row(
            "1,000 tiny Adds, eager, inline", "onnxruntime, 1 thread, unoptimised", "<= 0.8", inline.chain
        ),
        lambda: pair_row(
            f"encoder 6x384, 128 tokens, {THREADS} threads",
            "onnxruntime, same threads",
            "<= 2",
            lambda: inline.encoder_step(THREADS),
        ),
        lambda: pair_row(
            "encoder 6x384, 128 tokens, 1 thread",
            "onnxruntime, same threads",
            "<= 2",
            lambda: inline.encoder_step(1),
        ),
        *(
            partial(
                pair_row,
                f"{name}, 1 thread",
                "onnxruntime, same threads",
                "",
                partial(elementwise.case, name),
            )
            for name in elementwise.CASES
        ),
        growth_row,
        lambda: pair_row("two actors, 4 MB activations", "the same on bare Ray", "<= 1.15", roads.two_actors),
    ]
    console = Console()
    for row in rows:
        with console.status("measuring"):
            table.add_row(*row())
    console.print(table)
    with console.status("measuring the real models"):
        models = list(corpus.timings())
    console.print(f"real models, 1 thread; goal: all of them in <= {CORPUS_GOAL} times onnxruntime's time")
    console.print(corpus.summary(models))


if __name__ == "__main__":
    main()
