"""The demo: `python -m examples.ocr.main` reads a page with two split models and checks every output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from actors import chaos
from examples.ocr import detect, draw, recognise, report
from examples.ocr.executor import Provider, SplitModel, default_providers
from examples.ocr.models import ModelFetchError, OcrModels, fetch
from examples.ocr.page import Page, PageError, load, render
from examples.ocr.read import Progress, Reading, read_page
from examples.ocr.report import ModelReport, Report
from examples.ocr.runners import Checked, OnnxRuntime, Runner
from examples.ocr.score import score_page

OUTAGE_AT = {"det": None, "rec": 2}
"""The call of each model in which an actor is killed."""
WRONG, CANNOT_START = 1, 2  # exit codes


class Children(StrEnum):
    """Where the executor's children live."""

    ray = "ray"
    inline = "inline"


class Engine(StrEnum):
    """What runs the models; onnxruntime alone gives the baseline and uses neither Ray nor hetero."""

    hetero = "hetero"
    onnxruntime = "onnxruntime"


def main(
    image: Annotated[Path | None, typer.Option(help="Image to read; default: a page drawn here.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for what is written.")] = Path("out/ocr"),
    children: Annotated[
        Children, typer.Option(help="One Ray actor per provider, or all in here.")
    ] = Children.ray,
    providers: Annotated[str, typer.Option(help="Names, best first, with commas; default: found.")] = "",
    engine: Annotated[Engine, typer.Option(help="What runs the models.")] = Engine.hetero,
    side: Annotated[
        int, typer.Option(min=32, help="Longest side given to the detector, px.")
    ] = detect.SIDE_LIMIT,
    batch: Annotated[int, typer.Option(min=1, help="Lines read per call.")] = recognise.BATCH,
    outage: Annotated[bool, typer.Option(help="Kill an actor while it reads (with Ray).")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read the text on a page; every output of every model call is compared with onnxruntime's.

    Ends with 1 when outputs disagree or the known page is read badly, with 2 when it cannot begin.
    """
    notes = Console(stderr=True, quiet=json)
    try:
        page = render() if image is None else load(image)
        with notes.status("fetching the models, unless they are here already"):
            models = fetch()
    except (ModelFetchError, PageError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(CANNOT_START) from error
    chosen: list[Provider] = [*filter(None, providers.split(","))] or default_providers()
    began_s = time.perf_counter()
    done = demonstrate(
        page, models, engine, chosen, children, out, side=side, batch=batch, outage=outage, notes=notes
    )
    if json:
        print(report.to_json(done))
    else:
        console = Console()
        report.show(done, console)
        console.print(f"all of it took {time.perf_counter() - began_s:.1f} s")
    if done.problems:
        raise typer.Exit(WRONG)


def demonstrate(
    page: Page,
    models: OcrModels,
    engine: Engine,
    providers: list[Provider],
    children: Children,
    out: Path,
    *,
    side: int,
    batch: int,
    outage: bool,
    notes: Console,
) -> Report:
    """Read `page` with both models on `engine`, and leave picture, text, plans and traces in `out`."""
    with ExitStack() as stack:
        runners: dict[str, Runner] = {}
        outage = outage and children is Children.ray and engine is Engine.hetero
        if outage:
            stack.enter_context(chaos.enabled())
        checked: dict[str, Checked] = {}
        with notes.status("preparing the models"):
            for name, path in (("det", models.det), ("rec", models.rec)):
                reference = OnnxRuntime(path)
                if engine is Engine.hetero:
                    runners[name] = stack.enter_context(
                        SplitModel(path, providers, children.value, OUTAGE_AT[name] if outage else None)
                    )
                else:
                    runners[name] = reference
                checked[name] = Checked(name, runners[name], reference)
            characters = recognise.alphabet(models.rec)
        with progress_bars(notes) as progress:
            reading = read_page(
                page.image,
                checked["det"],
                checked["rec"],
                characters,
                side_limit=side,
                batch=batch,
                progress=progress,
            )
        files = write_reading(page, reading, out)
        # What the executors know of themselves has to be asked for while they are open.
        told = tuple(tell(runners[name], checked[name], out, files) for name in checked)
    score = None if page.lines is None else score_page(page.lines, reading.lines)
    return Report(reading, score, told, files)


def write_reading(page: Page, reading: Reading, out: Path) -> dict[str, Path]:
    """Save the annotated page and the text; returns what is where."""
    picture = draw.save(draw.annotate(page.image, reading.boxes, reading.reads), out / "page.png")
    text = out / "page.txt"
    text.write_text("".join(f"{line}\n" for line in reading.lines), encoding="utf-8")
    return {"annotated page": picture, "text": text}


def tell(runner: Runner, checked: Checked, out: Path, files: dict[str, Path]) -> ModelReport:
    """The report of one model; its plan and trace are saved and entered into `files`."""
    if not isinstance(runner, SplitModel):
        return ModelReport(checked)
    name = checked.model
    plan = files[f"plan of {name}"] = out / f"{name}-plan.txt"
    plan.write_text(runner.explanation(), encoding="utf-8")
    files[f"trace of {name}"] = runner.write_trace(out / f"{name}-trace.json")
    return ModelReport(checked, runner.explanation(), runner.statistics(), runner.outage)


@contextmanager
def progress_bars(console: Console) -> Iterator[Progress]:
    """Bars on `console`, one per stage, moved by the function this gives."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with ProgressBars(*columns, console=console) as bars:
        tasks = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield move


if __name__ == "__main__":
    typer.run(main)
