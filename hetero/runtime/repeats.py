"""Repeats, the pure part: a product whose right factor the model repeats head by head becomes one instruction."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hetero.kernels.matmul_repeated import DOMAIN, OP_TYPE, Repeating
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program, marked
from hetero.types import DataType, TensorType

_DTYPES = frozenset({DataType.FLOAT, DataType.DOUBLE})


def share_repeats(program: Program) -> Program:
    """The program in which each MatMul reads what was there before Unsqueeze, Expand and Reshape repeated it (before a
    Transpose of the last two axes, perhaps), where nothing else reads what these make. Linear."""
    reads, makers = reads_of(program), makers_of(program)
    gone: set[int] = set()
    instructions = list(program.instructions)
    for at, product in enumerate(program.instructions):
        if not _is(product, "MatMul") or not _is_plain(product):
            continue
        steps: list[int] = []
        slot = product.inputs[1]
        for op_type in ("Transpose", "Reshape", "Expand", "Unsqueeze"):
            k = makers.get(slot)
            made = None if k is None else program.instructions[k]
            if k is None or made is None or not _is(made, op_type) or reads[slot] != 1:
                if op_type == "Transpose":
                    continue
                break
            if op_type == "Transpose" and not _turns(made.op):
                break
            steps.append(k)
            slot = made.inputs[0]
        else:
            instructions[at] = _one(product, [program.instructions[k] for k in reversed(steps)])
            gone.update(steps)
    if not gone:
        return program
    return numbered(program, [i for k, i in enumerate(instructions) if k not in gone])


def reads_of(program: Program) -> Counter[int]:
    """How often each slot is read, as an output too."""
    reads = Counter(s for i in program.instructions for s in i.inputs)
    reads.update(p.slot for p in program.outputs)
    return reads


def makers_of(program: Program) -> dict[int, int]:
    """Slot -> the instruction that makes it."""
    return {s: k for k, i in enumerate(program.instructions) for s in i.outputs if s != NO_SLOT}


def numbered(program: Program, instructions: list[Instruction]) -> Program:
    """The program with these instructions, over the slots that they still write."""
    written = [p.slot for p in (*program.inputs, *program.constants)]
    written += [s for i in instructions for s in i.outputs if s != NO_SLOT]
    numbers = {slot: k for k, slot in enumerate(sorted(written))} | {NO_SLOT: NO_SLOT}
    renumbered = [
        replace(
            i,
            inputs=tuple(numbers[s] for s in i.inputs),
            outputs=tuple(numbers[s] for s in i.outputs),
        )
        for i in instructions
    ]
    inputs, constants, outputs = (
        tuple(replace(p, slot=numbers[p.slot]) for p in ports)
        for ports in (program.inputs, program.constants, program.outputs)
    )
    return replace(
        program,
        instructions=marked(renumbered, {p.slot for p in outputs}),
        inputs=inputs,
        constants=constants,
        outputs=outputs,
        n_slots=len(written),
    )


def _is(instruction: Instruction, op_type: str) -> bool:
    op = instruction.op
    if op.domain or op.op_type != op_type or len(instruction.outputs) != 1:
        return False
    return len(instruction.inputs) == 2 or op_type in ("Transpose", "Unsqueeze")


def _is_plain(product: Instruction) -> bool:
    """Whether products are computed in the dtype of what is multiplied."""
    type_ = product.types[0]
    return isinstance(type_, TensorType) and type_.dtype in _DTYPES and NO_SLOT not in product.inputs


def _turns(op: Operation) -> bool:
    """Whether a Transpose exchanges the last two axes, and no others."""
    perm = tuple(op.attr("perm", ()))
    rank = len(perm)
    return rank > 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _one(product: Instruction, steps: list[Instruction]) -> Instruction:
    """The instruction that stands for all of these, of which `steps` are in their order."""
    unsqueeze, expand, reshape, *turn = steps
    repeating = Repeating(unsqueeze.op, expand.op, reshape.op, turn[0].op if turn else None, product.op)
    axes = unsqueeze.inputs[1] if len(unsqueeze.inputs) > 1 else NO_SLOT
    inputs = (product.inputs[0], unsqueeze.inputs[0], axes, expand.inputs[1], reshape.inputs[1])
    op = Operation(
        DOMAIN,
        OP_TYPE,
        1,
        {"repeating": repeating},
        tuple(s != NO_SLOT for s in inputs),
        name=product.op.name,
        opset=product.op.opset,
    )
    return replace(product, op=op, inputs=inputs, dispatch=Dispatch.LIBRARY)
