"""Tables that several verbs print: rows of a profile, and what each graph slot did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ("B", "KB", "MB", "GB", "TB")


def size(nbytes: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:.0f} {_UNITS[unit]}" if unit == 0 or nbytes >= 100 else f"{nbytes:.1f} {_UNITS[unit]}"


def show_table(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> None:
    """Print a table; the first `left` columns and the last one are text, the others numbers."""
    from rich.table import Table
    from rich.text import Text

    from hetero.planner.explain import printable

    table = Table(title=title, title_justify="left")
    for k, heading in enumerate(headings):
        text = k < left or k == len(headings) - 1
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    console.print(table)


def measures(row: Mapping[str, Any]) -> list[str]:
    """The numbers of a profile's row: ms, share, calls, bytes read and written; then how it was captured."""
    return [
        f"{row['ms_per_step']:.4f}",
        f"{row['share']:.1%}",
        f"{row['calls_per_step']:g}",
        size(row["reads_bytes_per_step"]),
        size(row["writes_bytes_per_step"]),
        ", ".join(row["capture"]),
    ]


MEASURES = ("ms/step", "share", "calls", "reads", "writes", "capture")


def graph_slots(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each graph slot of each child did, from an executor's stats."""
    return [
        {"on": child, "graph_slot": name, **counters}
        for child, about in stats["children"].items()
        for name, counters in about.get("graph_slots", {}).items()
    ]


def show_graph_slots(console: Console, slots: Sequence[Mapping[str, Any]]) -> None:
    """Recordings, replays, segments, and seams by reason, per child and graph slot; then who is in quarantine."""
    headings = ("on", "graph slot", "recorded", "replayed", "eager", "failed", "segments", "calls", "seams")
    show_table(
        console,
        "graph slots",
        headings,
        (
            (
                s["on"],
                s["graph_slot"],
                *(str(s[k]) for k in ("recordings", "replays", "eager_runs", "failed_recordings")),
                *(str(s[k]) for k in ("segments", "captured_calls")),
                ", ".join(f"{reason} {n}" for reason, n in s["seams"].items()) or "none",
            )
            for s in slots
        ),
        left=2,
    )
    barred = [(s["on"], s["graph_slot"], op, why) for s in slots for op, why in s["quarantine"].items()]
    if barred:
        show_table(console, "kept out of recordings", ("on", "graph slot", "op", "why"), barred, left=3)
