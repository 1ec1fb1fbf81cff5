"""What verbs that run a model share: their options, and the executor with its feeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.errors import OptionError

if TYPE_CHECKING:
    from hetero.executor import HeterogeneousExecutor
    from hetero.options import RuntimeOptions

Model = Annotated[Path, typer.Argument(help="An .onnx file.", show_default=False)]
Providers = Annotated[
    list[str] | None,
    typer.Option(
        "--provider",
        "--providers",
        "-p",
        help="Best first; repeatable, or with commas: cuda:0,sim:0,cpu. Default: what is here.",
    ),
]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="NAME=FILE.npy: feed this array.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="NAME=1x3x224x224 (or NAME=scalar): feed this shape.")
]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="SYMBOL=4: an extent of the model's inputs.")]
Fills = Annotated[
    list[str] | None, typer.Option("--fill", help="NAME=16000: this number for every element of an input.")
]
Steps = Annotated[int, typer.Option("--steps", help="Steps to measure.")]
Warmup = Annotated[
    int, typer.Option("--warmup", help="Steps before those: the first binds, the next records.")
]
GraphSlot = Annotated[str, typer.Option("--graph-slot", help="Which captured graph the steps drive.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the random inputs, and of the model's own draws.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Work:
    """A model, where it runs and what it is fed, as the command line says."""

    model: Path
    providers: list[str] | None
    feed_files: list[str] | None
    shapes: list[str] | None
    dims: list[str] | None
    fills: list[str] | None
    steps: int
    warmup: int
    graph_slot: str
    seed: int

    def check(self) -> None:
        """Raises: OptionError for numbers that cannot be meant."""
        if self.steps < 1:
            raise OptionError(f"--steps must be at least 1, not {self.steps}", operand="--steps")
        if self.warmup < 1:  # what the first step binds would be measured as if it were a step
            raise OptionError(f"--warmup must be at least 1, not {self.warmup}", operand="--warmup")
        if self.seed < 0:
            raise OptionError(f"--seed must not be negative, but is {self.seed}", operand="--seed")

    @contextmanager
    def opened(self, options: RuntimeOptions) -> Iterator[tuple[HeterogeneousExecutor, list[dict[str, Any]]]]:
        """An executor in this process, warmed up, and what its steps are fed in turn; closed when the block ends.

        Steps differ in what they are fed: results that are kept for equal inputs must not be taken for speed.
        """
        from hetero.cli.feeding import asked, feeds
        from hetero.executor import HeterogeneousExecutor

        self.check()
        wish = asked(self.feed_files or (), self.shapes or (), self.dims or (), self.fills or ())
        names = [n for text in self.providers or () for n in text.split(",")]
        executor = HeterogeneousExecutor(self.model, names or None, children="inline", options=options)
        with executor as ex:
            turns = [feeds(ex.plan.inputs, wish, self.seed + k) for k in range(_DRAWS)]
            for values in itertools.islice(itertools.cycle(turns), self.warmup):
                ex.run(values, graph_slot=self.graph_slot)
            yield ex, turns
