"""How verbs fail: a mistake of the user's, or of the model's, is one clear line and exit code 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from hetero.errors import HeteroError
from hetero.planner.explain import printable


@contextmanager
def reported() -> Iterator[None]:
    """Turn this package's errors, and files that cannot be read, into a line on stderr and exit code 1."""
    try:
        yield
    except (HeteroError, OSError) as error:
        typer.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
        raise typer.Exit(1) from error
