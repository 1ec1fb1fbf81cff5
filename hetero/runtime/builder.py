"""The builder: binds a section's instructions to memory, one by one, in execution order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hetero.errors import HeteroError
from hetero.kernels.base import Call, Compiled, KernelDef
from hetero.kernels.quiet import bare
from hetero.program.program import NO_SLOT, Dispatch, Instruction
from hetero.providers.base import Buffer, Provider
from hetero.runtime.analysis import keeps_handles
from hetero.runtime.arena import Lease, roomy
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.folding import Results, fold
from hetero.runtime.fused_run import bind_run
from hetero.runtime.operands import (
    UINT8,
    Gather,
    contiguous_copy,
    gatherer,
    has_blocks,
    make_contiguous,
    run_once,
)
from hetero.runtime.section import Key, Record, Section, Tail, located
from hetero.runtime.slots import NOTHING, Kind, Liveness, Slot
from hetero.runtime.tails import Publish, control_tail, dynamic_tail, late_tail, publisher
from hetero.types import ABSENT, Array, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner


class WaitsForWeightsError(HeteroError):
    """Binding would upload a weight, before anything runs."""


WORTH_OVERWRITING_BYTES = 2 << 10
"""Results from this size on are computed into a dying operand. Below it memory is not worth saving, and NumPy takes
half as long again for a small ufunc whose output is its input."""


class Builder:
    """Builds one section. With `call`, each call is made once as soon as it is bound: building is the first run.

    `before`: the slots of the step before, where shapes grow from step to step: what differs gets room to grow.
    """

    def __init__(
        self,
        runner: Runner,
        start: int,
        live: Liveness,
        lease: Lease,
        *,
        call: bool,
        before: Mapping[int, Slot] | None = None,
    ) -> None:
        self.runner = runner
        self.provider: Provider = runner.provider
        self.table = runner.table.values
        self.live = live
        self.lease = lease
        self.section = Section(start, lease, live)
        self.at = start
        self._call = call
        self._before = before
        self._taken: list[Buffer] = []
        self._in_place: dict[int, int] = {}

    def build(self) -> Section:
        """Bind from `start` to the end of the program or the first data-dependent instruction (its `tail` is set, but
        not run)."""
        instructions = self.runner.program.instructions
        section = self.section
        while self.at < len(instructions):
            instruction, start = instructions[self.at], self.at
            self._taken, self._in_place = [], {}
            with located(instruction, self.provider):
                # not the instruction's own calls: these stay if it is bound anew
                for fetch in self.runner.context.device_weights.ahead((self.runner, start)):
                    self._step(fetch, SeamReason.WEIGHT_PAGED)
                first = len(section.calls)
                stop = bind_run(self, self.runner.runs[start]) if start in self.runner.runs else start
                if stop == start:
                    section.tail = self._instruction(instruction, self.runner.analysis.kernels[start])
                    stop = start + 1
            last = len(section.calls)
            section.records.append(Record(start, stop, first, last, tuple(self._taken), self._in_place))
            self.at = stop
            if section.tail is not None:
                break
            for at in range(start, stop):
                self._bury(at)
        section.stop = self.at
        return section

    # -- one instruction -----------------------------------------------------------------------------------------
    def _instruction(self, instruction: Instruction, definition: KernelDef | None) -> Tail | None:
        slots = self.live.slots
        operands = [NOTHING if s == NO_SLOT else slots[s] for s in instruction.inputs]
        if instruction.dispatch is Dispatch.CONTROL:
            flow = self.runner.control_flow(self.at, operands)
            if not self.provider.is_host:  # bodies have constants of their own, uploaded where they use them
                own = flow.n_inputs
                operands[own:] = [
                    NOTHING if k in flow.constants else o for k, o in enumerate(operands[own:], own)
                ]
            self.section.tail_reason = SeamReason.HOST_CONTROL_FLOW
            return control_tail(flow, *self._ends(instruction, operands))
        if self.at in self.runner.appended and self._append(instruction, operands):
            return None
        folded = fold(self.runner, self.at, definition, operands)
        if folded is not None:
            self._define_folded(instruction, *folded)
            return None
        values = () if definition is None else definition.values
        missing = tuple(
            k
            for k in values
            if k < len(operands) and operands[k].value is None and operands[k].kind is not Kind.NOTHING
        )
        on_host = not self.provider.is_host and self.runner.on_host(self.at)
        specs = [o.known_spec() for o in operands]
        if missing or on_host:
            ends = self._ends(instruction, operands)
            self.section.tail_reason = SeamReason.UNKNOWN_OPERAND
            return late_tail(self.runner, self.at, specs, missing, *ends, on_host=on_host)
        compiled = self._compiled(specs)
        if compiled.run is not None:
            handles = compiled.reads is not None or keeps_handles(instruction)
            self.section.tail_reason = SeamReason.SEQUENCE if handles else SeamReason.DATA_DEPENDENT_SHAPE
            return dynamic_tail(self.provider, compiled, *self._ends(instruction, operands))
        if compiled.view is not None and self._view(instruction, operands, compiled):
            return None
        self._bind(instruction, operands, compiled)
        if compiled.accepts is not None:
            self.section.tolerant[self.at] = tuple(
                (instruction.inputs[k], partial(compiled.accepts, k)) for k in values if k < len(operands)
            )
        return None

    def _compiled(self, specs: Sequence[Spec]) -> Compiled:
        """The kernel of the instruction at hand for `specs`."""
        return self.runner.compile(self.at, self.provider, specs)

    def _bury(self, at: int) -> None:
        """Release what instruction `at` read or wrote for the last time."""
        for index in self.runner.analysis.dying[at]:
            slot = self.live.slots.get(index)
            if slot is not None and slot.volatile and self.runner.options.release_dead:
                self.runner.statistics.released += 1
                self._step(partial(self.table.__setitem__, index, None), SeamReason.CALLERS_MEMORY, at)
            buffer = self.live.kill(index)
            if buffer is not None:
                self.lease.release(buffer)

    def _step(self, call: Call, seam: SeamReason | None = None, at: int | None = None) -> None:
        if self._call:
            call()
        self.section.calls.append(call)
        self.section.seams.append(seam)
        self.section.nodes.append(self.at if at is None else at)

    def _define_folded(self, instruction: Instruction, kind: Kind, results: Results) -> None:
        for index, value in zip(instruction.outputs, results, strict=True):
            if index == NO_SLOT:
                continue
            if value is None:  # an empty optional
                self._define(index, Slot(Kind.NOTHING, ABSENT, index, False))
                continue
            spec = TensorSpec(value.dtype, value.shape)
            array = value if self.provider.is_host else None
            self._define(index, Slot(kind, spec, index, False, array, value))

    # -- operands ------------------------------------------------------------------------------------------------
    def _array(self, operand: Slot) -> Array | None:
        """The stable array of an operand on this provider (uploads a host value at its first use there)."""
        if operand.array is not None or operand.value is None:
            return operand.array
        if operand.kind is not Kind.CONSTANT:
            operand.array = self.provider.upload(operand.value)
            return operand.array
        weights = self.runner.context.device_weights
        if self.runner.preparing and not weights.is_here(operand.value):
            raise WaitsForWeightsError("a weight comes to its device with the first run", phase="prepare")
        array, fetch = weights.place(operand.value)
        if fetch is None:
            operand.array = array
        else:  # asked for again at each use
            self._step(fetch, SeamReason.WEIGHT_PAGED)
        return array

    def _gather(self, instruction: Instruction, operands: Sequence[Slot]) -> Gather:
        fixed = [None if o.volatile else self._array(o) for o in operands]
        moving = [
            (k, s) for k, (s, o) in enumerate(zip(instruction.inputs, operands, strict=True)) if o.volatile
        ]
        return gatherer(fixed, moving, self.table)

    def _ends(self, instruction: Instruction, operands: Sequence[Slot]) -> tuple[Gather, Publish]:
        """Where a tail takes its operands from, and where its results go."""
        return self._gather(instruction, operands), publisher(instruction, self.table)

    # -- layout --------------------------------------------------------------------------------------------------
    def _view(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> bool:
        """Define the outputs as views where the strides allow. False: compute them (a copy)."""
        base = operands[0]
        outputs = instruction.outputs
        escapes = any(map(self.runner.escapes, outputs, compiled.outputs))
        if base.volatile:
            self._volatile_view(instruction, operands, compiled)
            return True
        if escapes and base.kind in (Kind.OWNED, Kind.VIEW, Kind.BORROWED):
            return False  # the arena will reuse the memory under it, or the next iteration
        if base.array is None and self.runner.context.device_weights.is_paged(base.value):
            return False  # other weights take turns in that memory
        views = self.provider.view(compiled, [self._array(base), *[None] * (len(operands) - 1)])
        if views is None:
            return False
        constant = base.kind in (Kind.CONSTANT, Kind.KNOWN)
        for index, spec, view in zip(outputs, compiled.outputs, views, strict=True):
            if index == NO_SLOT or spec is None:
                continue
            kind = base.kind if constant else Kind.VIEW
            value = view if constant and self.provider.is_host else None
            self._define(index, Slot(kind, spec, base.owner, False, view, value))
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
        statistics = self.runner.statistics

        def step() -> None:
            inputs = [table[source], *others]
            views = provider.view(compiled, inputs)
            if views is None:  # these strides allow no view: a copy, into memory of its own
                views = run_once(provider, compiled, inputs)
                statistics.view_copies += 1
            for k, s, _ in places:
                table[s] = views[k]

        self._step(step, SeamReason.CALLERS_MEMORY)
        for _, s, spec in places:
            self._define(s, Slot(Kind.VIEW, spec, operands[0].owner, True))
        self.runner.statistics.views += 1

    # -- state ---------------------------------------------------------------------------------------------------
    def _append(self, instruction: Instruction, operands: Sequence[Slot]) -> bool:
        """Write the new rows behind those of a state, in its buffer. False where they are not its next rows."""
        state = self.runner.appended[self.at]
        (past, new), axis = operands, state.spec.axis
        if axis is None or not past.state or not isinstance(new.spec, TensorSpec):
            return False
        own, rows = state.spec.spec, new.spec.shape
        fits = len(rows) == len(own.shape) and rows[:axis] == own.shape[:axis]
        if not fits or rows[axis + 1 :] != own.shape[axis + 1 :] or new.spec.dtype != own.dtype:
            return False
        stop = state.length + rows[axis]
        target = state.rows(state.length, stop)
        if new.volatile:
            table, slot, provider = self.table, instruction.inputs[1], self.provider
            self._step(lambda: provider.copy(table[slot], target)(), SeamReason.CALLERS_MEMORY)
        else:
            source = self._array(new)
            assert source is not None, "a stable tensor has an array"
            on_host = self.provider.is_host
            call = state.appending(source) if on_host else self.provider.copy(source, target)
            self._step(call, SeamReason.GROWING_SYMBOL)
        index, value = instruction.outputs[0], state.first(stop)
        self._define(
            index, Slot(Kind.OWNED, TensorSpec(own.dtype, value.shape), index, False, value, state=True)
        )
        return True

    def _updated(
        self,
        instruction: Instruction,
        operands: Sequence[Slot],
        compiled: Compiled,
        output: int,
        spec: TensorSpec,
    ) -> Slot | None:
        """The state's own memory for an output that only adds to it, where it is read for the last time."""
        index = instruction.outputs[output]
        state = self.runner.kept.get(index)
        if state is None or state.spec.axis is not None:
            return None
        for k, o in compiled.updates:
            if o != output or k >= len(operands) or not operands[k].state or operands[k].spec != spec:
                continue
            if (
                operands[k].array is state.value()
                and instruction.inputs[k] in self.runner.analysis.dying[self.at]
            ):
                return Slot(Kind.OWNED, spec, index, False, operands[k].array, state=True)
        return None

    # -- kernels with known specs --------------------------------------------------------------------------------
    def _bind(self, instruction: Instruction, operands: Sequence[Slot], compiled: Compiled) -> None:
        escapes = [
            self.runner.escapes(index, spec)
            for index, spec in zip(instruction.outputs, compiled.outputs, strict=True)
        ]
        volatile = any(o.volatile for o in operands) or any(escapes)
        scratch: list[Buffer] = []
        grows = any(map(self._grows, instruction.inputs, [o.spec for o in operands]))
        workspace = self._scratch(compiled.workspace_bytes, scratch, grows)
        outputs: list[Array | None] = []
        fresh: list[tuple[int, int, TensorSpec]] = []
        taken: list[tuple[int, Slot, Buffer | None]] = []
        for k, (index, spec) in enumerate(zip(instruction.outputs, compiled.outputs, strict=True)):
            if index == NO_SLOT or not isinstance(spec, TensorSpec):
                outputs.append(None)
            elif escapes[k]:
                outputs.append(None)
                fresh.append((k, index, spec))
                taken.append((index, Slot(Kind.OWNED, spec, index, True), None))
            elif (pinned := self.runner.pinned(index, spec)) is not None:
                outputs.append(pinned)
                taken.append((index, Slot(Kind.OWNED, spec, index, False, pinned), None))
            elif (kept := self._updated(instruction, operands, compiled, k, spec)) is not None:
                outputs.append(kept.array)
                taken.append((index, kept, None))
            else:
                buffer = self._overwritten(instruction, operands, compiled, k, spec)
                if buffer is None:
                    buffer = self._take(spec.nbytes, grows=self._grows(index, spec))
                array = self.provider.array(buffer, spec)
                outputs.append(array)
                taken.append((index, Slot(Kind.OWNED, spec, index, False, array), buffer))
        if volatile:
            self._volatile_call(instruction, operands, compiled, outputs, fresh, workspace)
        else:
            inputs = [self._array(o) for o in operands]
            self._lay_out(operands, inputs, compiled, scratch, grows)
            seam = None if compiled.capture is None else SeamReason.KERNEL_OPTS_OUT
            self._step(bare(self.provider.bind(compiled, inputs, outputs, workspace)), seam)
        for buffer in scratch:
            self.lease.release(buffer)
        for index, slot, owned in taken:
            self._define(index, slot, owned)

    def _define(self, index: int, slot: Slot, buffer: Buffer | None = None) -> None:
        self.live.define(index, slot, buffer)
        if buffer is not None:
            self.section.buffers[index] = buffer

    def _take(self, nbytes: int, *, grows: bool = False) -> Buffer:
        buffer = self.lease.take(roomy(nbytes) if grows else nbytes)
        self._taken.append(buffer)
        return buffer

    def _grows(self, index: int, spec: Spec | None) -> bool:
        """Whether slot `index` was of another spec in the step before."""
        if self._before is None or index == NO_SLOT:
            return False
        old = self._before.get(index)
        return old is not None and old.spec != spec

    def _scratch(self, nbytes: int, scratch: list[Buffer], grows: bool) -> Array | None:
        if not nbytes:
            return None
        buffer = self._take(nbytes, grows=grows)
        scratch.append(buffer)
        return self.provider.array(buffer, TensorSpec(UINT8, (nbytes,)))

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
            buffer = self._reuse(index, spec.nbytes)
            if buffer is not None:
                return buffer
        return None

    def _reuse(self, index: int, nbytes: int) -> Buffer | None:
        """The buffer of the dying slot `index`, to compute a result of `nbytes` into, where nobody else has it."""
        if nbytes < WORTH_OVERWRITING_BYTES:
            return None
        operand, buffer = self.live.slots[index], self.live.sole_buffer(index)
        if buffer is None or not isinstance(operand.spec, TensorSpec) or operand.spec.nbytes != nbytes:
            return None
        del self.live.buffers[index]  # the result holds it now
        self._in_place[len(self._taken)] = index
        self._taken.append(buffer)
        self.runner.statistics.in_place += 1
        return buffer

    def _lay_out(
        self,
        operands: Sequence[Slot],
        inputs: list[Array | None],
        compiled: Compiled,
        scratch: list[Buffer],
        grows: bool,
    ) -> None:
        wanted = [(k, self.provider.is_contiguous) for k in compiled.contiguous]
        wanted += [
            (k, partial(has_blocks, self.provider, turned=k in compiled.turned)) for k in compiled.blocks
        ]
        for k, lies_well in wanted:
            array = inputs[k] if k < len(inputs) else None
            if array is None or lies_well(array):
                continue
            if operands[k].kind in (Kind.CONSTANT, Kind.KNOWN):
                inputs[k] = self._laid_out(operands[k], array)
            else:
                spec = TensorSpec(array.dtype, tuple(array.shape))
                buffer = self._take(spec.nbytes, grows=grows)
                scratch.append(buffer)
                inputs[k] = self.provider.array(buffer, spec)
                self._step(self.provider.copy(array, inputs[k]))
            self.runner.statistics.contiguous_copies += 1

    def _laid_out(self, operand: Slot, array: Array) -> Array:
        """The contiguous copy of a constant: made once, kept, and as constant as the original."""
        copy = operand.array = contiguous_copy(self.provider, array)
        if isinstance(copy, np.ndarray):
            copy.flags.writeable = False
        return copy

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
        contiguous = sorted(k for k in compiled.contiguous if k < len(operands))
        for k in contiguous:
            operand = operands[k]
            array = self._array(operand) if operand.kind in (Kind.CONSTANT, Kind.KNOWN) else None
            if array is not None and not self.provider.is_contiguous(array):
                self._laid_out(operand, array)
        gather, provider, table = self._gather(instruction, operands), self.provider, self.table
        stable = list(outputs)

        def step() -> None:
            inputs = gather()
            make_contiguous(provider, compiled, inputs)
            targets = list(stable)
            for k, s, spec in fresh:
                table[s] = targets[k] = provider.empty(spec)
            bare(provider.bind(compiled, inputs, targets, workspace))()

        self._step(step, SeamReason.CALLERS_MEMORY)
        self.runner.statistics.volatile_steps += 1

    # -- what comes after a tail ---------------------------------------------------------------------------------
    def enter(self, previous: Section, key: Key) -> None:
        """Define the outputs of the previous section's tail, and bury what it read last."""
        at = previous.stop - 1
        instruction = self.runner.program.instructions[at]
        for index, spec in zip(instruction.outputs, key, strict=False):
            if index == NO_SLOT:
                continue
            kind = Kind.OWNED if isinstance(spec, TensorSpec) else Kind.SEQUENCE
            self._define(index, Slot(kind if spec != ABSENT else Kind.NOTHING, spec, index, True))
        self._bury(at)
