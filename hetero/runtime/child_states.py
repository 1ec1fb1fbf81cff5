"""The states of one child: read when a step begins, proposed by what runs, settled when the next step begins."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero.errors import StateError
from hetero.program.program import Program
from hetero.providers.base import Provider
from hetero.runtime.runner import Runner
from hetero.runtime.state import NO_STEP, Resident, State, StateChange, StateSpec
from hetero.runtime.state_copy import StateCopy, copy_of
from hetero.types import HostArray, TensorSpec


class ChildStates:
    """What a child keeps between steps; false where that is nothing."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._by_input: dict[str, State] = {}
        self._by_output: dict[str, State] = {}
        self._withheld: frozenset[tuple[int, str]] = frozenset()
        self._copy: int | None = None
        """The number of the last copy."""

    def __bool__(self) -> bool:
        return bool(self._by_input)

    def bind(
        self, specs: Sequence[StateSpec], withheld: Iterable[tuple[int, str]], runners: Iterable[Runner]
    ) -> None:
        """Keep these from now on, and no others. Raises: StateError for a name that no program here has."""
        runners = list(runners)
        read = {p.name for r in runners for p in r.program.inputs}
        made = {p.name for r in runners for p in r.program.outputs}
        for spec in specs:
            if spec.input not in read or spec.output not in made:
                raise StateError(
                    f"{spec.input} and {spec.output} are not both here", device=self._provider.name
                )
        states = [State(self._provider, spec) for spec in specs]
        self._by_input = {s.spec.input: s for s in states}
        self._by_output = {s.spec.output: s for s in states}
        self._withheld = frozenset(withheld)
        self._copy = None
        for runner in runners:
            runner.bind_states(states)

    def change(self, change: StateChange) -> dict[str, HostArray]:
        """Between steps: what the last one proposed holds, and then `change`. Raises: StateError."""
        self.settle(NO_STEP)
        return change.apply(self._by_input)

    def copied(self, number: int, since: int | None) -> StateCopy:
        """Between steps: what the last one proposed holds, and is copied; only what has come since the copy numbered
        `since`, where that is the last one."""
        self.settle(NO_STEP)
        whole = since is None or since != self._copy
        self._copy = None  # none, should this fail
        copied = copy_of(self._by_input.values(), self._withheld, whole=whole)
        self._copy = number
        return copied

    def restore(self, copied: StateCopy, runners: Iterable[Runner]) -> None:
        """Keep what was copied, whole; buffers stay where they are as large. Raises: StateError as `bind`."""
        if tuple(state.sized() for state in self._by_input.values()) != copied.specs:
            self.bind(copied.specs, copied.withheld, runners)
        StateChange(reset=True, values=copied.values()).apply(self._by_input)

    # -- steps ---------------------------------------------------------------------------------------------------
    def settle(self, step: int) -> None:
        """`step` begins, or goes on: what another one proposed holds."""
        for state in self._by_input.values():
            state.settle(step)

    def enter(self, program: Program, values: dict[str, Any]) -> None:
        """Add to `values` what the program reads of them: what is read where it lies stands there as its spec."""
        known: dict[Hashable, TensorSpec] = {}
        for port in program.inputs:
            state = self._by_input.get(port.name)
            if state is not None:
                held = state.held(known)
                values[port.name] = state.value() if held is None else held

    def leave(self, step: int, program: Program, values: dict[str, Any], *, read: bool) -> None:
        """Take what the program has made of them; leave, where they are `read` from there, the values themselves in
        place of Resident."""
        last: tuple[Resident, State] | None = None
        for port in program.outputs:
            state, value = self._by_output.get(port.name), values[port.name]
            if state is None:
                continue
            shape = tuple(value.shape)
            if isinstance(value, Resident):
                if last is not None and value is last[0] and state.alike == last[1].alike is not None:
                    state.propose_as(last[1])
                else:
                    state.propose(step, shape)
                    last = value, state
                if read:
                    values[port.name] = self.real(port.name, value)
            else:
                state.propose(
                    step, shape, self._provider.upload(value) if isinstance(value, np.ndarray) else value
                )

    def real(self, name: str, value: Any) -> Any:
        """`value`, or what it stands for: a step's result, or what the step reads."""
        if isinstance(value, TensorSpec):
            return self._by_input[name].value()
        if not isinstance(value, Resident):
            return value
        state = self._by_output[name]
        axis = state.spec.axis
        return state.value() if axis is None else state.first(value.shape[axis])

    def stands_for(self, parcel: int, name: str, values: Mapping[str, Any]) -> Resident | None:
        """What leaves in a parcel instead of a value that only the executor would get."""
        if (parcel, name) not in self._withheld:
            return None
        value = values[name]
        return value if isinstance(value, Resident) else Resident(tuple(value.shape))

    def abandon(self, step: int) -> None:
        """The step failed: what it proposed never holds."""
        for state in self._by_input.values():
            state.abandon(step)

    def grown(self, error: StateError, runners: Iterable[Runner]) -> bool:
        """Whether the state that `error` found full may grow, and has. Calls that were bound to it are dropped."""
        state = self._by_output.get(error.operand or "")
        if state is None or not state.spec.elastic:
            return False
        state.grow()
        for runner in runners:
            runner.drop_sections()
        return True

    def clear(self) -> None:
        """Keep nothing."""
        self._by_input, self._by_output, self._withheld = {}, {}, frozenset()

    def statistics(self) -> dict[str, int]:
        """Bytes of the buffers, and bytes that were copied because they could not be made in place."""
        states = self._by_input.values()
        return {
            "state_bytes": sum(s.nbytes for s in states),
            "state_bytes_copied": sum(s.copied_bytes for s in states),
        }
