"""If, Loop and Scan over body programs, which are bound once per signature and reused over iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import dynamic
from hetero.program.program import Instruction, Program
from hetero.runtime.runner import Runner
from hetero.types import TensorType, numpy_dtype

if TYPE_CHECKING:
    from hetero.providers.base import Provider
    from hetero.runtime.runner import Context


class ControlFlow(ABC):
    """One control-flow instruction of one child."""

    def __init__(self, instruction: Instruction, context: Context, depth: int) -> None:
        self.op = instruction.op
        self.provider: Provider = context.provider
        self.statistics = context.statistics
        self.n_outputs = len(instruction.outputs)
        self.n_inputs = len(instruction.inputs) - self.op.n_captures
        self.bodies = {name: Runner(body, context, depth) for name, body in self.op.bodies().items()}

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs for inputs (the node's own, then the captured values)."""

    def close(self) -> None:
        """Drop the bodies' sections."""
        for body in self.bodies.values():
            body.close()

    def body(self, name: str, inputs: Sequence[Any]) -> list[Any]:
        """Run a body once."""
        self.statistics.body_runs += 1
        return self.bodies[name].run(inputs)

    def program(self, name: str) -> Program:
        """The body's program."""
        return self.bodies[name].program

    def boolean(self, value: Any, what: str) -> bool:
        """A condition on the host. Raises: KernelError unless it is one boolean."""
        host = value if isinstance(value, np.ndarray | np.generic) else self.provider.download(value)
        if host.dtype != np.bool_ or host.size != 1:
            raise KernelError(
                f"{what} must be one boolean, but is {host.dtype}{list(host.shape)}", operand=what
            )
        return bool(host.reshape(-1)[0])

    def integer(self, value: Any, what: str) -> int:
        """A count on the host. Raises: KernelError unless it is one integer."""
        host = value if isinstance(value, np.ndarray | np.generic) else self.provider.download(value)
        if host.dtype.kind != "i" or host.size != 1:
            raise KernelError(
                f"{what} must be one int64, but is {host.dtype}{list(host.shape)}", operand=what
            )
        return int(host.reshape(-1)[0])

    def stack(self, parts: Sequence[Any], axis: int, program: Program, output: int) -> Any:
        """Scan outputs of all iterations along a new `axis`; an empty one of the declared type for none."""
        if parts:
            shapes = {tuple(p.shape) for p in parts}
            if len(shapes) > 1:
                raise KernelError(
                    f"scan output {program.outputs[output].name!r} changes its shape between iterations: "
                    f"{sorted(shapes)}",
                    operand=program.outputs[output].name,
                )
            return self.provider.run(dynamic(lambda arrays: (_stack(arrays, axis),)), list(parts))[0]
        extents, dtype = self.declared(program, output)
        axis = axis + len(extents) + 1 if axis < 0 else axis
        return self.provider.upload(np.empty((*extents[:axis], 0, *extents[axis:]), dtype))

    def declared(self, program: Program, output: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """(extents, dtype) of one iteration's scan output where no iteration shows them; unknown extents are 0."""
        declared = program.outputs[output].type
        if not isinstance(declared, TensorType) or declared.dtype is None:
            raise UnsupportedError(
                f"a loop of no iterations needs the declared type of scan output {program.outputs[output].name!r}",
                operand=program.outputs[output].name,
            )
        extents = tuple(d if isinstance(d, int) else 0 for d in declared.shape or ())
        return extents, numpy_dtype(declared.dtype)

    def slice_at(self, array: Any, index: int, axis: int) -> Any:
        """array[..., index, ...] along `axis`, as a view where the provider can."""
        return self.provider.run(dynamic(lambda arrays: (_at(arrays[0], index, axis),)), [array])[0]


def _stack(arrays: Sequence[Any], axis: int) -> Any:
    axis = axis + arrays[0].ndim + 1 if axis < 0 else axis
    extents = list(arrays[0].shape)
    extents.insert(axis, len(arrays))
    out = np.empty_like(arrays[0], shape=tuple(extents), order="C", subok=False)
    for k, part in enumerate(arrays):
        out[(slice(None),) * axis + (k,)] = part
    return out


def _at(array: Any, index: int, axis: int) -> Any:
    axis = axis + array.ndim if axis < 0 else axis
    return array[(slice(None),) * axis + (index, ...)]


class If(ControlFlow):
    """Runs one branch. ONNX If-1…25."""

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        branch = "then_branch" if self.boolean(inputs[0], "cond") else "else_branch"
        results = self.body(branch, inputs[1:])
        if len(results) != self.n_outputs:
            raise KernelError(
                f"{branch} yields {len(results)} values, but the node has {self.n_outputs} outputs"
            )
        return tuple(results)


class Loop(ControlFlow):
    """Counted and conditional iteration. ONNX Loop-1…25."""

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        program = self.program("body")
        n_carried = self.n_inputs - 2
        n_scans = len(program.outputs) - 1 - n_carried
        trips = None if inputs[0] is None else self.integer(inputs[0], "M")
        go = True if inputs[1] is None else self.boolean(inputs[1], "cond")
        carried, captures = list(inputs[2 : self.n_inputs]), list(inputs[self.n_inputs :])
        scans: list[list[Any]] = [[] for _ in range(n_scans)]
        k = 0
        while go and (trips is None or k < trips):
            results = self.body("body", [np.array(k, np.int64), np.array(go), *carried, *captures])
            go = self.boolean(results[0], "the body's condition")
            carried = results[1 : 1 + n_carried]
            for scan, value in zip(scans, results[1 + n_carried :], strict=True):
                scan.append(value)
            k += 1
        stacked = [
            self.stack(scan, 0, program, 1 + n_carried + n) if self._wanted(n_carried + n) else None
            for n, scan in enumerate(scans)
        ]
        return (*carried, *stacked)

    def _wanted(self, output: int) -> bool:
        return output < len(self.op.present_outputs) and self.op.present_outputs[output]


class Scan(ControlFlow):
    """Iteration over slices of the inputs. ONNX Scan-9…25."""

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        program = self.program("body")
        n_scan_inputs = int(self.op.attr("num_scan_inputs"))
        n_state = self.n_inputs - n_scan_inputs
        n_scans = len(program.outputs) - n_state
        in_axes = self.op.attr("scan_input_axes") or (0,) * n_scan_inputs
        in_reverse = self.op.attr("scan_input_directions") or (0,) * n_scan_inputs
        out_axes = self.op.attr("scan_output_axes") or (0,) * n_scans
        out_reverse = self.op.attr("scan_output_directions") or (0,) * n_scans
        state, captures = list(inputs[:n_state]), list(inputs[self.n_inputs :])
        sources = inputs[n_state : self.n_inputs]
        lengths = {int(s.shape[a]) for s, a in zip(sources, in_axes, strict=True)}
        if len(lengths) != 1:
            raise KernelError(f"scan inputs differ in length along their scan axes: {sorted(lengths)}")
        (length,) = lengths
        scans: list[list[Any]] = [[] for _ in range(n_scans)]
        for k in range(length):
            slices = [
                self.slice_at(s, length - 1 - k if r else k, a)
                for s, a, r in zip(sources, in_axes, in_reverse, strict=True)
            ]
            results = self.body("body", [*state, *slices, *captures])
            state = results[:n_state]
            for scan, value in zip(scans, results[n_state:], strict=True):
                scan.append(value)
        stacked = [
            self.stack(scan[::-1] if r else scan, a, program, n_state + n)
            for n, (scan, a, r) in enumerate(zip(scans, out_axes, out_reverse, strict=True))
        ]
        return (*state, *stacked)


class BatchedScan(ControlFlow):
    """Iteration over slices of each sample of a batch on its own, (batch, time, …) each operand. ONNX Scan-8.

    Scan outputs are zero past the end of a sample that is shorter than the others.
    """

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        program = self.program("body")
        n_scan_inputs = int(self.op.attr("num_scan_inputs"))
        own, captures = inputs[1 : self.n_inputs], list(inputs[self.n_inputs :])
        n_state = len(own) - n_scan_inputs
        states, sources = own[:n_state], own[n_state:]
        reverse = self.op.attr("directions") or (0,) * n_scan_inputs
        batch, time = self._extents(states, sources)
        finals: list[list[Any]] = [[] for _ in states]
        scans: list[list[list[Any]]] = [[] for _ in program.outputs[n_state:]]
        for sample, length in enumerate(self._lengths(inputs[0], batch, time)):
            state = [self.slice_at(s, sample, 0) for s in states]
            rows = [self.slice_at(s, sample, 0) for s in sources]
            for scan in scans:
                scan.append([])
            for k in range(length):
                at = [
                    self.slice_at(row, length - 1 - k if r else k, 0)
                    for row, r in zip(rows, reverse, strict=True)
                ]
                results = self.body("body", [*state, *at, *captures])
                state = results[:n_state]
                for scan, value in zip(scans, results[n_state:], strict=True):
                    scan[-1].append(value)
            for final, value in zip(finals, state, strict=True):
                final.append(value)
        return (
            *(
                self.stack(f, 0, program, n) if f else s
                for n, (f, s) in enumerate(zip(finals, states, strict=True))
            ),
            *(self._padded(scan, time, program, n_state + n) for n, scan in enumerate(scans)),
        )

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
        host = given if isinstance(given, np.ndarray) else self.provider.download(given)
        if host.shape != (batch,) or not all(0 <= n <= time for n in host.tolist()):
            raise KernelError(
                f"must hold a length from 0 to {time} for each of {batch} samples, but is {host.tolist()}",
                operand="sequence_lens",
            )
        return [int(n) for n in host]

    def _padded(self, samples: Sequence[Sequence[Any]], time: int, program: Program, output: int) -> Any:
        shown = next((part for sample in samples for part in sample), None)
        if shown is None:
            extents, dtype = self.declared(program, output)
            return self.provider.upload(np.zeros((len(samples), time, *extents), dtype))
        zero = None
        if any(len(sample) < time for sample in samples):
            zero = self.provider.upload(np.zeros(tuple(shown.shape), shown.dtype))
        rows = [
            self.stack([*sample, *[zero] * (time - len(sample))], 0, program, output) for sample in samples
        ]
        return self.stack(rows, 0, program, output)


_FLOWS: dict[str, type[ControlFlow]] = {"If": If, "Loop": Loop, "Scan": Scan}


def control_flow(instruction: Instruction, context: Context, depth: int) -> ControlFlow:
    """The runner of one instruction. Raises: UnsupportedError for an op that is no control flow we know."""
    op = instruction.op
    kind = _FLOWS.get(op.op_type) if op.domain == "" else None
    if kind is Scan and op.version < 9:
        kind = BatchedScan
    if kind is None:
        raise UnsupportedError(f"{op.id} carries graphs, but is no control flow known here")
    return kind(instruction, context, depth)
