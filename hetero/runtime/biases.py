"""Biases, the pure part: a product with a weight and the Add of a constant row to it become one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hetero.kernels.matmul_biased import DOMAIN, OP_TYPE, joins_bias
from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program
from hetero.runtime.repeats import numbered, reads_of
from hetero.types import DataType, TensorSpec, TensorType


def join_biases(program: Program, constants: Mapping[int, TensorSpec]) -> Program:
    """The program in which each MatMul by a constant matrix adds the constant row that an Add would, where nothing else
    reads the product; `constants`: specs by slot. Linear."""
    reads = reads_of(program)
    makers = {i.outputs[0]: k for k, i in enumerate(program.instructions) if _is(i, "MatMul")}
    instructions: list[Instruction | None] = list(program.instructions)
    for at, addition in enumerate(program.instructions):
        if not _is(addition, "Add"):
            continue
        for slot, row in (addition.inputs, addition.inputs[::-1]):
            k = makers.get(slot)
            product = None if k is None else program.instructions[k]
            if k is None or product is None or reads[slot] != 1:
                continue
            b, bias = constants.get(product.inputs[1]), constants.get(row)
            if b is not None and bias is not None and joins_bias(b, bias):
                instructions[k], instructions[at] = _one(product, addition, row), None
                break
    if None not in instructions:
        return program
    return numbered(program, [i for i in instructions if i is not None])


def _is(instruction: Instruction, op_type: str) -> bool:
    """Whether it is this operator of ONNX's, of float32 with both operands."""
    op, type_ = instruction.op, instruction.types[0] if instruction.types else None
    return (
        not op.domain
        and op.op_type == op_type
        and len(instruction.inputs) == 2
        and NO_SLOT not in (*instruction.inputs, *instruction.outputs)
        and isinstance(type_, TensorType)
        and type_.dtype == DataType.FLOAT
    )


def _one(product: Instruction, addition: Instruction, row: int) -> Instruction:
    """The instruction that stands for both: in the product's place, with the sum's result."""
    op = Operation(
        DOMAIN, OP_TYPE, 1, {"joined": True}, (True,) * 3, name=product.op.name, opset=product.op.opset
    )
    inputs = (*product.inputs, row)
    return replace(addition, op=op, inputs=inputs, dispatch=Dispatch.LIBRARY)
