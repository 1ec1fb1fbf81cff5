"""A step that goes over channels: begun as a whole, and given out again by calls if it comes to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.journal import Call, RayParcel, StepRecord
from actors.parcels import pack
from hetero.routes import Routes

if TYPE_CHECKING:
    from actors.channels.driver import DriverChannel
    from actors.channels.flight import Flight


class WholeStep(StepRecord):
    """All that there is of such a step. `given`: what the caller gives for `routes`, by parcel, until it is packed for
    a replay, which is worked out when first it is asked for."""

    __slots__ = ("_back", "_calls", "given", "graph_slot", "routes")

    def __init__(
        self, step: int, routes: Routes, given: Mapping[int, Sequence[Any]], graph_slot: str
    ) -> None:  # not by way of StepRecord's, which would be one call more for every step
        self.step, self.routes, self.given, self.graph_slot = step, routes, given, graph_slot
        self.way: tuple[DriverChannel, Flight] | None = None
        self._calls: list[Call] | None = None
        self._back: list[RayParcel] | None = None

    @property
    def back(self) -> list[RayParcel]:
        """The parcels that come back to the caller, as they are in a replay."""
        if self._back is None:
            self._back = [RayParcel(self.step, None) for _ in self.routes.taken]
        return self._back

    @property
    def calls(self) -> list[Call]:
        """As they would be made over objects."""
        if self._calls is None:
            self._calls = self._worked_out()
            self.given = {}
        return self._calls

    @calls.setter
    def calls(self, calls: list[Call]) -> None:
        self._calls, self.given = calls, {}

    def _worked_out(self) -> list[Call]:
        sent_back = {k: parcel for (k, _), parcel in zip(self.routes.taken, self.back, strict=True)}
        parcels = {k: RayParcel(self.step, pack(values), given=True) for k, values in self.given.items()}
        made = []
        for partition, receives, sends in self.routes.calls:
            sent = {k: sent_back.get(k) or RayParcel(self.step, None) for k in sends}
            parcels |= sent
            taken = tuple(parcels[k] for k in receives)
            made.append(Call(partition.child, partition.id, self.graph_slot, taken, tuple(sent.values())))
        return made

    def named(self, arrived: Mapping[int, Sequence[Any]]) -> dict[str, Any]:
        """What has come back, by parcel, as the outputs by name, in the plan's order."""
        found: dict[str, Any] = {}
        for name, parcel, place in self.routes.returned:
            found[name] = arrived[parcel][place]
        return found
