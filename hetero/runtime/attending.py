"""Attending, the pure part: two products with shared heads, and what is done between them, become one instruction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hetero.kernels import attention_repeated, matmul_repeated
from hetero.kernels.attention_repeated import Attending
from hetero.kernels.matmul_repeated import Repeating
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program
from hetero.runtime.repeats import makers_of, numbered, reads_of


def join_attention(program: Program) -> Program:
    """The program in which scores of shared keys, a scale, a mask, Softmax and the product with shared values are one
    instruction, where nothing else reads what lies between. Linear."""
    readers, makers = reads_of(program), makers_of(program)
    gone: set[int] = set()
    instructions = list(program.instructions)
    for at, product in enumerate(program.instructions):
        values = _repeating(product)
        if values is None or values.turn is not None:
            continue
        found = _Chain(program, readers, makers, product.inputs[0]).walk()
        if found is not None:
            instructions[at] = _one(program, product, values, found)
            gone.update(found.steps)
    if not gone:
        return program
    return numbered(program, [i for k, i in enumerate(instructions) if k not in gone])


def _repeating(instruction: Instruction) -> Repeating | None:
    op = instruction.op
    if (op.domain, op.op_type) != (matmul_repeated.DOMAIN, matmul_repeated.OP_TYPE):
        return None
    steps = op.attr("repeating")
    return steps if isinstance(steps, Repeating) else None


@dataclass
class _Chain:
    """What makes the weights in `slot`, backwards from there; `steps` are its instructions."""

    program: Program
    readers: Counter[int]
    makers: dict[int, int]
    slot: int

    def __post_init__(self) -> None:
        self.steps: list[int] = []
        self.softmax: Operation | None = None
        self.mask: Operation | None = None
        self.mask_first = False
        self.mask_slot = self.scale_slot = NO_SLOT
        self.scale: Operation | None = None
        self.scores: Instruction | None = None

    def walk(self) -> _Chain | None:
        """Itself, where it goes back to a product with shared keys; else None."""
        softmax = self._maker(self.slot)
        if softmax is None or not _is_softmax(softmax.op):
            return None
        self._step(self.slot, softmax.inputs[0])
        self.softmax = softmax.op
        added = self._maker(self.slot)
        if added is not None and _is(added, "Add"):
            # of two operands the scores are the one that nothing else reads, and that comes from a product
            first, second = added.inputs
            self.mask_first = not self._leads_to_scores(first)
            self.mask, self.mask_slot = added.op, first if self.mask_first else second
            self._step(self.slot, second if self.mask_first else first)
        scaled = self._maker(self.slot)
        if scaled is not None and (_is(scaled, "Mul") or _is(scaled, "Div")):
            before, by = scaled.inputs
            if _is(scaled, "Mul") and self._product(before) is None:
                before, by = by, before
            self.scale, self.scale_slot = scaled.op, by
            self._step(self.slot, before)
        self.scores = self._product(self.slot)
        if self.scores is None:
            return None
        self._step(self.slot, NO_SLOT)
        return self

    def _step(self, slot: int, before: int) -> None:
        self.steps.append(self.makers[slot])
        self.slot = before

    def _maker(self, slot: int) -> Instruction | None:
        """What makes a slot that is read once."""
        k = self.makers.get(slot)
        if k is None or self.readers[slot] != 1:
            return None
        made = self.program.instructions[k]
        return made if len(made.outputs) == 1 and made.dispatch is not Dispatch.CONTROL else None

    def _product(self, slot: int) -> Instruction | None:
        made = self._maker(slot)
        steps = None if made is None else _repeating(made)
        return made if steps is not None and steps.turn is not None else None

    def _leads_to_scores(self, slot: int) -> bool:
        made = self._maker(slot)
        if made is None or not (_is(made, "Mul") or _is(made, "Div")):
            return self._product(slot) is not None
        return any(self._product(s) is not None for s in made.inputs)


def _is(instruction: Instruction, op_type: str) -> bool:
    op = instruction.op
    whole = len(instruction.inputs) == 2 and NO_SLOT not in instruction.inputs
    # of one slot twice, neither operand is the scores alone
    return (
        not op.domain and op.op_type == op_type and whole and instruction.inputs[0] != instruction.inputs[1]
    )


def _is_softmax(op: Operation) -> bool:
    """Whether it is along the last axis, which scores of heads have as their fourth."""
    if op.domain or op.op_type != "Softmax":
        return False
    return op.attr("axis", -1 if op.version >= 13 else 1) in (-1, 3)


def _one(program: Program, product: Instruction, values: Repeating, chain: _Chain) -> Instruction:
    """The instruction that stands for all of these; it takes the place of `product`."""
    scores, softmax = chain.scores, chain.softmax
    assert scores is not None, "the chain was walked to its end"
    assert softmax is not None, "it ends in Softmax"
    keys = _repeating(scores)
    assert keys is not None, "it begins with a product"
    attending = Attending(keys, chain.scale, chain.mask, chain.mask_first, softmax, values)
    query, key, *of_keys = scores.inputs
    _, value, *of_values = product.inputs
    inputs = (query, key, value, *of_keys, *of_values, chain.scale_slot, chain.mask_slot)
    op = Operation(
        attention_repeated.DOMAIN,
        attention_repeated.OP_TYPE,
        1,
        {"attending": attending},
        tuple(s != NO_SLOT for s in inputs),
        name=product.op.name,
        opset=product.op.opset,
    )
    return replace(product, op=op, inputs=inputs)
