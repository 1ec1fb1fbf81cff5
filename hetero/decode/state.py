"""What a decoder remembers between steps: where the caches of keys and values are kept, and how they are cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hetero.decode.roles import Roles, Signature
from hetero.errors import StateError
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


class StatefulExecutor(Executor, Protocol):
    """An executor that keeps values between steps; a `hetero.HeterogeneousExecutor` is one."""

    def bind_state(self, pairs: Mapping[str, str], *, capacity: int | None = None) -> None:
        """Keep these values: input name -> the output that is its next value."""

    def rewind_state(self, length: int) -> None:
        """Forget rows from `length` on."""

    def reset_state(self) -> None:
        """Begin anew."""


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


class Tenancy:
    """Whose sequences the state of an executor holds: those of the generation that was begun last."""

    def __init__(self, ex: StatefulExecutor, roles: Roles) -> None:
        """Binds the caches. Raises: StateError."""
        ex.bind_state({c.past: c.present for c in roles.caches}, capacity=roles.capacity or roles.limit)
        self.ex = ex
        self.tenant: BoundState | None = None


class BoundState:
    """Caches that stay on the executor's children. A generation that begins takes them over from the one before."""

    wanted = ()

    def __init__(self, tenancy: Tenancy, roles: Roles) -> None:
        self.length = 0
        self._tenancy = tenancy
        self._grows = roles.capacity is None
        self._begun = False

    def feeds(self) -> dict[str, HostArray]:
        """Nothing: the caches are where they are read. Raises: StateError where another generation has them now."""
        if not self._begun:
            self._tenancy.ex.reset_state()
            self._tenancy.tenant, self._begun = self, True
        if self._tenancy.tenant is not self:
            raise StateError(
                "another generation has begun on this decoder, which keeps the caches of one; bound=False keeps more"
            )
        return {}

    def advance(self, outputs: Mapping[str, Any], new: int) -> None:
        """They are `new` steps longer."""
        self.length += new

    def rewind(self, length: int) -> None:
        """Caches that grow are cut; what a buffer holds behind the length is not looked at, and written over."""
        if self._grows and length != self.length:
            self._tenancy.ex.rewind_state(length)
        self.length = length


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
