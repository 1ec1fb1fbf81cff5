"""Control-flow instructions: their bodies as runners of their own, and what If, Loop and Scan share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.program.program import Instruction, Program
from hetero.providers.base import Provider
from hetero.runtime.context import Context
from hetero.runtime.frames import Iteration
from hetero.runtime.operands import contiguous_copy
from hetero.runtime.runner import Runner
from hetero.runtime.slots import Slot
from hetero.runtime.stacking import described
from hetero.types import HostArray, SequenceValue


class ControlFlow(ABC):
    """One control-flow instruction of one child.

    `constants`: the operands (by position) that are constant. A body that captures one has it as a constant too, so
    that its kernels are bound to it once, and what follows from it is folded.
    """

    def __init__(
        self, instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
    ) -> None:
        self.op = instruction.op
        self.depth = depth
        self.types = instruction.types
        self.provider: Provider = context.provider
        self.options = context.options
        self.statistics = context.statistics
        self.n_outputs = len(instruction.outputs)
        self.n_inputs = len(instruction.inputs) - self.op.n_captures
        self.constants = frozenset(constants)
        self.bodies: dict[str, Runner] = {}
        for name, body in self.op.bodies().items():
            formal = len(body.inputs) - body.n_captures
            captured = {
                formal + k - self.n_inputs: slot for k, slot in constants.items() if k >= self.n_inputs
            }
            self.bodies[name] = Runner(body, context, depth, captured, self.iteration(body))

    def iteration(self, body: Program) -> Iteration | None:
        """How the body is iterated; None for one that is run once."""
        return None

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs for inputs (the node's own, then the captured values)."""

    def close(self) -> None:
        """Drop the bodies' sections."""
        for body in self.bodies.values():
            body.close()

    def host(self, value: Any) -> HostArray:
        """A small operand on the host."""
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        return self.provider.download(value)

    def boolean(self, value: Any, what: str) -> bool:
        """A condition on the host. Raises: KernelError unless it is one boolean."""
        if value is None or isinstance(value, SequenceValue):
            raise KernelError(f"{what} must be one boolean, but is {described(value)}", operand=what)
        host = self.host(value)
        if host.dtype != np.bool_ or host.size != 1:
            raise KernelError(
                f"{what} must be one boolean, but is {host.dtype}{list(host.shape)}", operand=what
            )
        return bool(host.item())

    def integer(self, value: Any, what: str) -> int:
        """A count on the host. Raises: KernelError unless it is one integer."""
        host = self.host(value)
        if host.dtype.kind != "i" or host.size != 1:
            raise KernelError(
                f"{what} must be one int64, but is {host.dtype}{list(host.shape)}", operand=what
            )
        return int(host.item())

    def check_count(self, body: Program, own: int) -> None:
        """Raises: KernelError unless the body takes `own` values besides what it captures."""
        formal = len(body.inputs) - body.n_captures
        if formal != own:
            raise KernelError(f"the body takes {formal} inputs, but {own} are passed", operand=body.name)


class IteratedFlow(ControlFlow):
    """A body that is run again and again, on what it returned: Loop and Scan."""

    def carried(self, values: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """The final state values as results: nothing that the body's next run overwrites, and, of a loop that no body
        encloses, none of the operands `given`, since what the caller passed may change later."""
        frames = self.bodies["body"].frames
        theirs = {id(v) for v in given if not isinstance(v, SequenceValue)} if self.depth == 1 else set()
        return [
            contiguous_copy(self.provider, v)
            if v is not None and (id(v) in theirs or (frames is not None and frames.lent(v)))
            else v
            for v in values
        ]

    def rest(self) -> None:
        """The iterations are over, or failed."""
        frames = self.bodies["body"].frames
        if frames is not None:
            frames.rest()
