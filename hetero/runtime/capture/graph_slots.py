"""Graph slots of one child: what each knows about operators that break recordings, and its counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class GraphSlot:
    """One graph slot ("primary", "verify", a user's). What one learns or counts, no other sees.

    `quarantine`: op id -> the message with which it broke a recording. Captured graphs themselves lie beside the
    sections that they were recorded from, under the slot's name.
    """

    name: str
    quarantine: dict[str, str] = field(default_factory=dict)
    eager_runs: int = 0
    """Sections run call by call: the warm-up, and whatever is not captured."""
    recordings: int = 0
    replays: int = 0
    """Sections run through their captured graphs."""
    failed_recordings: int = 0
    retired: int = 0
    """Captured sections given up: dropped with their shapes, or bound anew."""
    segments: int = 0
    """Segments recorded so far."""
    captured_calls: int = 0
    """Calls in them."""
    seams: Counter[str] = field(default_factory=Counter)
    """What was left between and after segments when they were recorded, by reason: calls, and the instructions that
    sections end at."""

    def statistics(self) -> dict[str, Any]:
        """Counters by name."""
        return {
            "eager_runs": self.eager_runs,
            "recordings": self.recordings,
            "replays": self.replays,
            "failed_recordings": self.failed_recordings,
            "retired": self.retired,
            "segments": self.segments,
            "captured_calls": self.captured_calls,
            "seams": {str(reason): n for reason, n in self.seams.items()},
            "quarantine": dict(self.quarantine),
        }
