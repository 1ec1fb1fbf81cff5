"""`hetero trace`: where the time of a step goes, node by node, and what was captured or why not."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.errors import reported
from hetero.cli.running import (
    AsJson,
    Dims,
    Fills,
    GraphSlot,
    Inputs,
    Model,
    Providers,
    Seed,
    Shapes,
    Steps,
    Warmup,
    Work,
)
from hetero.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console


def trace(
    model: Model,
    provider: Providers = None,
    feed: Inputs = None,
    shape: Shapes = None,
    dim: Dims = None,
    fill: Fills = None,
    steps: Steps = 10,
    warmup: Warmup = 3,
    graph_slot: GraphSlot = "primary",
    seed: Seed = 0,
    top: Annotated[int, typer.Option("--top", help="How many of the slowest nodes to list.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a Chrome trace, which Perfetto opens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run MODEL call by call and show the time of each node, its bytes, and whether it was captured.

    A call is waited for before the next is made, so a step takes longer than untraced: `hetero bench` times those.
    """
    with reported():
        if top < 0:
            raise OptionError(f"--top must not be negative, but is {top}", operand="--top")
        work = Work(model, provider, feed, shape, dim, fill, steps, warmup, graph_slot, seed)
        data = traced(work, output)
        if as_json:
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        else:
            from rich.console import Console

            show(data, Console(highlight=False), top)


def traced(work: Work, output: Path | None = None) -> dict[str, Any]:
    """The profile of the steps after the warm-up, as JSON data; `output`: where their spans go too."""
    from hetero.cli.profile import profile
    from hetero.cli.tables import graph_slots
    from hetero.options import RuntimeOptions
    from hetero.trace import write_chrome_trace

    options = RuntimeOptions(trace=True, trace_ops=True, seed=work.seed)
    with work.opened(options) as (ex, turns):
        for values in islice(cycle(turns), work.steps):
            ex.run(values, graph_slot=work.graph_slot)
        spans = [s for s in ex.spans() if s.step > work.warmup]
        data: dict[str, Any] = {
            "model": ex.plan.model,
            "steps": work.steps,
            "inputs": {name: described(value) for name, value in turns[0].items()},
            **profile(spans, work.steps),
            "graph_slots": graph_slots(ex.stats()),
        }
        if output is not None:
            data["trace"] = str(write_chrome_trace(spans, output))
        return data


def described(value: Any) -> str:
    """dtype and shape of a feed, or its type where it is no array."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{dtype}{list(shape)}"


def show(data: dict[str, Any], console: Console, top: int) -> None:
    """Tables: op types, segments and seams, the slowest nodes, graph slots."""
    from rich.text import Text

    from hetero.cli.tables import MEASURES, measures, show_graph_slots, show_table
    from hetero.planner.explain import printable

    feeds = ", ".join(f"{name} {what}" for name, what in data["inputs"].items())
    console.print(Text(printable(f"{data['model']!r}, {data['steps']} steps of {feeds or 'no inputs'}")))
    console.print(Text(f"{data['kernel_ms_per_step']:.3f} ms in kernels per step"))
    rows = ((r["op"], r["on"], *measures(r)) for r in data["ops"])
    show_table(console, "op types", ("op", "on", *MEASURES), rows, left=2)
    rows = ((_piece(r), r["on"], *measures(r)) for r in data["segments"])
    show_table(console, "segments and seams", ("where", "on", *MEASURES), rows, left=2)
    rows = ((_named(r), r["op"], r["on"], *measures(r)) for r in data["nodes"][:top])
    show_table(
        console, f"slowest {min(top, len(data['nodes']))} nodes", ("node", "op", "on", *MEASURES), rows, 3
    )
    show_graph_slots(console, data["graph_slots"])
    if "trace" in data:
        console.print(Text(printable(f"trace written to {data['trace']}")))


def _piece(row: dict[str, Any]) -> str:
    where = f"{row['program']}, section {row['section']}"
    return f"{where}, segment {row['segment']}" if "segment" in row else f"{where}, seam: {row['seam']}"


def _named(row: dict[str, Any]) -> str:
    return f"{row['node']} (+{row['fused'] - 1} fused)" if "fused" in row else str(row["node"])
