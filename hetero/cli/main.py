"""The `hetero` command: a thin registry, one file per verb."""

from __future__ import annotations

import typer

from hetero.cli.bench import bench
from hetero.cli.plan import plan
from hetero.cli.trace import trace

app = typer.Typer(
    name="hetero",
    help="The ONNX runtime for models and pipelines that no single device can or should run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """The ONNX runtime for models and pipelines that no single device can or should run."""


app.command("plan")(plan)
app.command("trace")(trace)
app.command("bench")(bench)

if __name__ == "__main__":
    app()
