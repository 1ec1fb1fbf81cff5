"""Runs every benchmark: a table of what was measured, against what, the ratio and the goal; then the real models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks import corpus, decoder, elementwise, inline, planning, roads
from benchmarks.measure import Pair
from hetero import RuntimeOptions
from tests.models.decoder import Form

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


def outside_row(form: Form) -> tuple[str, ...]:
    """The line on what a one-token step spends outside kernels."""
    share = decoder.outside_kernels(form, 1)
    return f"outside kernels, successive steps, {form}", "the step", "", "", f"{share:.2f}", "", "<= 0.10"


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
            "1,000 tiny Adds, fused and captured",
            "onnxruntime, 1 thread, unoptimised",
            "<= 0.8",
            inline.chain,
        ),
        lambda: pair_row(
            "the same, captured alone",
            "onnxruntime",
            "<= 0.8",
            partial(inline.chain, options=RuntimeOptions(fuse_elementwise=False)),
        ),
        lambda: pair_row(
            "the same, eager",
            "onnxruntime",
            "<= 2",
            partial(inline.chain, options=RuntimeOptions(fuse_elementwise=False, capture=False)),
        ),
        lambda: pair_row(
            f"encoder 6x384, 128 tokens, {THREADS} threads, processes apart",
            "onnxruntime, same threads",
            "<= 1",
            lambda: inline.encoder_apart(THREADS),
        ),
        lambda: pair_row(
            "encoder 6x384, 128 tokens, 1 thread",
            "onnxruntime, same threads",
            "<= 1",
            lambda: inline.encoder_step(1),
        ),
        *(
            partial(
                pair_row,
                f"decoder 12x768, one token at 512, {form}, 1 thread",
                "onnxruntime, IO binding, 1 thread",
                "<= 1",
                partial(decoder.decoder_step, form, 1),
            )
            for form in decoder.FORMS
        ),
        *(partial(outside_row, form) for form in decoder.FORMS),
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
        *(
            partial(
                pair_row,
                f"two actors, {size}, channels",
                "the same on bare Ray",
                f"<= {goal}",
                partial(roads.two_actors, nbytes, 201, "channels"),
            )
            for size, nbytes, goal in (("1 KB", 1 << 10, 0.2), ("1 MB", 1 << 20, 0.3))
        ),
    ]
    console = Console(width=max(120, Console().width))
    for row in rows:
        with console.status("measuring"):
            table.add_row(*row())
    console.print(table)
    for name in (
        "actors",
        "faults",
    ):  # in processes of their own, whose memory holds nothing of what was before
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
    with console.status("measuring the real models"):
        models = list(corpus.timings())
    console.print(f"real models, 1 thread; goal: all of them in <= {CORPUS_GOAL} times onnxruntime's time")
    console.print(corpus.summary(models))


if __name__ == "__main__":
    main()
