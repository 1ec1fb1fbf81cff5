"""If: one of two bodies; not run again while the condition and what the bodies capture stay. ONNX If-1…25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero.errors import KernelError
from hetero.program.program import Instruction
from hetero.runtime.context import Context
from hetero.runtime.control_flow import ControlFlow
from hetero.runtime.memo import Memo, deterministic
from hetero.runtime.slots import Slot


class If(ControlFlow):
    """Runs one branch."""

    def __init__(
        self, instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
    ) -> None:
        super().__init__(instruction, context, depth, constants)
        self._memo: Memo | None = None
        if self.options.memo_if_bytes and all(deterministic(b.program) for b in self.bodies.values()):
            captured = [k - self.n_inputs for k in self.constants if k >= self.n_inputs]
            self._memo = Memo(self.provider, frozenset(captured), self.options.memo_if_bytes)

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        branch = "then_branch" if self.boolean(inputs[0], "cond") else "else_branch"
        captured = inputs[self.n_inputs :]
        known = None if self._memo is None else self._memo.recall(branch, captured)
        if known is not None:
            self.statistics.if_memo_hits += 1
            return known
        self.statistics.body_runs += 1
        results = tuple(self.bodies[branch].run(captured))
        if len(results) != self.n_outputs:
            raise KernelError(
                f"{branch} yields {len(results)} values, but the node has {self.n_outputs} outputs"
            )
        if self._memo is not None:
            self._memo.remember(branch, captured, results)
        return results
