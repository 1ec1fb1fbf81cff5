"""The wire form of plans: msgpack bytes, the same on every machine; decoding trusts nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from hetero.errors import OptionError, PlanError, ProgramError
from hetero.planner.check import check_plan
from hetero.planner.options import pack_option, unpack_option
from hetero.planner.plan import Parcel, Partition, Placement, Plan, Rejection, Stage, Variant
from hetero.planner.transfers import transfers_of
from hetero.program.packing import dumps, loads, pack_ints, unpack_ints
from hetero.program.program import NO_SLOT, Port
from hetero.program.wire import pack_program, unpack_program
from hetero.program.wire_values import TableReader, TableWriter, as_int, as_list
from hetero.providers.base import ProviderConfig

MAGIC = b"hetero-plan\x00"
VERSION = 2
_HEADER = struct.Struct("<H")
_MOST = (1 << 63) - 1
_NO_STAGE = -1


def encode(plan: Plan) -> bytes:
    """The plan's bytes: header, format version, msgpack. Equal plans give equal bytes on every machine.

    `transfers` are not written: they follow from the parcels and the types.
    Raises: OptionError for provider options that are not plain data; PlanError for what has no wire form.
    """
    tables = TableWriter()
    try:
        record = [
            tables.string(plan.model),
            tables.string(plan.model_digest),
            [_encode_config(config, tables) for config in plan.providers],
            _encode_ports(plan.inputs, tables),
            _encode_ports(plan.outputs, tables),
            [[p.child, pack_program(p.program)] for p in plan.partitions],
            [
                [p.producer, pack_ints([tables.string(v) for v in p.values]), pack_ints(p.destinations)]
                for p in plan.parcels
            ],
            [pack_ints([tables.string(name) for name in names]) for names in plan.weights],
            _encode_placements(plan.placements, tables),
            [[s.number, s.child, s.time_ps, s.weight_bytes] for s in plan.stages],
            [
                [
                    tables.string(v.name),
                    [[tables.string(s), *bounds] for s, *bounds in v.when],
                    encode(v.plan),
                ]
                for v in plan.variants
            ],
        ]
        packed = dumps([*tables.plain(), *record], error=PlanError)
    except ProgramError as error:
        raise PlanError(
            f"the plan cannot be written: {error.message}", op=error.op, node=error.node
        ) from error
    return MAGIC + _HEADER.pack(VERSION) + packed


def decode(data: bytes, *, checked: bool = False) -> Plan:
    """The plan that `encode` wrote. `data` may come from anyone: memory stays within a constant factor of its length,
    nothing in it is executed, and every reference in it holds (see `check_plan`), which
    is taken for granted of bytes that are `checked`.

    Raises: PlanError for anything malformed, truncated, oversized, unknown or inconsistent.
    """
    try:
        plan = _decode(_unpacked(bytes(data)))
    except (ProgramError, OptionError) as error:
        raise PlanError(f"damaged plan: {error.message}", op=error.op, node=error.node) from error
    if not checked:
        check_plan(plan)
    return plan


def _unpacked(data: bytes) -> object:
    """What the bytes of a plan hold, as plain data. Raises: PlanError."""
    start = len(MAGIC) + _HEADER.size
    if len(data) < start or not data.startswith(MAGIC):
        raise PlanError("these bytes are no plan")
    (version,) = _HEADER.unpack_from(data, len(MAGIC))
    if version != VERSION:
        raise PlanError(f"plan format {version}, this release reads {VERSION}")
    plain: object = loads(data[start:], error=PlanError)
    return plain


def _decode(plain: object, *, variant: bool = False) -> Plan:
    strings, types, *record = as_list(plain, "plan", 13)
    if variant and record[-1]:  # said before it is looked into: plans in plans would go as deep as they like
        raise PlanError("a variant has variants")
    name, digest, configs, inputs, outputs, parts, parcels, weights, placements, stages, variants = record
    tables = TableReader(strings, types)
    providers = tuple(_decode_config(c, tables) for c in as_list(configs, "providers"))
    partitions = []
    for number, item in enumerate(as_list(parts, "partitions")):
        child, program = as_list(item, "partition", 2)
        index = as_int(child, "child", 0, len(providers) - 1)
        partitions.append(Partition(number, index, unpack_program(program)))
    parcel_list = []
    for number, item in enumerate(as_list(parcels, "parcels")):
        producer, values, destinations = as_list(item, "parcel", 3)
        parcel_list.append(
            Parcel(
                number,
                as_int(producer, "producer", -1, len(partitions) - 1),
                _texts(values, tables, "parcel"),
                tuple(
                    as_int(d, "destination", -1, len(providers) - 1)
                    for d in unpack_ints(destinations, "destinations")
                ),
            )
        )
    entries, results = _decode_ports(inputs, tables, "inputs"), _decode_ports(outputs, tables, "outputs")
    declared = {p.name: p.type for p in entries}
    for partition in partitions:
        declared.update((p.name, p.type) for p in partition.program.outputs)
    return Plan(
        tables.string(name),
        tables.string(digest),
        providers,
        entries,
        results,
        tuple(partitions),
        tuple(parcel_list),
        transfers_of(parcel_list, [p.child for p in partitions], declared),
        tuple(_texts(names, tables, "weights") for names in as_list(weights, "weights")),
        _decode_placements(placements, tables),
        tuple(_decode_stage(item, len(providers)) for item in as_list(stages, "stages")),
        tuple(_decode_variant(item, tables) for item in as_list(variants, "variants")),
    )


def _decode_variant(plain: object, tables: TableReader) -> Variant:
    name, when, data = as_list(plain, "variant", 3)
    bounds = []
    for item in as_list(when, "shapes"):
        symbol, least, most = as_list(item, "shape", 3)
        last = None if most is None else as_int(most, "most", 0, _MOST)
        bounds.append((tables.string(symbol), as_int(least, "least", 0, _MOST), last))
    if type(data) is not bytes:
        raise PlanError(f"a variant's plan is {type(data).__name__}, not bytes")
    return Variant(tables.string(name), tuple(bounds), _decode(_unpacked(data), variant=True))


def _decode_stage(plain: object, n_providers: int) -> Stage:
    number, child, time_ps, weight_bytes = as_list(plain, "stage", 4)
    return Stage(
        as_int(number, "stage", 0, _MOST),
        as_int(child, "child", 0, n_providers - 1),
        as_int(time_ps, "stage time", 0, _MOST),
        as_int(weight_bytes, "stage bytes", 0, _MOST),
    )


def _encode_config(config: ProviderConfig, tables: TableWriter) -> list[Any]:
    options = []
    for key, value in sorted(config.options, key=lambda item: item[0]):
        try:
            options.append([tables.string(key), pack_option(value)])
        except OptionError as error:
            raise error.at(operand=key, device=config.name) from error.__cause__
    return [
        tables.string(config.name),
        options,
        None if config.ops is None else _names(sorted(config.ops), tables),
        _names(sorted(config.except_ops), tables),
    ]


def _decode_config(plain: object, tables: TableReader) -> ProviderConfig:
    name, options, ops, except_ops = as_list(plain, "provider", 4)
    pairs = []
    for item in as_list(options, "options"):
        key, value = as_list(item, "option", 2)
        pairs.append((tables.string(key), unpack_option(value)))
    return ProviderConfig(
        tables.string(name),
        tuple(pairs),
        None if ops is None else frozenset(_texts(ops, tables, "ops")),
        frozenset(_texts(except_ops, tables, "except_ops")),
    )


def _encode_ports(ports: Sequence[Port], tables: TableWriter) -> list[bytes]:
    return [_names([p.name for p in ports], tables), pack_ints([tables.type(p.type) for p in ports])]


def _decode_ports(plain: object, tables: TableReader, what: str) -> tuple[Port, ...]:
    names, types = as_list(plain, what, 2)
    texts, kinds = _texts(names, tables, what), unpack_ints(types, what)
    if len(texts) != len(kinds):
        raise PlanError(f"{what}: {len(texts)} names for {len(kinds)} types")
    return tuple(Port(n, NO_SLOT, tables.type(k)) for n, k in zip(texts, kinds, strict=True))


def _names(names: Iterable[str], tables: TableWriter) -> bytes:
    return pack_ints([tables.string(name) for name in names])


def _texts(plain: object, tables: TableReader, what: str) -> tuple[str, ...]:
    return tuple([tables.string(index) for index in unpack_ints(plain, what)])


def _encode_placements(placements: Sequence[Placement], tables: TableWriter) -> list[Any]:
    """As columns; reasons for rejecting and paths, which are few, each in a table of their own."""
    rejections: dict[tuple[Rejection, ...], int] = {}
    paths: dict[tuple[str, ...], int] = {}
    columns = [
        pack_ints([p.node_index for p in placements]),
        _names([p.node for p in placements], tables),
        _names([p.op for p in placements], tables),
        _names([p.provider for p in placements], tables),
        _names([p.reason for p in placements], tables),
        pack_ints([rejections.setdefault(p.rejected, len(rejections)) for p in placements]),
        pack_ints([paths.setdefault(p.path, len(paths)) for p in placements]),
        pack_ints([_NO_STAGE if p.stage is None else p.stage for p in placements]),
    ]
    return [
        *columns,
        [_names([text for r in row for text in (r.provider, r.reason)], tables) for row in rejections],
        [_names(path, tables) for path in paths],
    ]


def _decode_placements(plain: object, tables: TableReader) -> tuple[Placement, ...]:
    *columns, rejection_rows, path_rows = as_list(plain, "placements", 10)
    rejections = []
    for row in as_list(rejection_rows, "rejections"):
        texts = _texts(row, tables, "rejections")
        if len(texts) % 2:
            raise PlanError("rejections: a provider without a reason")
        rejections.append(tuple(map(Rejection, texts[::2], texts[1::2])))
    paths = [_texts(row, tables, "paths") for row in as_list(path_rows, "paths")]
    indices, *text_columns = [unpack_ints(column, "placements") for column in columns]
    if any(len(column) != len(indices) for column in text_columns):
        raise PlanError("placements: columns of different lengths")
    found = []
    for index, node, op, provider, reason, rejected, path, stage in zip(indices, *text_columns, strict=True):
        if not (
            0 <= rejected < len(rejections) and 0 <= path < len(paths) and index >= 0 and stage >= _NO_STAGE
        ):
            raise PlanError("placements: an entry refers to nothing")
        found.append(
            Placement(
                index,
                tables.string(node),
                tables.string(op),
                tables.string(provider),
                tables.string(reason),
                rejections[rejected],
                paths[path],
                None if stage == _NO_STAGE else stage,
            )
        )
    return tuple(found)
