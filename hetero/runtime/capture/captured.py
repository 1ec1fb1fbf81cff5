"""A section as captured for one graph slot: graph launches and seams, as one list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hetero.kernels.base import Call
from hetero.providers.base import CaptureToken
from hetero.runtime.artifacts import Artifact, Artifacts
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.capture.schedule import Piece


@dataclass(slots=True, eq=False)
class Captured:
    """What a replay calls: `steps[k]` launches a segment or is a seam's call, of calls[firsts[k]] on.

    Owns its graphs, as one artifact: nothing is replayed unless that is complete, and with a lease on it. `discard`
    frees them, once nobody replays them. Valid as long as the calls that were recorded are the section's.
    """

    slot: GraphSlot
    pieces: tuple[Piece, ...]
    free: Callable[[CaptureToken], None]
    artifacts: Artifacts
    artifact: Artifact = field(init=False)
    steps: list[Call] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    tokens: list[CaptureToken] = field(default_factory=list)
    _where: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.artifact = self.artifacts.begin("captured graph", self.slot.name, self._freed)

    def replace(self, calls: Mapping[int, Call]) -> None:
        """The seams at these call numbers are other calls now. Raises: KeyError where a call is in a segment."""
        if not self.steps:
            return  # given up, and recorded anew before it is replayed
        if not self._where:
            self._where = {first: k for k, first in enumerate(self.firsts)}
        for at, call in calls.items():
            self.steps[self._where[at]] = call

    def discard(self) -> None:
        """Give the graphs up. A second call does nothing."""
        self.artifacts.drop(self.artifact)

    def _freed(self) -> None:
        tokens, self.tokens = self.tokens, []
        for token in tokens:
            self.free(token)
        if self.steps:
            self.slot.retired += 1
        self.steps.clear()
