"""`hetero bench`: what a step takes, where that goes, and how it compares with onnxruntime."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from hetero.errors import OptionError, ProviderError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

_TRACED_STEPS = 5


def bench(
    model: Model,
    provider: Providers = None,
    feed: Inputs = None,
    shape: Shapes = None,
    dim: Dims = None,
    fill: Fills = None,
    steps: Steps = 50,
    warmup: Warmup = 3,
    graph_slot: GraphSlot = "primary",
    seed: Seed = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Of BLAS here, and of onnxruntime. Default: theirs.")
    ] = None,
    against: Annotated[
        bool, typer.Option("--against-onnxruntime", help="Time onnxruntime's CPU provider in turn.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time steps of MODEL: ms per step, the kernels' part of it, bytes moved and held."""
    with reported():
        if threads is not None and threads < 1:
            raise OptionError(f"--threads must be at least 1, not {threads}", operand="--threads")
        work = Work(model, provider, feed, shape, dim, fill, steps, warmup, graph_slot, seed)
        data = measured(work, threads, against=against)
        if as_json:
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        else:
            from rich.console import Console

            show(data, Console(highlight=False))


def measured(work: Work, threads: int | None = None, *, against: bool = False) -> dict[str, Any]:
    """Times of `work.steps` steps and what the children counted meanwhile, as JSON data."""
    from threadpoolctl import threadpool_limits

    from hetero.cli.tables import graph_slots
    from hetero.cli.trace import described, traced
    from hetero.options import RuntimeOptions

    work.check()
    limit = nullcontext() if threads is None else threadpool_limits(threads, user_api="blas")
    with limit:
        with work.opened(RuntimeOptions(seed=work.seed)) as (ex, turns):
            peer = onnxruntime_step(work.model, turns, threads) if against else None
            fed = itertools.cycle(turns)

            def step() -> None:
                ex.run(next(fed), graph_slot=work.graph_slot)

            before = ex.stats()
            ours, theirs = in_turn(step, peer, work.steps)
            after = ex.stats()
            data: dict[str, Any] = {
                "model": ex.plan.model,
                "steps": work.steps,
                "threads": threads,
                "inputs": {name: described(value) for name, value in turns[0].items()},
                "ms_per_step": spread_ms(ours),
                "steps_per_s": 1 / statistics.median(ours),
                "children": {name: _child(before, after, name, work.steps) for name in after["children"]},
                "graph_slots": graph_slots(after),
            }
        kernels_ms = traced(replace(work, steps=min(work.steps, _TRACED_STEPS)))["kernel_ms_per_step"]
    median_ms = data["ms_per_step"]["median"]
    data["kernel_ms_per_step"] = kernels_ms
    data["other_ms_per_step"] = max(median_ms - kernels_ms, 0.0)
    if theirs:
        data["onnxruntime"] = {
            "ms_per_step": spread_ms(theirs),
            "ratio": spread([a / b for a, b in zip(ours, theirs, strict=True)]),
        }
    return data


def in_turn(
    ours: Callable[[], object], theirs: Callable[[], object] | None, steps: int
) -> tuple[list[float], list[float]]:
    """Seconds of each call, one of each in turn: the machine's speed drifts, a ratio of neighbours does not."""
    a: list[float] = []
    b: list[float] = []
    for _ in range(steps):
        a.append(_seconds(ours))
        if theirs is not None:
            b.append(_seconds(theirs))
    return a, b


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and the ends of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return {"median": statistics.median(ordered), "low": ordered[quarter], "high": ordered[-1 - quarter]}


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """`spread`, of seconds, in milliseconds."""
    return {name: value * 1e3 for name, value in spread(seconds).items()}


def onnxruntime_step(
    model: Path, turns: Sequence[Mapping[str, Any]], threads: int | None
) -> Callable[[], object]:
    """A step of onnxruntime's CPU provider on the same feeds, in the same turns; it has run once.

    Raises: ProviderError where it is not installed, or cannot run the model.
    """
    try:
        import onnxruntime
    except ImportError as cause:
        raise ProviderError("onnxruntime is not installed: pip install 'hetero-ray[onnxruntime]'") from cause
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(turns[0]))
    except Exception as cause:  # onnxruntime's own exceptions have no common base
        raise ProviderError(f"onnxruntime cannot run this model: {cause}") from cause
    fed = itertools.cycle(turns)
    return lambda: session.run(None, next(fed))


def _child(before: Mapping[str, Any], after: Mapping[str, Any], name: str, steps: int) -> dict[str, Any]:
    """What one child counted: per step while it was timed, and what it holds."""
    old, new = before["children"][name], after["children"][name]
    memory, earlier = new["memory"], old["memory"]
    copied = sum(memory[k] - earlier[k] for k in ("upload_bytes", "download_bytes"))
    return {
        "busy_ms_per_step": (new["busy_s"] - old["busy_s"]) / steps * 1e3,
        "bytes_in_per_step": (new["bytes_in"] - old["bytes_in"]) / steps,
        "bytes_out_per_step": (new["bytes_out"] - old["bytes_out"]) / steps,
        "device_copy_bytes_per_step": copied / steps,
        "buffers_taken_per_step": (memory["takes"] - earlier["takes"]) / steps,
        "allocated_bytes": memory["pool_bytes"],
        "allocated_peak_bytes": memory["pool_peak_bytes"],
        "arena_bytes": new["arena_bytes"],
        "arena_peak_live_bytes": new["peak_live_bytes"],
        "fused_calls": new["fused_calls"],
        "fused_instructions": new["fused_instructions"],
        "in_place": new["in_place"],
        "memory_plans": new["memory_plans"],
    }


def _reuse(plans: Mapping[int, Mapping[str, Any]]) -> str:
    """Bytes of all partitions' values per byte held for them."""
    used = sum(plan["used_bytes"] for plan in plans.values())
    return f"{sum(plan['sum_bytes'] for plan in plans.values()) / used:.1f}" if used else ""


def show(data: Mapping[str, Any], console: Console) -> None:
    """Lines with the times; tables of the children and their graph slots."""
    from rich.text import Text

    from hetero.cli.tables import show_graph_slots, show_table, size
    from hetero.planner.explain import printable

    feeds = ", ".join(f"{name} {what}" for name, what in data["inputs"].items())
    console.print(Text(printable(f"{data['model']!r}, {data['steps']} steps of {feeds or 'no inputs'}")))
    step = data["ms_per_step"]
    lines = [
        f"{step['median']:.3f} ms per step (middle half {step['low']:.3f} to {step['high']:.3f}),"
        f" {data['steps_per_s']:.1f} steps/s",
        f"{data['kernel_ms_per_step']:.3f} ms in kernels (timed call by call), {data['other_ms_per_step']:.3f} ms"
        " else",
    ]
    if "onnxruntime" in data:
        theirs, ratio = data["onnxruntime"]["ms_per_step"], data["onnxruntime"]["ratio"]
        lines.append(
            f"onnxruntime: {theirs['median']:.3f} ms per step; ours takes {ratio['median']:.2f} times as long"
            f" (middle half {ratio['low']:.2f} to {ratio['high']:.2f})"
        )
    for line in lines:
        console.print(Text(line))
    headings = (
        "on",
        "busy ms",
        "in",
        "out",
        "copied",
        "taken",
        "allocated",
        "arena",
        "peak live",
        "reuse",
        "fused calls",
    )
    rows = [
        (
            name,
            f"{c['busy_ms_per_step']:.3f}",
            *(size(c[f"{k}_per_step"]) for k in ("bytes_in", "bytes_out", "device_copy_bytes")),
            f"{c['buffers_taken_per_step']:g}",
            *(size(c[k]) for k in ("allocated_peak_bytes", "arena_bytes", "arena_peak_live_bytes")),
            _reuse(c["memory_plans"]),
            f"{c['fused_calls']} ({c['fused_instructions']} nodes)",
        )
        for name, c in data["children"].items()
    ]
    show_table(console, "per step and child", headings, rows)
    show_graph_slots(console, data["graph_slots"])
