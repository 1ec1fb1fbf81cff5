"""The layout is the diagram: imports run one way, and hetero knows nothing of Ray."""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from hetero.executor import plan
from hetero.kernels.families import families
from hetero.kernels.softmax_rows import softmax_rows
from hetero.kernels.tape import load_tapes

ROOT = Path(__file__).parent.parent
# From the bottom up: a package may import what stands before it, never what stands after it.
LAYERS = [
    "hetero.errors",
    "hetero.data_type",
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


AS_A_CHILD = """
import sys
import numpy as np
from actors import child as module
from actors.parcels import pack, unpack
from hetero.options import RuntimeOptions

module.node_id = lambda: "here"
child = module.ChildActor()
child.prepare(1, np.frombuffer(sys.stdin.buffer.read(), np.uint8), 0, RuntimeOptions(), 1, None, ())
x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
for step in range(4):
    (y,) = unpack(child.run(1, 0, step, "primary", pack([x])))
assert abs(y.sum() - 3) < 1e-5, y
print(*sys.modules)
"""


def test_a_child_loads_nothing_that_it_has_no_use_for() -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y)'
        " { a = Relu(x) b = Exp(a) c = Add(b, x) y = Softmax(c) }"
    )
    model = onnx.parser.parse_model(text)
    load_tapes()
    softmax_rows.variant(np.zeros(1, np.int64))
    done = subprocess.run(
        [sys.executable, "-c", AS_A_CHILD],
        input=plan(model, ["cpu"]).to_bytes(),
        capture_output=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()
    loaded = set(done.stdout.decode().split())
    assert {"actors.child", "hetero.kernels.softmax"} <= loaded
    # On other machines numba brings the compiled code.
    images = sys.platform == "linux" and platform.machine() == "x86_64"
    for unused in (
        *(("numba", "llvmlite") if images else ()),
        *("onnx", "onnx_ir", "sympy", "zmq", "typer"),
        *("hetero.model", "hetero.planner.planner", "hetero.shapes.guards", "hetero.executor", "actors.pool"),
        *("hetero.kernels.conv", "hetero.kernels.rnn", "hetero.kernels.reference"),
    ):
        assert unused not in loaded, f"a child loads {unused}"


AS_A_STANDBY = """
import sys
from actors import child as module
from hetero.options import RuntimeOptions

module.node_id = lambda: "here"
module.ChildActor().warm_up(RuntimeOptions())
print(*sys.modules)
"""


def test_a_standby_loads_every_family_and_compiles_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", AS_A_STANDBY], capture_output=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    loaded = set(done.stdout.decode().split())
    files = {file for each in families().values() for file in each}
    assert {f"hetero.kernels.{file}" for file in files} | {"zmq", "hetero.planner.codec"} <= loaded
    assert not {"numba", "onnx_ir", "hetero.planner.planner"} & loaded


def test_every_public_name_is_there() -> None:
    import hetero

    for name in hetero.__all__:
        assert getattr(hetero, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hetero.no_such_name
