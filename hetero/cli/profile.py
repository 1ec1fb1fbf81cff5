"""Spans of a few steps as a profile: per node, per op type, per segment, with own times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hetero.trace import Span

What = dict[str, Any]
"""What a group of spans is, as JSON data."""


@dataclass(slots=True)
class Row:
    """What the spans of one group add up to. `own_s`: without what ran inside (the body of a Loop, say)."""

    what: What
    own_s: float = 0.0
    count: int = 0
    """Kernel calls; a call of a tape is one."""
    reads_bytes: int = 0
    writes_bytes: int = 0
    fused: int = 0
    """The most nodes in one call; 0 where nothing is fused."""
    capture: set[str] = field(default_factory=set)
    """"segment", or the reason of the seam."""

    def add(self, span: Span, own_s: float) -> None:
        """Count one more span."""
        args = span.args
        self.own_s += own_s
        self.count += args["call"] == "kernel"
        self.reads_bytes += args["reads_bytes"]
        self.writes_bytes += args["writes_bytes"]
        self.fused = max(self.fused, args.get("fused", 0))
        if args["call"] == "kernel":
            self.capture.add("segment" if args["capture"] == "segment" else str(args.get("reason", "seam")))

    def as_data(self, steps: int, total_s: float) -> dict[str, Any]:
        """The row as JSON data: means over the steps, and its share of all rows' time."""
        return {
            **self.what,
            "ms_per_step": self.own_s / steps * 1e3,
            "ms_per_call": self.own_s / max(self.count, 1) * 1e3,
            "share": self.own_s / total_s if total_s else 0.0,
            "calls_per_step": self.count / steps,
            "reads_bytes_per_step": self.reads_bytes / steps,
            "writes_bytes_per_step": self.writes_bytes / steps,
            **({"fused": self.fused} if self.fused else {}),
            "capture": sorted(self.capture),
        }


def profile(spans: Iterable[Span], steps: int) -> dict[str, Any]:
    """Nodes, op types and segments of `steps` steps, slowest first, from the spans of their instructions."""
    timed = [(span, own_s) for span, own_s in own_times(spans) if span.category == "op"]
    total_s = sum(own_s for _, own_s in timed)
    return {
        "kernel_ms_per_step": total_s / steps * 1e3,
        "nodes": _rows(timed, _node, steps, total_s),
        "ops": _rows(timed, _op, steps, total_s),
        "segments": _rows(timed, _segment, steps, total_s),
    }


def own_times(spans: Iterable[Span]) -> Iterator[tuple[Span, float]]:
    """Each span of an instruction with its seconds, less those of the spans inside it on the same track, and
    less what tracing these took."""
    instructions = [s for s in spans if s.category == "op"]
    instructions.sort(key=lambda s: (s.track, s.start_s, -s.end_s))
    for _, track in groupby(instructions, key=lambda s: s.track):
        around: list[list[Any]] = []  # [span, seconds inside]
        for span in track:
            while around and around[-1][0].end_s <= span.start_s:
                yield _closed(around)
            around.append([span, 0.0])
        while around:
            yield _closed(around)


def _closed(around: list[list[Any]]) -> tuple[Span, float]:
    span, inside_s = around.pop()
    if around:
        around[-1][1] += span.end_s - span.start_s
    tracing_s = span.args.get("tracing_s", 0.0)
    return span, max(span.end_s - span.start_s - inside_s - tracing_s, 0.0)


def _node(span: Span) -> tuple[Hashable, What]:
    args = span.args
    what = {
        "node": args["node"] or args["op"],
        "op": args["op"],
        "on": span.track,
        "program": args["program"],
    }
    if "nodes" in args:
        what["nodes"] = args["nodes"]
    return (span.track, args["program"], args["node_index"], args["op"]), what


def _op(span: Span) -> tuple[Hashable, What]:
    what = {"op": span.args["op"], "on": span.track}
    return tuple(what.values()), what


def _segment(span: Span) -> tuple[Hashable, What]:
    args = span.args
    what = {"on": span.track, "program": args["program"], "section": args["section"]}
    if args["capture"] == "segment":
        what["segment"] = args["segment"]
    else:
        what["seam"] = str(args.get("reason", "seam"))
    return tuple(what.items()), what


def _rows(
    timed: Sequence[tuple[Span, float]],
    group: Callable[[Span], tuple[Hashable, What]],
    steps: int,
    total_s: float,
) -> list[dict[str, Any]]:
    rows: dict[Hashable, Row] = {}
    for span, own_s in timed:
        key, what = group(span)
        if key not in rows:
            rows[key] = Row(what)
        rows[key].add(span, own_s)
    ordered = sorted(rows.values(), key=lambda row: -row.own_s)
    return [row.as_data(steps, total_s) for row in ordered]
