"""Expert banks: weights that hold one part for each expert, where each part lies, and why some cannot be split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hetero.program.operation import Operation
from hetero.program.program import NO_SLOT, Dispatch, Instruction, Program
from hetero.types import HostArray, onnx_dtype

_BANKS: dict[str, frozenset[int]] = {
    "com.microsoft::MoE": frozenset(range(2, 8)),
    "com.microsoft::QMoE": frozenset((*range(2, 14), 15, 16, 17)),
}
"""Operands of which axis 0 counts experts: weights, biases, scales and zero points of the three layers."""
_STACKED_RANK = 3
"""From which on a tensor that is gathered from is a stack of matrices; below, a table of rows."""


class Whole(StrEnum):
    """Why a bank cannot be split into its experts' parts; the values are stable."""

    OTHER_READERS = "other-readers"
    """Something reads it as a whole."""
    RESULT = "result"
    """It is a result of the program."""
    AXIS_NOT_ZERO = "axis-not-zero"
    """It is gathered along another axis, so that an expert's elements lie apart."""
    EXPERTS_DIFFER = "experts-differ"
    """Its extent along axis 0 is not the number of experts that the node's first layer has."""
    PACKED_ACROSS_EXPERTS = "packed-across-experts"
    """Elements are smaller than a byte, and one byte holds elements of two experts."""
    NOT_CONTIGUOUS = "not-contiguous"
    """Its array is strided."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [offset_bytes, offset_bytes + nbytes) of a tensor, as ONNX stores it: one expert's."""

    expert: int
    offset_bytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExpertBank:
    """One bank. Exactly one of `regions` (in order, without gaps) and `whole` is there."""

    name: str
    experts: int
    nbytes: int
    regions: tuple[Region, ...]
    whole: Whole | None
    readers: tuple[str, ...]
    """The nodes that read it, as "domain::Op name"."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    op: Operation
    position: int
    experts: str | None
    """For a node of experts: the weight that tells how many there are."""


def expert_banks(programs: Iterable[Program], weights: Mapping[str, HostArray]) -> dict[str, ExpertBank]:
    """The banks among the constants of `programs` (bodies included), by name.

    A bank is read by MoE or QMoE of com.microsoft where these want one part for each expert, or has at least three
    axes and is read by Gather. Looks at the arrays of banks alone, and at no element. Linear in the programs.
    """
    readers: dict[str, list[_Reader]] = {}
    results: set[str] = set()
    for program in programs:
        _collect(program, {p.slot: p.name for p in program.constants}, readers, results)
    found: dict[str, ExpertBank] = {}
    for name, mine in readers.items():
        if any(r.experts is not None or _gathers(r) for r in mine):
            array = weights[name]
            routed = any(r.experts is not None for r in mine)
            if array.ndim and (routed or array.ndim >= _STACKED_RANK):
                found[name] = _bank(name, array, mine, weights, is_result=name in results)
    return found


def _collect(
    program: Program, names: dict[int, str], readers: dict[str, list[_Reader]], results: set[str]
) -> None:
    for instruction in program.instructions:
        bodies = _captured(instruction, names) if instruction.dispatch is Dispatch.CONTROL else {}
        own = len(instruction.inputs) - (instruction.op.n_captures if bodies else 0)
        for body, inner in bodies.items():
            _collect(body, inner, readers, results)
        places = _BANKS.get(instruction.op.id, frozenset())
        first = names.get(instruction.inputs[2]) if places and len(instruction.inputs) > 2 else None
        for k, slot in enumerate(instruction.inputs[:own]):
            name = None if slot == NO_SLOT else names.get(slot)
            if name is not None:
                experts = (first or name) if k in places else None
                readers.setdefault(name, []).append(_Reader(instruction.op, k, experts))
    results.update(names[p.slot] for p in program.outputs if p.slot in names)


def _captured(instruction: Instruction, names: Mapping[int, str]) -> dict[Program, dict[int, str]]:
    """The bodies of a control-flow instruction, with the weights that are there in their slots."""
    first = len(instruction.inputs) - instruction.op.n_captures
    found: dict[Program, dict[int, str]] = {}
    for body in instruction.op.bodies().values():
        inner = {p.slot: p.name for p in body.constants}
        formal = len(body.inputs) - body.n_captures
        for k, port in enumerate(body.inputs[formal:]):
            name = names.get(instruction.inputs[first + k])
            if name is not None:
                inner[port.slot] = name
        found[body] = inner
    return found


def _gathers(reader: _Reader) -> bool:
    return reader.op.id == "Gather" and reader.position == 0


def _bank(
    name: str, array: HostArray, readers: list[_Reader], weights: Mapping[str, HostArray], *, is_result: bool
) -> ExpertBank:
    experts = int(array.shape[0])
    bits = onnx_dtype(array.dtype).bitwidth
    each_bits = bits * (array.size // experts if experts else 0)
    whole = _why_whole(array, readers, weights, each_bits, is_result=is_result)
    each = each_bits // 8
    regions = () if whole is not None else tuple(Region(e, e * each, each) for e in range(experts))
    called = dict.fromkeys(f"{r.op.id} {r.op.name}".rstrip() for r in readers)
    return ExpertBank(name, experts, -(-bits * array.size // 8), regions, whole, tuple(called))


def _why_whole(
    array: HostArray,
    readers: list[_Reader],
    weights: Mapping[str, HostArray],
    each_bits: int,
    *,
    is_result: bool,
) -> Whole | None:
    if is_result:
        return Whole.RESULT
    if not all(r.experts is not None or _gathers(r) for r in readers):
        return Whole.OTHER_READERS
    for reader in readers:
        if reader.experts is None and int(reader.op.attr("axis", 0)) % array.ndim:
            return Whole.AXIS_NOT_ZERO
        if reader.experts is not None and weights[reader.experts].shape[0] != array.shape[0]:
            return Whole.EXPERTS_DIFFER
    if each_bits % 8:
        return Whole.PACKED_ACROSS_EXPERTS
    return None if array.flags.c_contiguous else Whole.NOT_CONTIGUOUS


def summary(banks: Mapping[str, ExpertBank]) -> dict[str, Any]:
    """For statistics: how many experts each bank is split into, or why it is not."""
    return {b.name: b.experts if b.whole is None else str(b.whole) for b in banks.values()}
