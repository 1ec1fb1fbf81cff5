"""`hetero plan`: how a model would be split, without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.errors import reported
from hetero.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from hetero.planner.plan import Plan


def plan(
    model: Annotated[Path, typer.Argument(help="An .onnx file.", show_default=False)],
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider", "-p", help="Best first; repeatable: cuda:0, sim:0, cpu. Default: what is here."
        ),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node with its reason.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print a Graphviz digraph.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a node is not on the first provider.")
    ] = False,
) -> None:
    """Show how MODEL is split over providers: what runs where, why, and what moves between them."""
    with reported():
        if as_json and dot:
            raise OptionError("--json and --dot exclude each other")
        from hetero.executor import plan as make_plan

        made = make_plan(model, provider or None, strict=strict)
        if as_json:
            typer.echo(json.dumps(as_data(made, nodes=nodes), indent=2, ensure_ascii=False))
        elif dot:
            typer.echo(made.to_dot(), nl=False)
        else:
            from rich.console import Console

            show(made, Console(highlight=False), nodes=nodes)


def as_data(made: Plan, *, nodes: bool) -> dict[str, Any]:
    """The plan as JSON data: providers, partitions, transfers, fallbacks; with `nodes`, every placement."""
    from hetero.planner.explain import edges, fallbacks, place_name

    data: dict[str, Any] = {
        "model": made.model,
        "digest": made.digest,
        "providers": [
            {
                "name": config.name,
                "nodes": sum(p.provider == config.name for p in made.placements),
                "partitions": [p.id for p in made.partitions if p.child == child],
                "weights": len(made.weights[child]),
            }
            for child, config in enumerate(made.providers)
        ],
        "partitions": [
            {
                "id": p.id,
                "provider": made.providers[p.child].name,
                "nodes": list(p.node_indices),
                "inputs": [port.name for port in p.program.inputs],
                "outputs": [port.name for port in p.program.outputs],
            }
            for p in made.partitions
        ],
        "transfers": [
            {
                "value": t.value,
                "from": place_name(made, t.source),
                "to": place_name(made, t.destination),
                "type": None if t.type is None else str(t.type),
                "bytes": t.nbytes,
            }
            for t in made.transfers
        ],
        "edges": [
            {
                "from": place_name(made, source),
                "to": place_name(made, destination),
                "values": values,
                "bytes": nbytes,
                "of_unknown_size": unknown,
            }
            for (source, destination), (values, nbytes, unknown) in edges(made).items()
        ],
        "fallbacks": [
            {
                "op": op,
                "provider": where,
                "reason": why,
                "count": len(members),
                "nodes": [m.node for m in members],
            }
            for op, where, why, members in fallbacks(made)
        ],
    }
    if nodes:
        data["nodes"] = [
            {
                "node": p.node,
                "op": p.op,
                "index": p.node_index,
                "path": list(p.path),
                "provider": p.provider,
                "reason": p.reason,
                "rejected": [{"provider": r.provider, "reason": r.reason} for r in p.rejected],
            }
            for p in made.placements
        ]
    return data


def show(made: Plan, console: Console, *, nodes: bool) -> None:
    """Tables of what runs where, what fell back, and what moves; then the nodes, if asked for."""
    from rich.table import Table
    from rich.text import Text

    from hetero.planner.explain import edge_text, edges, fallbacks, node_lines, place_name, printable

    console.print(Text(made.summary()))
    rows = fallbacks(made)
    if rows:
        table = Table(title=f"not on {made.providers[0].name}", title_justify="left")
        for heading in ("op", "nodes", "on", "reason"):
            table.add_column(heading, justify="right" if heading == "nodes" else "left", overflow="fold")
        for op, where, why, members in rows:
            table.add_row(Text(printable(op)), str(len(members)), Text(where), Text(printable(why)))
        console.print(table)
    table = Table(title="transfers per step", title_justify="left")
    for heading in ("from", "to", "what"):
        table.add_column(heading, overflow="fold")
    for (source, destination), counts in edges(made).items():
        table.add_row(Text(place_name(made, source)), Text(place_name(made, destination)), edge_text(*counts))
    console.print(table)
    if nodes:
        for line in node_lines(made):
            console.print(Text(printable(line)))
