"""Scan over the samples of a batch, each on its own. ONNX Scan-8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.errors import KernelError
from hetero.program.program import Instruction, Program
from hetero.runtime.context import Context
from hetero.runtime.control_flow import IteratedFlow
from hetero.runtime.frames import Iteration
from hetero.runtime.scan import listed, scanned
from hetero.runtime.slots import Slot
from hetero.runtime.stacking import Rows, empty_rows, symbols_of, take_at


class BatchedScan(IteratedFlow):
    """Iteration over slices of each sample of a batch, (batch, time, …) each scan input and (batch, …) each state.

    Scan outputs are zero past the end of a sample that is shorter than the others.
    """

    def __init__(
        self, instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
    ) -> None:
        super().__init__(instruction, context, depth, constants)
        self._n_scanned = scanned(self.op, self.n_inputs - 1)
        self._n_state = self.n_inputs - 1 - self._n_scanned
        self._reverse = listed(self.op, "directions", self._n_scanned)

    def iteration(self, body: Program) -> Iteration:
        n_state = self.n_inputs - 1 - scanned(self.op, self.n_inputs - 1)
        formal = len(body.inputs) - body.n_captures
        return Iteration({k: k for k in range(n_state)}, frozenset(range(formal, len(body.inputs))))

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        body, n_state = self.bodies["body"], self._n_state
        own, captures = inputs[1 : self.n_inputs], list(inputs[self.n_inputs :])
        self.check_count(body.program, len(own))
        states, sources = own[:n_state], own[n_state:]
        batch, time = self._extents(states, sources)
        ports = body.program.outputs
        finals = [Rows(self.provider, port, length=batch) for port in ports[:n_state]]
        scans = [Rows(self.provider, port, length=batch) for port in ports[n_state:]]
        shown: list[list[Any]] = [[] for _ in scans]
        try:
            for sample, length in enumerate(self._lengths(inputs[0], batch, time)):
                state = [take_at(self.provider, s, sample) for s in states]
                rows = [take_at(self.provider, s, sample) for s in sources]
                state, stacked = self._sample(state, rows, captures, length)
                for final, value in zip(finals, state, strict=True):
                    final.add(value)
                for parts, part in zip(shown, stacked, strict=True):
                    parts.append(part)
        finally:
            self.rest()
        for k, (scan, parts) in enumerate(zip(scans, shown, strict=True)):
            for part in self._padded(parts, time, n_state + k):
                scan.add(part)
        return (
            *[final.stacked(0, "body") if batch else s for final, s in zip(finals, states, strict=True)],
            *[
                scan.stacked(0, "body") if batch else self._empty(n_state + k, states, sources, batch, time)
                for k, scan in enumerate(scans)
            ],
        )

    def _sample(
        self, state: list[Any], rows: Sequence[Any], captures: Sequence[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        """One sample's final states, and its stacked scan outputs (None without iterations)."""
        body, n_state = self.bodies["body"], self._n_state
        scans = [Rows(self.provider, port, length=length) for port in body.program.outputs[n_state:]]
        for k in range(length):
            slices = [
                take_at(self.provider, row, length - 1 - k if r else k)
                for row, r in zip(rows, self._reverse, strict=True)
            ]
            self.statistics.body_runs += 1
            results = body.run([*state, *slices, *captures])
            state = results[:n_state]
            for scan, value in zip(scans, results[n_state:], strict=True):
                scan.add(value)
        return self.carried(state, ()), [scan.stacked(0, "body") for scan in scans]

    def _padded(self, parts: Sequence[Any], time: int, output: int) -> list[Any]:
        """The samples' scan outputs of `time` rows each, zero where a sample gave fewer."""
        first = next((p for p in parts if p is not None), None)
        if first is None:
            empty = self._empty(output, (), (), 1, time)
            shape, dtype = tuple(empty.shape[2:]), empty.dtype
        else:
            shape, dtype = tuple(first.shape[1:]), first.dtype
        padded = []
        for part in parts:
            rows = Rows(self.provider, self.bodies["body"].program.outputs[output], length=time)
            n = 0 if part is None else part.shape[0]
            for k in range(n):
                rows.add(take_at(self.provider, part, k))
            zero = self.provider.upload(np.zeros(shape, dtype))
            for _ in range(n, time):
                rows.add(zero)
            whole = rows.stacked(0, "body")
            padded.append(self.provider.upload(np.zeros((time, *shape), dtype)) if whole is None else whole)
        return padded

    def _empty(
        self, output: int, states: Sequence[Any], sources: Sequence[Any], batch: int, time: int
    ) -> Any:
        """Zeros (batch, time, …) for a scan output that no iteration shows."""
        body = self.bodies["body"].program
        shapes = [*[s.shape[1:] for s in states], *[s.shape[2:] for s in sources]]
        row = empty_rows(self.provider, body.outputs[output], 0, "body", symbols_of(body, shapes), None)
        return self.provider.upload(np.zeros((batch, time, *row.shape[1:]), row.dtype))

    def _extents(self, states: Sequence[Any], sources: Sequence[Any]) -> tuple[int, int]:
        shapes = [tuple(s.shape) for s in sources]
        if any(len(shape) < 2 for shape in shapes) or len({shape[:2] for shape in shapes}) != 1:
            raise KernelError(
                f"scan inputs must agree in their axes 0 (batch) and 1 (time), but are {shapes}"
            )
        batch, time = shapes[0][:2]
        for state in states:
            if tuple(state.shape)[:1] != (batch,):
                raise KernelError(f"a state of shape {list(state.shape)} does not fit a batch of {batch}")
        return int(batch), int(time)

    def _lengths(self, given: Any, batch: int, time: int) -> list[int]:
        if given is None:
            return [time] * batch
        host = self.host(given)
        if host.shape != (batch,) or not all(0 <= n <= time for n in host.tolist()):
            raise KernelError(
                f"must hold a length from 0 to {time} for each of {batch} samples, but is {host.tolist()}",
                operand="sequence_lens",
            )
        return [int(n) for n in host]
