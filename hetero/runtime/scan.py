"""Scan: a body that is run for every slice of its scan inputs. ONNX Scan-9…25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero.errors import KernelError
from hetero.program.operation import Operation
from hetero.program.program import Instruction, Program
from hetero.runtime.context import Context
from hetero.runtime.control_flow import IteratedFlow
from hetero.runtime.frames import Iteration
from hetero.runtime.slots import Slot
from hetero.runtime.stacking import Rows, axis_in, empty_rows, symbols_of, take_at, with_axis
from hetero.types import SequenceValue


class Scan(IteratedFlow):
    """States and scan inputs to final states and stacked scan outputs."""

    def __init__(
        self, instruction: Instruction, context: Context, depth: int, constants: Mapping[int, Slot]
    ) -> None:
        super().__init__(instruction, context, depth, constants)
        self._n_scanned = scanned(self.op, self.n_inputs)
        self._n_state = self.n_inputs - self._n_scanned
        n_scans = len(self.bodies["body"].program.outputs) - self._n_state
        self._in_axes = listed(self.op, "scan_input_axes", self._n_scanned)
        self._in_reverse = listed(self.op, "scan_input_directions", self._n_scanned)
        self._out_axes = listed(self.op, "scan_output_axes", n_scans)
        self._out_reverse = listed(self.op, "scan_output_directions", n_scans)

    def iteration(self, body: Program) -> Iteration:
        n_state = self.n_inputs - scanned(self.op, self.n_inputs)
        formal = len(body.inputs) - body.n_captures
        return Iteration({k: k for k in range(n_state)}, frozenset(range(formal, len(body.inputs))))

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        body, n_state = self.bodies["body"], self._n_state
        self.check_count(body.program, self.n_inputs)
        sources = inputs[n_state : self.n_inputs]
        axes, length = self._length(sources)
        if length == 1 and self.options.inline_single_scan:
            return self._inlined(inputs, axes)
        ports = body.program.outputs[n_state:]
        scans = [
            Rows(self.provider, port, length=length, backwards=bool(r))
            for port, r in zip(ports, self._out_reverse, strict=True)
        ]
        arguments = list(inputs)
        done = 0
        try:
            for k in range(length):
                for s, (source, axis) in enumerate(zip(sources, axes, strict=True)):
                    at = length - 1 - k if self._in_reverse[s] else k
                    arguments[n_state + s] = take_at(self.provider, source, at, axis)
                done += 1
                results = body.run(arguments)
                arguments[:n_state] = results[:n_state]
                for scan, value in zip(scans, results[n_state:], strict=True):
                    scan.add(value)
            state = self.carried(arguments[:n_state], inputs)
        finally:
            self.rest()
            self.statistics.body_runs += done
        return (*state, *[self._stacked(scan, k, inputs, axes) for k, scan in enumerate(scans)])

    def _length(self, sources: Sequence[Any]) -> tuple[list[int], int]:
        """The scan axes, counted from the front, and the extent that all scan inputs have along theirs."""
        names = [p.name for p in self.bodies["body"].program.inputs[self._n_state :]]
        axes, lengths = [], []
        for source, axis, name in zip(sources, self._in_axes, names, strict=False):
            if source is None or isinstance(source, SequenceValue):
                raise KernelError(f"the scan input for {name!r} is no tensor", operand=name)
            axes.append(axis_in(axis, len(source.shape), "scan_input_axes", name))
            lengths.append(int(source.shape[axes[-1]]))
        if len(set(lengths)) != 1:
            named = ", ".join(f"{n!r}: {length}" for n, length in zip(names, lengths, strict=False))
            raise KernelError(f"scan inputs differ in length along their scan axes ({named})")
        return axes, lengths[0]

    def _inlined(self, inputs: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
        """One iteration, on views: nothing is sliced row by row, nothing stacked."""
        body, n_state = self.bodies["body"], self._n_state
        arguments = list(inputs)
        for k, axis in enumerate(axes, n_state):
            arguments[k] = take_at(self.provider, inputs[k], 0, axis)
        self.statistics.body_runs += 1
        self.statistics.scans_inlined += 1
        try:
            results = self.carried(body.run(arguments), [*inputs, *arguments])
        finally:
            self.rest()
        out: list[Any] = results[:n_state]
        for value, axis, port in zip(
            results[n_state:], self._out_axes, body.program.outputs[n_state:], strict=True
        ):
            if value is None or isinstance(value, SequenceValue):
                raise KernelError(f"scan output {port.name!r} is no tensor", operand=port.name)
            at = axis_in(axis, len(value.shape) + 1, "scan_output_axes", port.name)
            out.append(with_axis(self.provider, value, at))
        return tuple(out)

    def _stacked(self, scan: Rows, number: int, inputs: Sequence[Any], axes: Sequence[int]) -> Any:
        axis = self._out_axes[number]
        stacked = scan.stacked(axis, "scan_output_axes")
        if stacked is not None:
            return stacked
        body, n_state = self.bodies["body"].program, self._n_state
        shapes = [
            (*s.shape[:a], *s.shape[a + 1 :])
            for s, a in zip(inputs[n_state : self.n_inputs], axes, strict=True)
        ]
        symbols = symbols_of(body, [*inputs[:n_state], *shapes, *inputs[self.n_inputs :]])
        port, whole = body.outputs[n_state + number], self.types[n_state + number]
        return empty_rows(self.provider, port, axis, "scan_output_axes", symbols, whole)


def scanned(op: Operation, operands: int) -> int:
    """num_scan_inputs. Raises: KernelError where it is missing or out of range."""
    found = op.attr("num_scan_inputs")
    if not isinstance(found, int) or not 1 <= found <= operands:
        raise KernelError(
            f"num_scan_inputs must be from 1 to {operands}, but is {found}",
            op=op.id,
            node=op.name or None,
            operand="num_scan_inputs",
        )
    return found


def listed(op: Operation, name: str, count: int) -> tuple[int, ...]:
    """An attribute with one entry per scan input or output; zeros where it is missing or empty.

    Raises: KernelError where it has another length.
    """
    values = op.attr(name)
    if not values:
        return (0,) * count
    if len(values) != count:
        raise KernelError(
            f"{name} has {len(values)} entries for {count} values",
            op=op.id,
            node=op.name or None,
            operand=name,
        )
    return tuple(values)
