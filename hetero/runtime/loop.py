"""Loop: a body that is run while a condition holds, at most a number of times. ONNX Loop-1…25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.program.program import Instruction, Program
from hetero.runtime.context import Context
from hetero.runtime.control_flow import IteratedFlow
from hetero.runtime.frames import Iteration, never_read
from hetero.runtime.slots import Slot
from hetero.runtime.stacking import Rows, empty_rows, symbols_of

_TRUE = np.array(True)
_TRUE.flags.writeable = False


class Loop(IteratedFlow):
    """By ONNX's text, the body's condition counts only where the node has a condition: with a trip count alone, that
    many iterations run whatever the body says. A Loop that has neither would never end by the text; its body's
    condition ends it here.
    """

    def __init__(
        self, instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
    ) -> None:
        super().__init__(instruction, context, depth, constants)
        body = self.bodies["body"].program
        self._n_carried = self.n_inputs - 2
        self._counts = not never_read(body, 0)
        has_trips, has_condition = self.op.present_inputs[:2]
        # An exporter's `for` hands the condition through: then there is nothing to read in each iteration.
        self._asks = (has_condition or not has_trips) and not _hands_on(body, body.outputs[0].slot, 1)
        present = (*self.op.present_outputs, *[False] * len(body.outputs))
        self._wanted = present[self._n_carried : len(body.outputs) - 1]

    def iteration(self, body: Program) -> Iteration:
        n_carried = self.n_inputs - 2
        formal = len(body.inputs) - body.n_captures
        steady = {1, *range(formal, len(body.inputs))}
        if never_read(body, 0):
            steady.add(0)
        return Iteration({1 + k: 2 + k for k in range(n_carried)}, frozenset(steady))

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        body = self.bodies["body"]
        n = self._n_carried
        self.check_count(body.program, n + 2)
        trips = None if inputs[0] is None else self.integer(inputs[0], "M")
        go = True if inputs[1] is None else self.boolean(inputs[1], "cond")
        ports = body.program.outputs
        scans = [
            Rows(self.provider, port) if w else None
            for port, w in zip(ports[1 + n :], self._wanted, strict=True)
        ]
        arguments = [np.array(0, np.int64), _TRUE, *inputs[2:]]
        k = 0
        try:
            while go and (trips is None or k < trips):
                if self._counts and k:
                    arguments[0] = np.array(k, np.int64)
                results = body.run(arguments)
                if self._asks:
                    go = self.boolean(results[0], ports[0].name)
                arguments[2 : 2 + n] = results[1 : 1 + n]
                for scan, value in zip(scans, results[1 + n :], strict=True):
                    if scan is not None:
                        scan.add(value)
                k += 1
            carried = self.carried(arguments[2 : 2 + n], inputs)
        finally:
            self.rest()
            self.statistics.body_runs += k
        return (*carried, *[self._stacked(scan, n + at, inputs) for at, scan in enumerate(scans)])

    def _stacked(self, scan: Rows | None, output: int, inputs: Sequence[Any]) -> Any:
        if scan is None:
            return None
        stacked = scan.stacked(0, "body")
        if stacked is not None:
            return stacked
        program = self.bodies["body"].program
        symbols = symbols_of(program, [(), (), *inputs[2:]])
        return empty_rows(self.provider, program.outputs[1 + output], 0, "body", symbols, self.types[output])


def _hands_on(body: Program, slot: int, position: int) -> bool:
    """Whether `slot` is the body's input at `position`, perhaps through Identity."""
    sources = {
        i.outputs[0]: i.inputs[0] for i in body.instructions if i.op.op_type == "Identity" and not i.op.domain
    }
    while slot in sources:
        slot = sources[slot]
    return slot == body.inputs[position].slot
