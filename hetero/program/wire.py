"""The wire form of programs: msgpack bytes, the same on every machine; decoding trusts nothing and ends in validate."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hetero.errors import ProgramError
from hetero.program.limits import MAX_DEPTH, MAX_VERSION
from hetero.program.operation import Operation
from hetero.program.packing import dumps, loads, pack_ints, unpack_ints
from hetero.program.program import Dispatch, Instruction, Port, Program, ShapeGuard, is_body
from hetero.program.validate import validate
from hetero.program.wire_values import (
    TableReader,
    TableWriter,
    as_bytes,
    as_int,
    as_list,
    as_str,
    decode_attribute,
    decode_type,
    encode_attribute,
    encode_type,
)

__all__ = ["decode", "decode_type", "encode", "encode_type", "pack_program", "unpack_program"]

MAGIC = b"hetero-program\x00"
VERSION = 1
_HEADER = struct.Struct("<H")
_DISPATCH = tuple(Dispatch)
_LIMIT = 2**31 - 1
"""Slots, indices and counts stay within 31 bits."""
_BODY, _BODIES = 100, 101
"""Attribute tags beside those of wire_values: one program, several programs."""


def encode(program: Program) -> bytes:
    """The program's bytes: header, format version, msgpack. Equal programs give equal bytes.

    Raises: ProgramError for what has no wire form (foreign attribute values, integers beyond 64 bits, damaged text).
    """
    return MAGIC + _HEADER.pack(VERSION) + dumps(pack_program(program))


def decode(data: bytes) -> Program:
    """The program that `encode` wrote; valid. `data` may come from anyone: memory stays within a constant factor of
    its length, and nothing in it is executed.

    Raises: ProgramError for anything malformed, truncated, oversized, unknown or invalid.
    """
    data = bytes(data)
    start = len(MAGIC) + _HEADER.size
    if len(data) < start or not data.startswith(MAGIC):
        raise ProgramError("these bytes are no program")
    (version,) = _HEADER.unpack_from(data, len(MAGIC))
    if version != VERSION:
        raise ProgramError(f"program format {version}, this release reads {VERSION}")
    program = unpack_program(loads(data[start:]))
    validate(program)
    return program


def pack_program(program: Program) -> list[Any]:
    """The program as plain lists for msgpack: a table of strings, a table of types, and the program over them."""
    tables = TableWriter()
    record = _encode_program(program, tables, 0)
    return [*tables.plain(), record]


def unpack_program(plain: object) -> Program:
    """The program that `pack_program` wrote, not yet validated.

    Raises: ProgramError for anything of the wrong form.
    """
    strings, types, record = as_list(plain, "program", 3)
    return _decode_program(record, TableReader(strings, types), 0)


def _encode_program(program: Program, tables: TableWriter, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise ProgramError(f"bodies nest deeper than {MAX_DEPTH}")
    rows = program.instructions
    operations: list[list[Any]] = []
    seen: dict[bytes, int] = {}
    kinds: list[int] = []
    for row in rows:
        record, shareable = _encode_operation(row.op, tables, depth)
        key = dumps(record) if shareable else None
        index = None if key is None else seen.get(key)
        if index is None:
            index = len(operations)
            operations.append(record)
            if key is not None:
                seen[key] = index
        kinds.append(index)
    return [
        tables.string(program.name),
        program.n_slots,
        program.n_captures,
        [[tables.string(domain), program.opsets[domain]] for domain in sorted(program.opsets)],
        *[_encode_ports(ports, tables) for ports in (program.inputs, program.constants, program.outputs)],
        [[tables.string(g.input), g.axis, g.dim] for g in program.guards],
        operations,
        pack_ints(kinds),
        pack_ints([tables.string(r.op.name) for r in rows]),
        pack_ints([_DISPATCH.index(r.dispatch) for r in rows]),
        pack_ints([r.node_index for r in rows]),
        *_ragged([r.inputs for r in rows]),
        *_ragged([r.outputs for r in rows]),
        *_ragged([tuple(tables.type(t) for t in r.types) for r in rows]),
        *_ragged([r.last_use for r in rows]),
    ]


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    return pack_ints([len(r) for r in rows]), pack_ints([int(v) for r in rows for v in r])


def _encode_ports(ports: Sequence[Port], tables: TableWriter) -> list[bytes]:
    return [
        pack_ints([tables.string(p.name) for p in ports]),
        pack_ints([p.slot for p in ports]),
        pack_ints([tables.type(p.type) for p in ports]),
    ]


def _encode_operation(op: Operation, tables: TableWriter, depth: int) -> tuple[list[Any], bool]:
    """The record of all but the name, and whether it is small enough to be compared with others'."""
    attributes = []
    shareable = True
    for key in sorted(op.attributes):
        value = op.attributes[key]
        one = isinstance(value, Program)
        if is_body(value):
            shareable = False
            members = [_encode_program(b, tables, depth + 1) for b in ((value,) if one else value)]
            attributes.append([tables.string(key), _BODY if one else _BODIES, members])
        else:
            attributes.append([tables.string(key), *encode_attribute(value, tables, key)])
    record = [
        tables.string(op.domain),
        tables.string(op.op_type),
        op.version,
        op.opset,
        op.n_captures,
        bytes(op.present_inputs),
        bytes(op.present_outputs),
        attributes,
    ]
    return record, shareable


def _decode_program(record: object, tables: TableReader, depth: int) -> Program:
    if depth > MAX_DEPTH:
        raise ProgramError(f"bodies nest deeper than {MAX_DEPTH}")
    name, n_slots, n_captures, opsets, inputs, constants, outputs, guards, operations, *columns = as_list(
        record, "program", 21
    )
    ops = [_decode_operation(o, tables, depth) for o in as_list(operations, "operations")]
    kinds = unpack_ints(columns[0], "operations")
    n = len(kinds)
    names = _column(columns[1], n, "names")
    dispatches = _column(columns[2], n, "dispatch")
    indices = _column(columns[3], n, "node indices")
    reads = _rows(columns[4], columns[5], n, "inputs")
    writes = _rows(columns[6], columns[7], n, "outputs")
    types = _rows(columns[8], columns[9], n, "types")
    flags = _rows(columns[10], columns[11], n, "last uses")
    instructions = []
    for k in range(n):
        if not 0 <= kinds[k] < len(ops):
            raise ProgramError(f"instruction {k}: operation {kinds[k]} of {len(ops)}")
        if not 0 <= dispatches[k] < len(_DISPATCH):
            raise ProgramError(f"instruction {k}: dispatch class {dispatches[k]} is unknown")
        if any(f not in (0, 1) for f in flags[k]):
            raise ProgramError(f"instruction {k}: a last-use flag must be 0 or 1")
        instructions.append(
            Instruction(
                _named(ops[kinds[k]], tables.string(names[k])),
                tuple(reads[k]),
                tuple(writes[k]),
                tuple([tables.type(t) for t in types[k]]),
                tuple([f == 1 for f in flags[k]]),
                indices[k],
                _DISPATCH[dispatches[k]],
            )
        )
    return Program(
        tables.string(name),
        tuple(instructions),
        _decode_ports(inputs, tables, "inputs"),
        _decode_ports(constants, tables, "constants"),
        _decode_ports(outputs, tables, "outputs"),
        as_int(n_slots, "slot count", 0, _LIMIT),
        tuple(_decode_guard(g, tables) for g in as_list(guards, "guards")),
        as_int(n_captures, "captures", 0, _LIMIT),
        _decode_opsets(opsets, tables),
    )


def _named(op: Operation, name: str) -> Operation:
    if op.name == name:
        return op
    return Operation(
        op.domain,
        op.op_type,
        op.version,
        op.attributes,
        op.present_inputs,
        op.present_outputs,
        op.n_captures,
        name,
        op.opset,
    )


def _decode_opsets(plain: object, tables: TableReader) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for pair in as_list(plain, "opsets"):
        domain, version = as_list(pair, "opset", 2)
        text = tables.string(domain)
        if text in opsets:
            raise ProgramError(f"opset {text!r} is listed twice")
        opsets[text] = as_int(version, "opset version", 0, MAX_VERSION)
    return opsets


def _decode_guard(plain: object, tables: TableReader) -> ShapeGuard:
    name, axis, dim = as_list(plain, "guard", 3)
    extent = as_str(dim, "guard") if isinstance(dim, str) else as_int(dim, "guard", 0)
    return ShapeGuard(tables.string(name), as_int(axis, "guard axis", 0, _LIMIT), extent)


def _decode_ports(plain: object, tables: TableReader, what: str) -> tuple[Port, ...]:
    names, slots, types = as_list(plain, what, 3)
    labels = unpack_ints(names, what)
    return tuple(
        Port(tables.string(n), s, tables.type(t))
        for n, s, t in zip(
            labels, _column(slots, len(labels), what), _column(types, len(labels), what), strict=True
        )
    )


def _column(data: object, size: int, what: str) -> list[int]:
    column = unpack_ints(data, what)
    if len(column) != size:
        raise ProgramError(f"{what}: {len(column)} entries for {size}")
    return column


def _rows(counts: object, flat: object, size: int, what: str) -> list[list[int]]:
    lengths = _column(counts, size, what)
    values = unpack_ints(flat, what)
    rows = []
    at = 0
    for length in lengths:
        if not 0 <= length <= len(values) - at:
            raise ProgramError(f"{what}: a row of {length} where {len(values) - at} entries remain")
        rows.append(values[at : at + length])
        at += length
    if at != len(values):
        raise ProgramError(f"{what}: {len(values) - at} entries belong to no instruction")
    return rows


def _decode_operation(plain: object, tables: TableReader, depth: int) -> Operation:
    domain, op_type, version, opset, n_captures, present_inputs, present_outputs, pairs = as_list(
        plain, "operation", 8
    )
    attributes: dict[str, Any] = {}
    for entry in as_list(pairs, "attributes"):
        key, tag, value = as_list(entry, "attribute", 3)
        name = tables.string(key)
        if name in attributes:
            raise ProgramError(f"attribute {name!r} is listed twice")
        if tag in (_BODY, _BODIES):
            bodies = tuple(_decode_program(b, tables, depth + 1) for b in as_list(value, name))
            if (len(bodies) != 1) if tag == _BODY else not bodies:
                raise ProgramError(f"attribute {name!r} holds {len(bodies)} bodies")
            attributes[name] = bodies[0] if tag == _BODY else bodies
        else:
            attributes[name] = decode_attribute(tag, value, tables, name)
    return Operation(
        tables.string(domain),
        tables.string(op_type),
        as_int(version, "version", 0, MAX_VERSION),
        attributes,
        _booleans(present_inputs),
        _booleans(present_outputs),
        as_int(n_captures, "captures", 0, _LIMIT),
        "",
        as_int(opset, "opset", 0, MAX_VERSION),
    )


def _booleans(plain: object) -> tuple[bool, ...]:
    data = as_bytes(plain, "operands")
    if data.strip(b"\x00\x01"):
        raise ProgramError("operands: present must be 0 or 1")
    return tuple([b == 1 for b in data])
