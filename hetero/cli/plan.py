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
    stages: Annotated[
        str | None,
        typer.Option(
            help="auto: balanced pipeline stages over all instances of the first provider's kind; "
            "model: as the model's own device configuration says."
        ),
    ] = None,
    configuration: Annotated[
        str | None, typer.Option(help="The model's device configuration to follow, where it has several.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=PROVIDER: put nodes whose name matches the glob there; repeatable."),
    ] = None,
) -> None:
    """Show how MODEL is split over providers: what runs where, why, and what moves between them."""
    with reported():
        if as_json and dot:
            raise OptionError("--json and --dot exclude each other")
        from hetero.executor import plan as make_plan

        chosen: Any = stages  # a text from outside: planning says what it may be
        made = make_plan(
            model,
            provider or None,
            strict=strict,
            stages=chosen,
            configuration=configuration,
            overrides=_overrides(override or []),
        )
        if as_json:
            typer.echo(json.dumps(as_data(made, nodes=nodes), indent=2, ensure_ascii=False))
        elif dot:
            typer.echo(made.to_dot(), nl=False)
        else:
            from rich.console import Console

            show(made, Console(highlight=False), nodes=nodes)


def _overrides(texts: list[str]) -> dict[str, str]:
    """From PATTERN=PROVIDER, whose pattern may hold a "=". Raises: OptionError."""
    found: dict[str, str] = {}
    for text in texts:
        pattern, equals, provider = text.rpartition("=")
        if not (equals and pattern and provider):
            raise OptionError(f"--override is PATTERN=PROVIDER, not {text!r}", operand="override")
        found[pattern] = provider
    return found


def as_data(made: Plan, *, nodes: bool) -> dict[str, Any]:
    """The plan as JSON data: providers, partitions, transfers, fallbacks; with `nodes`, every placement."""
    from hetero.planner.explain import edges, fallbacks, place_name, stage_rows

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
        "stages": [
            {
                "stage": stage.number,
                "provider": made.providers[stage.child].name,
                "nodes": count,
                "weight_bytes": stage.weight_bytes,
                "memory_limit_bytes": limit,
                "time_s": stage.time_ps / 1e12,
            }
            for stage, count, limit in stage_rows(made)
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
                "stage": p.stage,
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

    from hetero.planner.explain import (
        bytes_text,
        edge_text,
        edges,
        fallbacks,
        node_lines,
        place_name,
        printable,
        stage_rows,
        time_text,
    )

    console.print(Text(made.summary()))
    rows = fallbacks(made)
    if rows:
        table = Table(title=f"not on {made.providers[0].name}", title_justify="left")
        for heading in ("op", "nodes", "on", "reason"):
            table.add_column(heading, justify="right" if heading == "nodes" else "left", overflow="fold")
        for op, where, why, members in rows:
            table.add_row(Text(printable(op)), str(len(members)), Text(where), Text(printable(why)))
        console.print(table)
    if made.stages:
        table = Table(title="stages", title_justify="left")
        for heading in ("stage", "on", "nodes", "weights", "memory", "time"):
            table.add_column(heading, justify="left" if heading == "on" else "right", overflow="fold")
        for stage, count, limit in stage_rows(made):
            table.add_row(
                str(stage.number),
                Text(made.providers[stage.child].name),
                str(count),
                bytes_text(stage.weight_bytes),
                "" if limit is None else bytes_text(limit),
                time_text(stage.time_ps),
            )
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
