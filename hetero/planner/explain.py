"""Explaining a plan in text: what fell back and why, what runs where, what moves; readable for huge graphs too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from hetero.planner.placement import GOES_WITH
from hetero.planner.plan import CALLER, LOST, Placement, Plan, Stage, Variant
from hetero.program.program import Port
from hetero.types import ValueType

_OPS_LISTED = 12
_NODES_LISTED = 5
_ROWS_LISTED = 200
"""Lines of one list; a longer one says how many it leaves out."""


def summary(plan: Plan) -> str:
    """Nodes and operations per provider, partitions, and what moves."""
    return "\n".join(map(printable, _summary(plan)))


def explain(plan: Plan, *, nodes: bool = False) -> str:
    """The summary, what has moved since a provider was lost, what is not on the preferred provider and why (grouped by
    operation and reason), stages, partitions in order, and transfers per edge; with `nodes`, a line per node too, those
    inside bodies indented."""
    sections = [_summary(plan), _fallbacks(plan), _partitions(plan), _transfers(plan)]
    if plan.stages:
        sections.insert(2, iter(("stages", *stage_lines(plan))))
    if any(r.reason == LOST for p in plan.placements for r in p.rejected):
        sections.insert(1, _degraded(plan))
    sections += [_variant(v) for v in plan.variants]
    if nodes:
        sections.append(iter(("nodes", *node_lines(plan))))
    return "\n\n".join("\n".join(map(printable, lines)) for lines in sections)


def place_name(plan: Plan, place: int) -> str:
    """The name of a child, or "caller"."""
    return "caller" if place == CALLER else plan.providers[place].name


def printable(text: str) -> str:
    """`text` with what could move a terminal's cursor or break a line written as an escape: names are the model's."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def bytes_text(nbytes: int) -> str:
    """A number of bytes for reading."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, 4)
    return f"{nbytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def _summary(plan: Plan) -> Iterator[str]:
    outer = [p for p in plan.placements if not p.path]
    inner = len(plan.placements) - len(outer)
    yield (
        f"plan of {plan.model!r}: {_count(len(outer), 'node')}"
        + (f" and {inner} inside bodies" if inner else "")
        + f", {_count(len(plan.partitions), 'partition')}, {_count(len(plan.transfers), 'transfer')}"
        + f" in {_count(len(plan.parcels), 'parcel')}"
    )
    for child, config in enumerate(plan.providers):
        mine = [p for p in plan.placements if p.provider == config.name]
        parts = sum(p.child == child for p in plan.partitions)
        if not mine:
            yield f"  {config.name}: no nodes"
            continue
        ops = Counter(p.op for p in mine).most_common()
        text = ", ".join(
            f"{op} ×{n}" if n > 1 else op for op, n in sorted(ops, key=lambda x: (-x[1], x[0]))[:_OPS_LISTED]
        )
        more = f", … ({_count(len(ops) - _OPS_LISTED, 'more op')})" if len(ops) > _OPS_LISTED else ""
        yield (
            f"  {config.name}: {_count(len(mine), 'node')} in {_count(parts, 'partition')}, "
            f"{_count(len(plan.weights[child]), 'weight')}: {text}{more}"
        )


def fallbacks(plan: Plan) -> list[tuple[str, str, str, list[Placement]]]:
    """(operation, provider it is on, why not the first provider, its nodes), most nodes first; without the nodes in
    bodies that merely go with the rest of the body."""
    groups: dict[tuple[str, str, str], list[Placement]] = defaultdict(list)
    for placement in plan.placements:
        if placement.rejected and not placement.rejected[0].reason.startswith(GOES_WITH):
            groups[placement.op, placement.provider, placement.rejected[0].reason].append(placement)
    rows = [(*key, members) for key, members in groups.items()]
    return sorted(rows, key=lambda row: (-len(row[3]), row[:3]))


def _degraded(plan: Plan) -> Iterator[str]:
    moved = Counter((r.provider, p.provider) for p in plan.placements for r in p.rejected if r.reason == LOST)
    yield "degraded"
    for (lost, home), count in moved.items():
        yield f"  {lost}: {LOST}; {_count(count, 'node')} now on {home}"


def _fallbacks(plan: Plan) -> Iterator[str]:
    rows = fallbacks(plan)
    first = plan.providers[0].name
    if not rows:
        yield f"every node is on the preferred provider {first}"
        return
    total = sum(bool(p.rejected) for p in plan.placements)
    along = total - sum(len(row[3]) for row in rows)
    note = f", {along} of them inside bodies that go as a whole" if along else ""
    yield f"not on the preferred provider {first}: {_count(total, 'node')}{note}"
    for op, provider, reason, members in rows[:_ROWS_LISTED]:
        names = ", ".join("/".join((*m.path, m.node)) for m in members[:_NODES_LISTED])
        more = ", …" if len(members) > _NODES_LISTED else ""
        yield f"  {op} ×{len(members)} on {provider}: {reason}  ({names}{more})"
        others = {tuple((r.provider, r.reason) for r in m.rejected[1:]) for m in members}
        if len(others) == 1:
            for name, why in others.pop():
                yield f"    {name}: {why}"
    yield from _left_out(len(rows))


def _variant(variant: Variant) -> Iterator[str]:
    """When the class holds, and its plan in short."""
    when = ", ".join(f"{symbol} = {_bounds(least, most)}" for symbol, least, most in variant.when)
    yield f"shape class {variant.name!r}, where {when}"
    for line in (*_summary(variant.plan), *stage_lines(variant.plan)):
        yield f"  {line}"


def _bounds(least: int, most: int | None) -> str:
    return str(least) if least == most else f"{least} to {'any' if most is None else most}"


def stage_rows(plan: Plan) -> list[tuple[Stage, int, int | None]]:
    """Each stage with how many nodes it has, and the bytes that its device holds (None: no limit)."""
    counts = Counter((p.stage, p.provider) for p in plan.placements if not p.path)
    limits = [dict(config.options).get("memory_limit_bytes") for config in plan.providers]
    return [(s, counts[s.number, plan.providers[s.child].name], limits[s.child]) for s in plan.stages]


def stage_lines(plan: Plan) -> Iterator[str]:
    """A line per stage: where it is, its nodes, its weights, its time."""
    for stage, nodes, limit in stage_rows(plan):
        of = "" if limit is None else f" of {bytes_text(limit)}"
        yield (
            f"  {stage.number}: {plan.providers[stage.child].name}, {_count(nodes, 'node')}, "
            f"{bytes_text(stage.weight_bytes)}{of} of weights, {time_text(stage.time_ps)}"
        )


def time_text(picoseconds: int) -> str:
    """A time for reading."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("µs", 10**6)):
        if picoseconds >= size:
            return f"{picoseconds / size:.3g} {unit}"
    return f"{picoseconds / 1000:.3g} ns"


def _partitions(plan: Plan) -> Iterator[str]:
    yield "partitions, in order"
    for partition in plan.partitions[:_ROWS_LISTED]:
        program = partition.program
        yield (
            f"  {partition.id}: {plan.providers[partition.child].name}, "
            f"{_count(len(program.instructions), 'node')}, "
            f"in ({_names(program.inputs)}), out ({_names(program.outputs)})"
        )
    yield from _left_out(len(plan.partitions))


def edges(plan: Plan) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(source, destination) -> values, bytes of those of known size, how many are of unknown size; sorted."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for t in plan.transfers:
        values, nbytes, unknown = found.get((t.source, t.destination), (0, 0, 0))
        found[t.source, t.destination] = (values + 1, nbytes + (t.nbytes or 0), unknown + (t.nbytes is None))
    return dict(sorted(found.items()))


def edge_text(values: int, nbytes: int, unknown: int) -> str:
    """One edge's counts for reading."""
    if unknown == values:
        return f"{_count(values, 'value')}, size unknown before the run"
    return f"{_count(values, 'value')}, {bytes_text(nbytes)}" + (
        f" and {unknown} of unknown size" if unknown else ""
    )


def _transfers(plan: Plan) -> Iterator[str]:
    yield "transfers per step"
    for (source, destination), counts in edges(plan).items():
        yield f"  {place_name(plan, source)} -> {place_name(plan, destination)}: {edge_text(*counts)}"


def node_lines(plan: Plan) -> Iterator[str]:
    """A line per node: where it is and why; those inside bodies indented under the node that has the body."""
    for p in plan.placements:
        why = "; ".join(f"not {r.provider}: {r.reason}" for r in p.rejected)
        yield (
            f"{'  ' * (1 + len(p.path))}{p.node} ({p.op}) {f'in {p.path[-1]} ' if p.path else ''}"
            f"on {p.provider}: {p.reason}" + (f" ({why})" if why else "")
        )


def _names(ports: tuple[Port, ...]) -> str:
    shown = [f"{port.name}: {_type(port.type)}" for port in ports[:_NODES_LISTED]]
    return ", ".join(shown) + (f", … {len(ports) - _NODES_LISTED} more" if len(ports) > _NODES_LISTED else "")


def _type(declared: ValueType | None) -> str:
    return "?" if declared is None else str(declared)


def _left_out(count: int) -> Iterator[str]:
    if count > _ROWS_LISTED:
        yield f"  … {count - _ROWS_LISTED} more"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
