"""What a decoder remembers between steps: where the caches of keys and values are kept, and how they are cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hetero.decode.roles import Roles, Signature
from hetero.types import HostArray


class Executor(Protocol):
    """What drives the model; a `hetero.HeterogeneousExecutor` is one."""

    @property
    def plan(self) -> Signature:
        """The model's inputs and outputs."""

    def run(
        self,
        feeds: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        graph_slot: str = "primary",
    ) -> dict[str, Any]:
        """One step: input name -> array, to output name -> array."""


class StateStore(Protocol):
    """The caches of the sequences of one generation, all of the same length."""

    length: int
    """Steps that the caches hold."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Outputs that `advance` needs of each step."""

    def feeds(self) -> dict[str, HostArray]:
        """Inputs of the next step."""

    def advance(self, outputs: Mapping[str, Any], new: int) -> None:
        """A step of `new` tokens gave these outputs."""

    def rewind(self, length: int) -> None:
        """Forget the steps from `length` on; 0 <= length <= the length."""


def open_state(ex: Executor, roles: Roles, batch: int) -> StateStore:
    """The caches of a new generation of `batch` sequences: the one place that decides where they are kept."""
    return KeptState(roles, batch)


class KeptState:
    """Caches that come back as outputs and are fed again."""

    def __init__(self, roles: Roles, batch: int) -> None:
        self.length = 0
        self.wanted = tuple(c.present for c in roles.caches)
        self._grows = roles.capacity is None
        self._pasts = {c.present: c.past for c in roles.caches}
        self._held: dict[str, HostArray] = {
            c.past: np.zeros((batch, c.heads, roles.capacity or 0, c.size), c.dtype) for c in roles.caches
        }

    def feeds(self) -> dict[str, HostArray]:
        """The arrays as they came, cut to the length where they grow."""
        return self._held

    def advance(self, outputs: Mapping[str, Any], new: int) -> None:
        """Keep the presents as the next pasts."""
        self._held = {past: outputs[present] for present, past in self._pasts.items()}
        self.length += new

    def rewind(self, length: int) -> None:
        """A slice where caches grow; what a buffer holds behind the length is not looked at, and written over."""
        if self._grows and length != self.length:
            self._held = {name: held[:, :, :length] for name, held in self._held.items()}
        self.length = length
