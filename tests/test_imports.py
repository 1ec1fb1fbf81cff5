"""The layout is the diagram: imports run one way, and hetero knows nothing of Ray."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the bottom up: a package may import what stands before it, never what stands after it.
LAYERS = [
    "hetero.errors",
    "hetero.types",
    "hetero.mapped",
    "hetero.options",
    "hetero.trace",
    "hetero.model",
    "hetero.program",
    "hetero.shapes",
    "hetero.kernels",
    "hetero.extensions",
    "hetero.providers",
    "hetero.planner",
    "hetero.runtime",
    "actors",
    "hetero.feeds",
    "hetero.executor",
    "hetero.decode",
    "hetero.backend",
    "hetero.cli",
]


def layer(module: str) -> int | None:
    return next((n for n, name in enumerate(LAYERS) if module == name or module.startswith(name + ".")), None)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, also inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the direction"
            yield node.module


FILES = sorted([*(ROOT / "hetero").rglob("*.py"), *(ROOT / "actors").rglob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_run_one_way(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    own = layer(module)
    for imported in imports(ast.parse(path.read_text())):
        top = imported.split(".")[0]
        if top == "ray":
            assert module.startswith("actors"), f"{module} imports ray"
        if top == "actors" and not module.startswith("actors"):
            assert module == "hetero.executor", f"{module} reaches for actors"
            continue
        theirs = layer(imported)
        if own is not None and theirs is not None:
            assert theirs <= own, f"{module} imports {imported}, which stands above it"


def test_importing_hetero_loads_neither_ray_nor_onnx() -> None:
    code = "import hetero, sys; print([m for m in ('ray', 'onnx', 'numba', 'cupy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import hetero

    for name in hetero.__all__:
        assert getattr(hetero, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hetero.no_such_name
