"""Sections: instructions bound once for given specs, up to the next one whose result shapes depend on data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.errors import HeteroError, KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels.base import Call, Compiled, KernelDef
from hetero.kernels.quiet import bare
from hetero.program.program import NO_SLOT, Dispatch, Instruction
from hetero.providers.base import Buffer, Provider
from hetero.runtime.arena import Lease
from hetero.runtime.slots import NOTHING, Kind, Liveness, Slot
from hetero.types import ABSENT, Array, HostArray, SequenceSpec, SequenceValue, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

_KNOWN_LIMIT_BYTES = 64 << 10
"""Shape arithmetic is small; a larger value that follows from shapes (a mask, say) is computed like any other."""
_UINT8 = np.dtype(np.uint8)

Key = tuple[Spec, ...]
Tail = Callable[[], Key]


@dataclass(slots=True, eq=False)
class Section:
    """Bound calls for instructions [start, stop), the arena lease they live on, and what comes after.

    `nodes[k]` is the instruction that calls[k] belongs to. `tail` runs instruction stop - 1 where its result depends on
    data, and returns the specs of its outputs: the key of the next section. None at the end of the program.
    """

    start: int
    lease: Lease
    exit: Liveness
    stop: int = 0
    calls: list[Call] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    tail: Tail | None = None
    next: OrderedDict[Key, Section] = field(default_factory=OrderedDict)

    def close(self) -> None:
        """Give up its buffers and those of every section after it."""
        stack = [self]
        while stack:
            section = stack.pop()
            stack.extend(section.next.values())
            section.next.clear()
            section.calls.clear()
            section.lease.close()


def value_spec(value: Any) -> Spec:
    """The spec of a value that a data-dependent kernel returned."""
    if value is None:
        return ABSENT
    if isinstance(value, SequenceValue):
        return SequenceSpec(None)
    return TensorSpec(value.dtype, tuple(value.shape))


@contextmanager
def located(instruction: Instruction, provider: Provider) -> Iterator[None]:
    """Every error that leaves the block says on which node and device it happened."""
    try:
        yield
    except Exception as error:
        raise locate(error, instruction, provider) from error.__cause__


def locate(error: Exception, instruction: Instruction, provider: Provider) -> HeteroError:
    """`error` as one of ours, with node, op and device filled in."""
    where = {"node": instruction.op.name, "op": instruction.op.id, "device": provider.name}
    if isinstance(error, HeteroError):
        return error.at(**where)
    kind = MemoryLimitError if isinstance(error, MemoryError) else KernelError
    ours = kind(f"{type(error).__name__}: {error}").at(**where)
    ours.__cause__ = error
    return ours


class Builder:
    """Builds one section while running it: every call is made once as soon as it is bound."""

    def __init__(self, runner: Runner, start: int, live: Liveness, lease: Lease) -> None:
        self.runner = runner
        self.provider: Provider = runner.provider
        self.table = runner.table.values
        self.live = live
        self.lease = lease
        self.section = Section(start, lease, live)
        self.at = start

    def build(self) -> Section:
        """Bind and run from `start` to the end of the program or the first data-dependent instruction (its `tail`
        is set, but not run)."""
        instructions = self.runner.program.instructions
        section = self.section
        while self.at < len(instructions):
            instruction = instructions[self.at]
            with located(instruction, self.provider):
                section.tail = self._instruction(instruction, self.runner.analysis.kernels[self.at])
            self.at += 1
            if section.tail is not None:
                break
            self._bury(self.at - 1)
        section.stop = self.at
        return section

    # -- one instruction -----------------------------------------------------------------------------------------
    def _instruction(self, instruction: Instruction, definition: KernelDef | None) -> Tail | None:
        slots = self.live.slots
        operands = [NOTHING if s == NO_SLOT else slots[s] for s in instruction.inputs]
        if instruction.dispatch is Dispatch.CONTROL:
            return self._control(instruction, operands)
        if self._fold(instruction, definition, operands):
            return None
        values = () if definition is None else definition.values
        missing = tuple(
            k
            for k in values
            if k < len(operands) and operands[k].value is None and operands[k].kind is not Kind.NOTHING
        )
        on_host = not self.provider.is_host and self.runner.on_host(self.at)
        if missing or on_host:
            return self._late(instruction, operands, missing, on_host)
        compiled = self.runner.compile(self.at, self.provider, [self._spec(o) for o in operands])
        if compiled.run is not None:
            return self._dynamic(instruction, operands, compiled)
        if compiled.view is not None and self._view(instruction, operands, compiled):
            return None
        self._bind(instruction, operands, compiled)
        return None

    def _spec(self, operand: Slot) -> Spec:
        if operand.value is not None and isinstance(operand.spec, TensorSpec):
            return TensorSpec(operand.spec.dtype, operand.spec.shape, operand.value)
        return operand.spec

    def _bury(self, at: int) -> None:
        """Release what instruction `at` read or wrote for the last time."""
        for index in self.runner.analysis.dying[at]:
            slot = self.live.slots.get(index)
            if slot is not None and slot.volatile:
                self._step(partial(self.table.__setitem__, index, None), at)
            buffer = self.live.kill(index)
            if buffer is not None:
                self.lease.release(buffer)

    def _step(self, call: Call, at: int | None = None) -> None:
        call()
        self.section.calls.append(call)
        self.section.nodes.append(self.at if at is None else at)

    # -- folding -------------------------------------------------------------------------------------------------
    def _fold(self, instruction: Instruction, definition: KernelDef | None, operands: Sequence[Slot]) -> bool:
        runner = self.runner
        if not runner.options.fold_constants or (definition is not None and not definition.deterministic):
            return False
        metadata = definition is not None and definition.metadata
        present = [o for o in operands if o.kind is not Kind.NOTHING]
        if metadata:
            if not all(isinstance(o.spec, TensorSpec) for o in present):
                return False
        elif not all(o.value is not None for o in present):
            return False
        constant = not metadata and all(o.kind is Kind.CONSTANT for o in present)
        results = runner.folded.get(self.at) if constant else None
        if results is None:
            limit = runner.options.fold_limit_bytes if constant else _KNOWN_LIMIT_BYTES
            results = self._evaluate(operands, metadata, limit)
            if results is None:
                return False
            if constant:
                runner.folded[self.at] = results
        runner.statistics.folded += 1
        kind = Kind.CONSTANT if constant else Kind.KNOWN
        for index, value in zip(instruction.outputs, results, strict=True):
            if index == NO_SLOT:
                continue
            if value is None:  # an empty optional
                self.live.define(index, Slot(Kind.NOTHING, ABSENT, index, False))
                continue
            spec = TensorSpec(value.dtype, value.shape)
            array = value if self.provider.is_host else None
            self.live.define(index, Slot(kind, spec, index, False, array, value))
        return True

    def _evaluate(
        self, operands: Sequence[Slot], metadata: bool, limit_bytes: int
    ) -> tuple[HostArray | None, ...] | None:
        """The results on the host, or None where they are too large or no plain tensors."""
        runner = self.runner
        try:
            compiled = runner.compile(self.at, runner.host, [self._spec(o) for o in operands])
        except UnsupportedError:
            return None
        inputs = [None if metadata else o.value for o in operands]
        if compiled.run is not None:
            results = runner.host.run(compiled, inputs)
            if not all(r is None or isinstance(r, np.ndarray) for r in results):
                return None
            if sum(0 if r is None else r.nbytes for r in results) > limit_bytes:
                return None
        else:
            specs = [s if isinstance(s, TensorSpec) else None for s in compiled.outputs]
            if sum(0 if s is None else s.nbytes for s in specs) > limit_bytes:
                return None
            viewed = runner.host.view(compiled, inputs) if compiled.view is not None else None
            if viewed is not None:
                return viewed
            results = tuple(None if s is None else np.empty(s.shape, s.dtype) for s in specs)
            ready = [
                np.asarray(x, order="C") if x is not None and k in compiled.contiguous else x
                for k, x in enumerate(inputs)
            ]
            workspace = np.empty(compiled.workspace_bytes, np.uint8) if compiled.workspace_bytes else None
            runner.host.bind(compiled, ready, results, workspace)()
        for result in results:
            if result is not None:
                result.flags.writeable = False
        return results

    # -- operands ------------------------------------------------------------------------------------------------
    def _array(self, operand: Slot) -> Array | None:
        """The stable array of an operand on this provider (uploads a host value at its first use there)."""
        if operand.array is None and operand.value is not None:
            operand.array = self.provider.upload(operand.value)
        return operand.array

    def _gather(self, instruction: Instruction, operands: Sequence[Slot]) -> Callable[[], list[Any]]:
        """A function that lists the operands' arrays of the current run."""
        fixed = [None if o.volatile else self._array(o) for o in operands]
        moving = [
            (k, s) for k, (s, o) in enumerate(zip(instruction.inputs, operands, strict=True)) if o.volatile
        ]
        if not moving:
            return partial(list, fixed)
        table = self.table

        def gather() -> list[Any]:
            inputs = list(fixed)
            for k, s in moving:
                inputs[k] = table[s]
            return inputs

        return gather

    # -- layout --------------------------------------------------------------------------------------------------
    def _view(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> bool:
        """Define the outputs as views where the strides allow. False: compute them (a copy)."""
        base = operands[0]
        outputs = instruction.outputs
        escapes = not self.runner.analysis.escaping.isdisjoint(outputs)
        if base.volatile:
            self._volatile_view(instruction, operands, compiled)
            return True
        if escapes and base.kind in (Kind.OWNED, Kind.VIEW):
            return False  # the arena will reuse the memory under it
        views = self.provider.view(compiled, [self._array(base), *[None] * (len(operands) - 1)])
        if views is None:
            return False
        constant = base.kind in (Kind.CONSTANT, Kind.KNOWN)
        for index, spec, view in zip(outputs, compiled.outputs, views, strict=True):
            if index == NO_SLOT or spec is None:
                continue
            kind = base.kind if constant else Kind.VIEW
            value = view if constant and self.provider.is_host else None
            self.live.define(index, Slot(kind, spec, base.owner, False, view, value))
        self.runner.statistics.views += 1
        return True

    def _volatile_view(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> None:
        provider, table, source = self.provider, self.table, instruction.inputs[0]
        others = [None] * (len(operands) - 1)
        places = [
            (k, s, spec)
            for k, (s, spec) in enumerate(zip(instruction.outputs, compiled.outputs, strict=True))
            if s != NO_SLOT and isinstance(spec, TensorSpec)
        ]
        n_outputs, statistics = len(instruction.outputs), self.runner.statistics

        def step() -> None:
            inputs = [table[source], *others]
            views = provider.view(compiled, inputs)
            if views is None:  # these strides allow no view: a copy, into memory of its own
                made: list[Any] = [None] * n_outputs
                for k, _, spec in places:
                    made[k] = provider.empty(spec)
                provider.bind(compiled, inputs, made, None)()
                statistics.view_copies += 1
                views = tuple(made)
            for k, s, _ in places:
                table[s] = views[k]

        self._step(step)
        for _, s, spec in places:
            self.live.define(s, Slot(Kind.VIEW, spec, operands[0].owner, True))
        self.runner.statistics.views += 1

    # -- kernels with known specs --------------------------------------------------------------------------------
    def _bind(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> None:
        escaping = self.runner.analysis.escaping
        volatile = any(o.volatile for o in operands) or not escaping.isdisjoint(instruction.outputs)
        scratch: list[Buffer] = []
        workspace = self._scratch(compiled.workspace_bytes, scratch)
        outputs: list[Array | None] = []
        fresh: list[tuple[int, int, TensorSpec]] = []
        taken: list[tuple[int, Slot, Buffer | None]] = []
        for k, (index, spec) in enumerate(zip(instruction.outputs, compiled.outputs, strict=True)):
            if index == NO_SLOT or not isinstance(spec, TensorSpec):
                outputs.append(None)
            elif index in escaping:
                outputs.append(None)
                fresh.append((k, index, spec))
                taken.append((index, Slot(Kind.OWNED, spec, index, True), None))
            else:
                buffer = self._overwritten(instruction, operands, compiled, k, spec)
                if buffer is None:
                    buffer = self.lease.take(spec.nbytes)
                array = self.provider.array(buffer, spec)
                outputs.append(array)
                taken.append((index, Slot(Kind.OWNED, spec, index, False, array), buffer))
        if volatile:
            self._volatile_call(instruction, operands, compiled, outputs, fresh, workspace)
        else:
            inputs = [self._array(o) for o in operands]
            self._make_contiguous(operands, inputs, compiled, scratch)
            self._step(bare(self.provider.bind(compiled, inputs, outputs, workspace)))
        for buffer in scratch:
            self.lease.release(buffer)
        for index, slot, owned in taken:
            self.live.define(index, slot, owned)

    def _scratch(self, nbytes: int, scratch: list[Buffer]) -> Array | None:
        if not nbytes:
            return None
        buffer = self.lease.take(nbytes)
        scratch.append(buffer)
        return self.provider.array(buffer, TensorSpec(_UINT8, (nbytes,)))

    def _overwritten(
        self,
        instruction: Instruction,
        operands: Sequence[Slot],
        compiled: Compiled,
        output: int,
        spec: TensorSpec,
    ) -> Buffer | None:
        """The buffer of an input that dies here and may be overwritten by `output`."""
        if not self.runner.options.in_place:
            return None
        dying = self.runner.analysis.dying[self.at]
        for k, o in compiled.overwrites:
            if o != output or k >= len(operands):
                continue
            index, operand = instruction.inputs[k], operands[k]
            if operand.volatile or index not in dying or instruction.inputs.count(index) != 1:
                continue
            buffer = self.live.sole_buffer(index)
            if (
                buffer is None
                or not isinstance(operand.spec, TensorSpec)
                or operand.spec.nbytes != spec.nbytes
            ):
                continue
            del self.live.buffers[index]  # the output holds it now
            self.runner.statistics.in_place += 1
            return buffer
        return None

    def _make_contiguous(
        self, operands: Sequence[Slot], inputs: list[Array | None], compiled: Compiled, scratch: list[Buffer]
    ) -> None:
        for k in compiled.contiguous:
            array = inputs[k] if k < len(inputs) else None
            if array is None or self.provider.is_contiguous(array):
                continue
            spec = TensorSpec(array.dtype, tuple(array.shape))
            if operands[k].kind in (Kind.CONSTANT, Kind.KNOWN):  # copied once, kept
                inputs[k] = self.provider.empty(spec)
                self.provider.copy(array, inputs[k])()
                operands[k].array = inputs[k]
            else:
                buffer = self.lease.take(spec.nbytes)
                scratch.append(buffer)
                inputs[k] = self.provider.array(buffer, spec)
                self._step(self.provider.copy(array, inputs[k]))
            self.runner.statistics.contiguous_copies += 1

    def _volatile_call(
        self,
        instruction: Instruction,
        operands: Sequence[Slot],
        compiled: Compiled,
        outputs: Sequence[Array | None],
        fresh: Sequence[tuple[int, int, TensorSpec]],
        workspace: Array | None,
    ) -> None:
        """A step that binds anew in each run, because an operand's memory is not the same each time."""
        gather, provider, table = self._gather(instruction, operands), self.provider, self.table
        contiguous = sorted(k for k in compiled.contiguous if k < len(operands))
        stable = list(outputs)

        def step() -> None:
            inputs = gather()
            for k in contiguous:
                if inputs[k] is not None and not provider.is_contiguous(inputs[k]):
                    inputs[k] = contiguous_copy(provider, inputs[k])
            targets = list(stable)
            for k, s, spec in fresh:
                table[s] = targets[k] = provider.empty(spec)
            bare(provider.bind(compiled, inputs, targets, workspace))()

        self._step(step)
        self.runner.statistics.volatile_steps += 1

    # -- results that depend on data -----------------------------------------------------------------------------
    def _dynamic(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> Tail:
        gather, provider = self._gather(instruction, operands), self.provider
        publish = self._publisher(instruction)
        contiguous = sorted(compiled.contiguous)

        def tail() -> Key:
            inputs = gather()
            for k in contiguous:
                if inputs[k] is not None and not provider.is_contiguous(inputs[k]):
                    inputs[k] = contiguous_copy(provider, inputs[k])
            return publish(provider.run(compiled, inputs))

        return tail

    def _late(
        self, instruction: Instruction, operands: Sequence[Slot], missing: Sequence[int], on_host: bool
    ) -> Tail:
        """Compile in each run, when the values that decide the shapes are there (kernels come from the cache)."""
        gather, publish = self._gather(instruction, operands), self._publisher(instruction)
        runner, at, provider = self.runner, self.at, self.provider
        specs = [self._spec(o) for o in operands]
        target = runner.host if on_host else provider

        def tail() -> Key:
            inputs = gather()
            if on_host:
                inputs = [
                    x if x is None or isinstance(x, SequenceValue) else provider.download(x) for x in inputs
                ]
            known = list(specs)
            for k in missing:
                value = inputs[k] if on_host else provider.download(inputs[k])
                # a copy: kernels outlive the run, and the array may be the caller's
                known[k] = TensorSpec(value.dtype, value.shape, value.copy())
            results = run_once(target, runner.compile(at, target, known), inputs)
            if on_host:
                results = tuple(provider.upload(r) if isinstance(r, np.ndarray) else r for r in results)
            return publish(results)

        return tail

    def _control(self, instruction: Instruction, operands: Sequence[Slot]) -> Tail:
        gather, publish = self._gather(instruction, operands), self._publisher(instruction)
        flow = self.runner.control_flow(self.at)

        def tail() -> Key:
            return publish(flow.run(gather()))

        return tail

    def _publisher(self, instruction: Instruction) -> Callable[[Sequence[Any]], Key]:
        table, outputs = self.table, instruction.outputs

        def publish(results: Sequence[Any]) -> Key:
            for index, result in zip(outputs, results, strict=False):
                if index != NO_SLOT:
                    table[index] = result
            return tuple(value_spec(r) for r in results[: len(outputs)])

        return publish

    # -- what comes after a tail ---------------------------------------------------------------------------------
    def enter(self, previous: Section, key: Key) -> None:
        """Define the outputs of the previous section's tail, and bury what it read last."""
        at = previous.stop - 1
        instruction = self.runner.program.instructions[at]
        for index, spec in zip(instruction.outputs, key, strict=False):
            if index == NO_SLOT:
                continue
            kind = Kind.SEQUENCE if isinstance(spec, SequenceSpec) else Kind.OWNED
            self.live.define(index, Slot(kind if spec != ABSENT else Kind.NOTHING, spec, index, True))
        self._bury(at)


def contiguous_copy(provider: Provider, array: Array) -> Array:
    """A fresh contiguous copy."""
    copy = provider.empty(TensorSpec(array.dtype, tuple(array.shape)))
    provider.copy(array, copy)()
    return copy


def run_once(provider: Provider, compiled: Compiled, inputs: list[Any]) -> tuple[Any, ...]:
    """Run a compiled kernel over `inputs` into fresh outputs."""
    for k in compiled.contiguous:
        if k < len(inputs) and inputs[k] is not None and not provider.is_contiguous(inputs[k]):
            inputs[k] = contiguous_copy(provider, inputs[k])
    if compiled.run is not None:
        return provider.run(compiled, inputs)
    outputs = [provider.empty(s) if isinstance(s, TensorSpec) else None for s in compiled.outputs]
    workspace = None
    if compiled.workspace_bytes:
        workspace = provider.empty(TensorSpec(_UINT8, (compiled.workspace_bytes,)))
    provider.bind(compiled, inputs, outputs, workspace)()
    return tuple(outputs)
