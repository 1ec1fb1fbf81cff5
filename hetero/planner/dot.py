"""The plan as a Graphviz digraph: a cluster per provider, a box per partition, an edge per parcel and destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hetero.planner.explain import bytes_text
from hetero.planner.plan import CALLER, Parcel, Plan

_COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#e5e7eb")
_OPS_LISTED = 6
_VALUES_LISTED = 3


def to_dot(plan: Plan) -> str:
    """Text for `dot`. Names from the model are escaped: they can neither end a label nor start a statement."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield f"digraph {_quoted(plan.model)} {{"
    yield '  rankdir=TB; node [shape=box, style="rounded,filled", fontname="sans-serif"]; edge [fontname="sans-serif"];'
    yield '  caller_in [label="caller: inputs", shape=oval, fillcolor=white];'
    yield '  caller_out [label="caller: outputs", shape=oval, fillcolor=white];'
    for child, config in enumerate(plan.providers):
        mine = [p for p in plan.partitions if p.child == child]
        if not mine:
            continue
        yield f"  subgraph cluster_{child} {{"
        yield f'    label={_quoted(config.name)}; style="rounded"; color="#9ca3af";'
        for partition in mine:
            ops = Counter(i.op.id for i in partition.program.instructions)
            shown = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
            lines = [f"partition {partition.id}", *(f"{op} ×{n}" for op, n in shown[:_OPS_LISTED])]
            if len(shown) > _OPS_LISTED:
                lines.append("…")
            yield f'    p{partition.id} [label={_label(lines)}, fillcolor="{_COLOURS[child % len(_COLOURS)]}"];'
        yield "  }"
    readers = _readers(plan)
    sizes = {t.value: t.nbytes for t in plan.transfers}
    for parcel in plan.parcels:
        source = "caller_in" if parcel.producer == CALLER else f"p{parcel.producer}"
        for place in parcel.destinations:
            target = "caller_out" if place == CALLER else f"p{_first_reader(parcel, place, readers)}"
            yield f"  {source} -> {target} [label={_label(_parcel_lines(parcel, sizes))}];"
    for source_id, target_id in _resident(plan):
        yield f"  p{source_id} -> p{target_id} [style=dashed];"
    yield "}"


def _parcel_lines(parcel: Parcel, sizes: dict[str, int | None]) -> list[str]:
    lines = list(parcel.values[:_VALUES_LISTED])
    if len(parcel.values) > _VALUES_LISTED:
        lines.append(f"… {len(parcel.values) - _VALUES_LISTED} more")
    known = [sizes.get(v) for v in parcel.values]
    if all(n is not None for n in known):
        lines.append(bytes_text(sum(n for n in known if n is not None)))
    return lines


def _readers(plan: Plan) -> dict[tuple[str, int], int]:
    """(value, child) -> the first partition there that reads it."""
    found: dict[tuple[str, int], int] = {}
    for partition in plan.partitions:
        for port in partition.program.inputs:
            found.setdefault((port.name, partition.child), partition.id)
    return found


def _first_reader(parcel: Parcel, child: int, readers: dict[tuple[str, int], int]) -> int:
    return min(readers[v, child] for v in parcel.values)


def _resident(plan: Plan) -> list[tuple[int, int]]:
    """Pairs of partitions of one child, the later of which reads what the earlier left there."""
    maker = {port.name: p for p in plan.partitions for port in p.program.outputs}
    return sorted(
        {
            (maker[port.name].id, p.id)
            for p in plan.partitions
            for port in p.program.inputs
            if port.name in maker and maker[port.name].child == p.child
        }
    )


def _escaped(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\0", " ")
    )


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _label(lines: list[str]) -> str:
    return '"' + "\\n".join(_escaped(line) for line in lines) + '"'
