"""What a child's programs read of weights on the device: which, in which order, and which of them must stay there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetero.errors import HeteroError
from hetero.program.program import NO_SLOT, Dispatch, Instruction
from hetero.runtime.analysis import keeps_handles
from hetero.runtime.folding import fold
from hetero.runtime.slots import NOTHING, Kind, Slot
from hetero.types import HostArray, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.runner import Runner

_FEW = 64
"""Elements up to which a vector of integers is taken to say something about shapes."""
Place = tuple["Runner", int]
"""An instruction of a runner."""


@dataclass(slots=True, eq=False)
class WeightUses:
    """Reads of weights in execution order, bodies in the place of the instruction that runs them (each once).

    `values`: a weight's host array by name; what folding derives from weights is one too, under the name of the node
    that it came from. `pinned`: read by what keeps its address (a view, a handle in a sequence, a result); and axes,
    shapes and the like, which mostly are read on the host alone and are too small to be worth a copy.
    """

    steps: list[tuple[str, ...]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    """Where each step is."""
    values: dict[str, HostArray] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)

    def name(self, value: HostArray, wanted: str) -> str:
        """The name of the weight that `value` is; `wanted` or one like it where it has none yet."""
        known = self._names.get(id(value))
        if known is None:
            small = value.ndim <= 1 and value.size <= _FEW and value.dtype.kind in "iub"
            known = wanted
            while known in self.values:
                known += "'"
            self._names[id(value)] = known
            self.values[known] = value
            if small:
                self.pinned.add(known)
        return known


def weight_uses(runners: Iterable[Runner]) -> WeightUses:
    """The reads of these programs, one after the other. Folds what follows from weights alone, on the host."""
    uses = WeightUses()
    for runner in runners:
        _Walk(uses, runner).run()
    return uses


class _Walk:
    """Through one program. `constants`: what is known of its slots; others depend on inputs."""

    def __init__(self, uses: WeightUses, runner: Runner) -> None:
        self.uses = uses
        self.runner = runner
        self.constants: dict[int, Slot] = dict(runner._constants)
        self.named: dict[int, str] = {p.slot: p.name for p in runner.program.constants}
        for k, slot in runner._fixed.items():
            port = runner.program.inputs[k]
            self.constants[port.slot] = slot
            self.named[port.slot] = port.name

    def run(self) -> None:
        for at, instruction in enumerate(self.runner.program.instructions):
            if instruction.dispatch is Dispatch.CONTROL:
                self._control(at, instruction)
            elif not self._folded(at, instruction):
                self._read(at, instruction)
        if self.runner.depth:  # whoever runs the body computes with what it returns
            self.uses.pinned.update(self._names(p.slot for p in self.runner.program.outputs))

    def _names(self, slots: Iterable[int]) -> tuple[str, ...]:
        """The weights in these slots."""
        found = []
        for slot in slots:
            constant = self.constants.get(slot)
            if constant is not None and constant.value is not None and constant.kind is Kind.CONSTANT:
                found.append(self.uses.name(constant.value, self.named[slot]))
        return tuple(dict.fromkeys(found))

    def _read(self, at: int, instruction: Instruction) -> None:
        names = self._names(instruction.inputs)
        if not names:
            return
        self.uses.steps.append(names)
        self.uses.places.append((self.runner, at))
        if instruction.dispatch in (Dispatch.VIEW, Dispatch.EXTENSION) or keeps_handles(instruction):
            self.uses.pinned.update(names)

    def _control(self, at: int, instruction: Instruction) -> None:
        formal = len(instruction.inputs) - instruction.op.n_captures
        own = self._names(instruction.inputs[:formal])
        self.uses.pinned.update(own)
        self.uses.steps.append(own)  # none as a rule; it stands between the reads around it all the same
        self.uses.places.append((self.runner, at))
        flow = self.runner.control_flow(at, [self.constants.get(s, NOTHING) for s in instruction.inputs])
        for body in flow.bodies.values():
            _Walk(self.uses, body).run()

    def _folded(self, at: int, instruction: Instruction) -> bool:
        """Define the results of an instruction that is folded, as the builder will."""
        slots = [s for s in instruction.inputs if s != NO_SLOT]
        if not all(s in self.constants for s in slots):
            return False
        operands = [NOTHING if s == NO_SLOT else self.constants[s] for s in instruction.inputs]
        results = None
        with suppress(HeteroError):  # which belongs to a step
            results = fold(self.runner, at, self.runner.analysis.kernels[at], operands)
        if results is None:
            return False
        kind, values = results
        for index, value in zip(instruction.outputs, values, strict=True):
            if index != NO_SLOT and value is not None:
                spec = TensorSpec(value.dtype, value.shape)
                self.constants[index] = Slot(kind, spec, index, False, None, value)
                self.named[index] = f"{instruction.op.name or instruction.op.id}#{index}"
        return True
