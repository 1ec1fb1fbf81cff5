"""Spans of what ran where and when, written as a Chrome trace that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start_s` to `end_s` (time.perf_counter of the machine) on `track`."""

    name: str
    track: str
    step: int
    start_s: float
    end_s: float
    category: str = "partition"
    """"partition", "op" for a single instruction, "recovery" for the replacement of a child."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """What a viewer shows beside it: of an op its node, bytes, and whether it is captured or why not."""


def write_chrome_trace(spans: Iterable[Span], path: str | PathLike[str]) -> Path:
    """Write spans as Chrome trace events (JSON), one track per child. Returns the path."""
    spans = sorted(spans, key=lambda s: s.start_s)
    tracks = {track: n for n, track in enumerate(dict.fromkeys(s.track for s in spans))}
    origin = spans[0].start_s if spans else 0.0
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": n, "args": {"name": track}}
        for track, n in tracks.items()
    ]
    events += [
        {
            "ph": "X",
            "name": s.name,
            "pid": 0,
            "tid": tracks[s.track],
            "ts": (s.start_s - origin) * 1e6,
            "dur": (s.end_s - s.start_s) * 1e6,
            "cat": s.category,
            "args": {"step": s.step, **s.args},
        }
        for s in spans
    ]
    target = Path(path)
    target.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return target
