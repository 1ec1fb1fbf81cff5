"""Following: a section grows again as it grew before: what are twins is bound once for all of them.

Nothing of the section changes until everything is bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from hetero.errors import HeteroError, ProgramError
from hetero.kernels.base import Call
from hetero.kernels.quiet import bare
from hetero.kernels.shifting import numbers_of, same_code
from hetero.runtime.folding import KNOWN_LIMIT_BYTES
from hetero.runtime.operands import UINT8
from hetero.runtime.rebinding import FOLDED, Made, of_kernel, rebound
from hetero.runtime.regrowth import OutgrownError, Regrowth
from hetero.runtime.results import resident
from hetero.runtime.section import Section, Tail
from hetero.runtime.shape_arithmetic import evaluated
from hetero.runtime.shifts import Shifts, lie_alike
from hetero.runtime.slots import Kind, Slot
from hetero.runtime.twins import Step, Twins
from hetero.types import Array, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner


class _Above(dict[int, Slot]):
    """Slots that grew, above those of a section as it was; those of twins are made when they are asked for."""

    def __init__(self, section: Section, models: Mapping[int, int]) -> None:
        super().__init__()
        self._before = section.exit.every
        self._models = models

    def __missing__(self, index: int) -> Slot:
        before, of = self._before[index], self._models.get(index)
        model = None if of is None else self.get(of)
        if model is None:
            return before
        self[index] = made = Slot(
            model.kind, model.spec, before.owner, model.volatile, model.array, model.value, model.state
        )
        return made


class Following(Regrowth):
    """Takes a section over to other extents as `twins` says, once."""

    def __init__(self, runner: Runner, section: Section, twins: Twins) -> None:
        super().__init__(runner, section, _Above(section, twins.models))
        self._twins = twins
        self._shifts = Shifts()
        self._tail: Tail | None = section.tail
        self._calls: dict[int, Call] = {}
        self._bound_steps: list[Made] = []
        self._alike: list[int] = []
        self._shifted_steps: list[int] = []
        self._states: dict[Hashable, TensorSpec] = {}

    def follow(self, entry: Mapping[int, Slot]) -> bool:
        """Bind for the inputs in `entry` (by slot, without frames). False where what grows is not what grew."""
        kernels, before = self.runner.context.kernels, self._counts()
        kernels.passing = True
        try:
            self._enter(entry)
            if not self._changed <= self._twins.entry:
                return False
            self._lengthen()
            self._steps()
        except (OutgrownError, HeteroError):
            return False  # where it is an error, building from scratch raises it again
        finally:
            kernels.passing = False
            for name, count in before.items():
                setattr(self.runner.statistics, name, count)
        self._finish()
        self._enlist()
        return True

    def _lengthen(self) -> None:
        """The states' rows, with those that this step adds. Raises: StateError where there is no room for them."""
        every, known = self.live.every, self._states
        spec, like = None, None
        for index, state, rows in self._twins.lengthened:
            stop = state.length + rows
            if spec is None or like != (state.alike, stop):  # mostly they are all alike
                spec, like = state.spec_of(stop, known), (state.alike, stop)
            every[index] = Slot(Kind.OWNED, spec, index, False, state.first(stop), state=True)

    def _steps(self) -> None:
        """Bind anew as it was done last, once for all twins. Raises: OutgrownError, HeteroError."""
        every, twins, bound = self.live.every, self._twins, self._bound_steps
        for first, *others in twins.alike:
            spec = every[first].spec
            for index in others:
                other = every[index].spec
                if other is not spec and other != spec:  # mostly they are one
                    raise OutgrownError
        for k, step in enumerate(twins.steps):
            made = None
            if step.sibling is not None:
                model = bound[step.sibling]
                if k in twins.followers and self._shifted(k, twins.steps[step.sibling], model):
                    self._shifted_steps.append(k)
                    bound.append(model)
                    continue
                made = self._again(step, model)
                if made is not None:
                    self._alike.append(k)
            elif step.folds:
                made = self._evaluated(step)
            elif step.appends:
                made = self._appended(step)
            elif step.kind is not None:
                made = self._rebound(k, step)
            bound.append(self._one_by_one(step) if made is None else made)
            for call, numbers in zip(bound[-1].calls, step.calls, strict=True):
                for number in numbers:
                    self._calls[number] = call

    def _rebound(self, k: int, step: Step) -> Made | None:
        every, index, kernels = self.live.every, step.run[0].outputs[0], self._twins.kernels
        like = None if step.kernel is None else self._bound_steps[step.kernel]
        found = rebound(self.runner, every, step, like, kernels.get(k))
        if found is None:
            return None
        made, slot = found
        if made.kernel is not None and made.kernel.stretch is not None:
            kernels[k] = made.kernel
        if not step.steady:
            every[index] = slot
        elif every[index].spec != slot.spec:
            return None
        return made

    def _one_by_one(self, step: Step) -> Made:
        like = None if step.kernel is None else self._bound_steps[step.kernel]
        own = like is not None and like.kernel is not None and like.spec is like.kernel.outputs[0]
        end = self._bound(step.record, step.run, like.kernel if like is not None and own else None)
        self._tail = end if end is not None else self._tail
        if step.steady and not self._changed.isdisjoint(step.steady):
            raise OutgrownError
        every = self.live.every
        made = of_kernel(self._fresh, self._kernel)
        if step.leads:
            made.strides = [getattr(every[s].array, "strides", None) for s in step.reads]
        return made

    def _finish(self) -> None:
        """Take the section over: all steps are bound."""
        section, twins, statistics = self._old, self._twins, self.runner.statistics
        for name, count in twins.counted.items():
            setattr(statistics, name, getattr(statistics, name) + count)
        statistics.memo_shifted += len(self._shifts)
        self._shifts.apply()
        self._changed |= twins.grown
        results = section.results
        self._commit(self._calls, self._tail, [step.record for step in twins.steps], twins.shared)
        if results is not None and section.tail is None:
            slots = [section.exit.slots[index] for index in twins.results.values()]
            if all([slot.state for slot in slots]):  # noqa: C419 - as a list it takes half as long
                spec, result = None, None
                for k, slot in zip(twins.results, slots, strict=True):
                    if result is None or slot.spec is not spec:
                        spec, result = slot.spec, resident(slot)
                    results[k] = result
                section.results = results

    def _settle(self) -> None:
        every, grown = self._old.exit.every, self.live.every
        alone = self._old.tail is None  # else a section that comes after has these slots, too
        every.update(grown)
        for other, index in self._twins.models.items():
            if not alone:
                every[other] = grown[other]
            elif other not in grown:
                slot, model = every[other], grown[index]
                slot.kind, slot.spec, slot.volatile = model.kind, model.spec, model.volatile
                slot.array, slot.value, slot.state = model.array, model.value, model.state

    def _enlist(self) -> None:
        """Steps that follow their siblings from now on: those that did, and of those that were bound as their siblings
        are, all that can."""
        twins, calls = self._twins, self._old.calls
        for k in twins.followers.keys() - set(self._shifted_steps):
            del twins.followers[k]
        if not self.provider.is_host:
            return  # where calls that were enqueued may still read the numbers
        for k in self._alike:
            step = twins.steps[k]
            assert step.sibling is not None, "it was bound as a sibling"
            model = twins.steps[step.sibling]
            if len(step.calls) != 1 or len(model.calls) != 1:
                continue
            call = calls[step.calls[0][0]]
            definition, numbers = self.runner.analysis.kernels[step.record.start], numbers_of(call)
            if numbers is None or not same_code(call, calls[model.calls[0][0]]):
                continue
            if lie_alike(definition, step.reads, model.reads, self.live.every, twins.grown):
                twins.followers[k] = call, numbers

    def _shifted(self, k: int, sibling: Step, model: Made) -> bool:
        """Leave the call of step `k` as it is, but for the numbers that follow its sibling's, bound as `model`; False
        where it cannot be."""
        step, (call, numbers), kernel = self._twins.steps[k], self._twins.followers[k], model.kernel
        if kernel is None or len(model.calls) != 1:
            return False
        if not self._shifts.add(call, numbers, self._old.calls[sibling.calls[0][0]], model.calls[0]):
            return False
        if step.steady:
            return True
        spec, index = model.spec, step.run[0].outputs[0]
        assert isinstance(spec, TensorSpec), "it was told from what became of it"
        array = self.provider.array(step.record.buffers[-1], spec)
        self.live.every[index] = Slot(Kind.OWNED, spec, index, False, array)
        return True

    def check_shifted(self) -> None:
        """Raises: ProgramError where a call that followed another reads other numbers than one that is bound anew."""
        for k in self._shifted_steps:
            step = self._twins.steps[k]
            fresh = self._again(step, self._bound_steps[k])
            want = None if fresh is None else numbers_of(fresh.calls[0])
            got = numbers_of(self._old.calls[step.calls[0][0]])
            if want is None or got is None or want.tobytes() != got.tobytes():
                name = step.run[0].op.name or step.run[0].op.id
                raise ProgramError(f"{name} did not follow its sibling", device=self.provider.name)

    def _evaluated(self, step: Step) -> Made | None:
        """Fold an instruction as before; None where a kernel has to, or values are not known any more."""
        every, instruction = self.live.every, step.run[0]
        operands = [every[index] for index in step.reads]
        values = [o.value for o in operands]
        definition = self.runner.analysis.kernels[step.record.start]
        if definition is None:
            return None
        if not definition.metadata:
            for value in values:
                if value is None:
                    return None
        small = evaluated(instruction.op, [o.spec for o in operands], values)
        if small is None or small.nbytes > KNOWN_LIMIT_BYTES:
            return None
        index = instruction.outputs[0]
        if step.steady:
            old = every[index].value
            alike = old is not None and (old.dtype, old.shape) == (small.dtype, small.shape)
            return FOLDED if alike and old is not None and old.tobytes() == small.tobytes() else None
        small.flags.writeable = False
        array = small if self.provider.is_host else None
        every[index] = Slot(Kind.KNOWN, TensorSpec(small.dtype, small.shape), index, False, array, small)
        return FOLDED

    def _again(self, step: Step, model: Made) -> Made | None:
        """Bind an instruction as `model` was, which is alike but for where it lies; None where that may be wrong."""
        every, provider, kernel = self.live.every, self.provider, model.kernel
        if kernel is None or len(model.calls) > 1 or len(model.calls) != len(step.calls):
            return None
        inputs: list[Array] = []
        for index, strides in zip(step.reads, model.strides, strict=True):
            array = every[index].array
            if array is None or array.strides != strides:
                return None  # the strides say what can be a view, and what must be copied first
            inputs.append(array)
        (index,), spec = step.run[0].outputs, model.spec
        assert isinstance(spec, TensorSpec), "it was told from what became of it"
        if not model.calls:
            views = provider.view(kernel, inputs)
            if views is None:
                return None
            if not step.steady:
                every[index] = Slot(Kind.VIEW, spec, every[step.reads[0]].owner, False, views[0])
            return model
        workspace, buffers = None, step.record.buffers
        if model.workspace_bytes:
            workspace = provider.array(buffers[0], TensorSpec(UINT8, (model.workspace_bytes,)))
        output = provider.array(buffers[-1], spec)
        if not step.steady:
            every[index] = Slot(Kind.OWNED, spec, index, False, output)
        call = bare(provider.bind(kernel, inputs, [output], workspace))
        return Made([call], kernel, spec, model.workspace_bytes, model.strides)

    def _appended(self, step: Step) -> Made | None:
        """Bind an instruction that writes as many rows behind those of its state as before; None where it may not."""
        every, state = self.live.every, self.runner.appended[step.record.start]
        past, new = (every[index] for index in step.reads)
        if (
            not past.state
            or new.array is None
            or new.volatile
            or not self._changed.isdisjoint(step.reads[1:])
        ):
            return None
        axis = state.spec.axis
        assert axis is not None, "it was appended to"
        stop = state.length + new.array.shape[axis]
        index, target, value = step.run[0].outputs[0], state.rows(state.length, stop), state.first(stop)
        spec = TensorSpec(state.spec.spec.dtype, value.shape)
        every[index] = Slot(Kind.OWNED, spec, index, False, value, state=True)
        return Made([self.provider.copy(new.array, target)])
