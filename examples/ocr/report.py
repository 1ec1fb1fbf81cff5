"""What the program tells at its end, as tables for people and as plain data for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from examples.ocr.executor import Outage
from examples.ocr.read import Reading
from examples.ocr.runners import Checked
from examples.ocr.score import PageScore

PLAN_LINES = 7  # as much of a plan's explanation as is printed; the file has all of it
# The counters that tell a person how the work was shared; --json has all of them.
SHOWN = {
    "calls": "partition runs",
    "busy_s": "busy, s",
    "bytes_in": "bytes received",
    "bytes_out": "bytes sent",
    "kernel_misses": "kernels compiled",
    "sections_reused": "sections reused",
    "folded": "nodes folded",
    "in_place": "computed in place",
    "peak_live_bytes": "peak of live values, bytes",
    "memory.uploads": "uploads",
    "memory.downloads": "downloads",
    "memory.launches": "kernel launches",
    "threads": "threads",
}
GOOD_ENOUGH = 0.97  # share of characters that must be right on the page whose text is known


@dataclass(frozen=True, slots=True)
class ModelReport:
    """How one model ran; plan and statistics are there only where hetero ran it."""

    checked: Checked
    plan: str | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All there is to tell of one run of the program."""

    reading: Reading
    score: PageScore | None
    models: tuple[ModelReport, ...]
    files: Mapping[str, Path]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the program must not end well: empty when all is as it should be."""
        found = [
            f"{check.model} call {check.call}, output {check.output}: {check.problem}"
            for model in self.models
            for check in model.checked.checks
            if check.problem is not None
        ]
        found += [
            f"{model.checked.model} call {outage.call}: other outputs after {outage.device} was killed"
            for model in self.models
            if (outage := model.outage) is not None and not outage.same_bits
        ]
        if self.score is not None and self.score.accuracy < GOOD_ENOUGH:
            found.append(f"{self.score.accuracy:.1%} of the known text read, {GOOD_ENOUGH:.0%} expected")
        return tuple(found)


def show(report: Report, console: Console) -> None:
    """Print the report: text, marks, plans, timings and checks, statistics, files, problems."""
    console.rule("text")
    for number, read in enumerate(report.reading.reads, start=1):
        console.print(Text(f"{number:3}  {read.confidence:4.0%}  {read.text}"), soft_wrap=True)
    if report.reading.left_out:
        console.print(f"{report.reading.left_out} of these are blank or too unsure to count as text")
    if report.score is not None:
        _show_score(report.score, console)
    for model in report.models:
        if model.plan is not None:
            _show_plan(model.checked.model, model.plan, console)
    for model in report.models:
        console.print(_shapes(model.checked), highlight=False)
    for model in report.models:
        if model.outage is not None:
            console.print(_outage(model.checked.model, model.outage), highlight=False)
    console.print(_checks_table(report.models))
    for model in report.models:
        if model.statistics:
            console.print(statistics_table(model.checked.model, model.statistics))
    for what, path in report.files.items():
        console.print(Text(f"{what:>14}  {path}"), soft_wrap=True)
    for problem in report.problems:
        console.print(Text(f"wrong: {problem}", style="bold red"), soft_wrap=True)


def _show_score(score: PageScore, console: Console) -> None:
    console.print(
        Text(
            f"{score.accuracy:.2%} of {score.page_length} characters right "
            f"({score.page_edits} edits), {score.exact_lines} of {len(score.lines)} lines exact",
            style="bold",
        )
    )
    for line in score.lines:
        if line.edits:
            console.print(Text(f"  true  {line.true}\n  read  {line.read or ''}"), soft_wrap=True)


def _show_plan(model: str, plan: str, console: Console) -> None:
    console.rule(f"plan of {model}")
    lines = plan.splitlines()
    for line in lines[:PLAN_LINES]:
        console.print(Text(line), no_wrap=True, overflow="ellipsis")
    if len(lines) > PLAN_LINES:
        console.print(f"... and {len(lines) - PLAN_LINES} lines more in the file below")


def _outage(model: str, outage: Outage) -> str:
    verdict = "the same outputs came out, to the bit" if outage.same_bits else "OTHER OUTPUTS CAME OUT"
    return (
        f"{outage.device} (process {outage.pid}) was killed in call {outage.call} of {model}: {verdict}, "
        f"{outage.seconds:.1f} s later"
    )


def _checks_table(models: tuple[ModelReport, ...]) -> Table:
    table = Table("model", "calls", "time", "onnxruntime", "ratio", "max difference", "agrees")
    for model in models:
        done = model.checked
        ours_s, theirs_s = sum(done.seconds), sum(done.reference_seconds)
        ratio = f"{ours_s / theirs_s:.2f}x" if theirs_s else "-"
        verdict = Text("yes", style="green") if done.agrees else Text("NO", style="bold red")
        times = f"{ours_s:.2f} s", f"{theirs_s:.2f} s", ratio
        table.add_row(done.model, str(len(done.seconds)), *times, f"{done.max_abs:.2e}", verdict)
    return table


def _shapes(checked: Checked) -> str:
    counted = Counter(checked.shapes)
    shapes = ", ".join(f"{count} of {'x'.join(map(str, shape))}" for shape, count in counted.items())
    return f"{checked.model} was called with {shapes or 'nothing'}"


def statistics_table(model: str, statistics: Mapping[str, Any]) -> Table:
    """One column per child, one row per counter worth showing that some child has."""
    columns = per_child(statistics)
    columns.pop("executor", None)
    table = Table("per actor", *map(escape, columns), title=f"statistics of {model}")
    for counter, label in SHOWN.items():
        cells = [column.get(counter, "") for column in columns.values()]
        if any(cell not in ("", None) for cell in cells):
            table.add_row(label, *(escape(_cell(value)) for value in cells))
    return table


def per_child(statistics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Nested statistics as child -> dotted counter -> value, from the mapping under the key `children`."""
    children = statistics.get("children", {})
    own = flatten({name: value for name, value in statistics.items() if name != "children"})
    columns = {str(child): flatten(counters) for child, counters in children.items()}
    return {"executor": own, **columns} if own else columns


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int | np.integer) and not isinstance(value, bool) else str(value)


def to_json(report: Report) -> str:
    """The report as one JSON object; NaN, which JSON does not have, becomes null."""
    score = report.score
    data = {
        "ok": not report.problems,
        "problems": report.problems,
        "lines": [
            {
                "text": read.text,
                "confidence": read.confidence,
                "box": [box.left, box.top, box.right, box.bottom],
            }
            for box, read in zip(report.reading.boxes, report.reading.reads, strict=True)
        ],
        "score": None
        if score is None
        else {
            "characters_right": score.accuracy,
            "edits": score.page_edits,
            "characters": score.page_length,
            "lines_exact": score.exact_lines,
            "lines": len(score.lines),
        },
        "models": {
            model.checked.model: {
                "agrees": model.checked.agrees,
                "max_abs_difference": model.checked.max_abs,
                "input_shapes": model.checked.shapes,
                "seconds": model.checked.seconds,
                "onnxruntime_seconds": model.checked.reference_seconds,
                "statistics": model.statistics,
                "outage": None if model.outage is None else asdict(model.outage),
            }
            for model in report.models
        },
        "files": {what: str(path) for what, path in report.files.items()},
    }
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
