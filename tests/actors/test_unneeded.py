"""What Ray would load into a child, and the child has no use for, is kept out for as long as it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor

TEXT = '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
KEPT_OUT = """
import sys
from actors.unneeded import keep_out, let_in
keep_out()
try:
    import pydantic
    print("loaded")
except ImportError:
    print("kept out")
let_in()
let_in()
import pydantic
keep_out()
assert sys.modules["pydantic"] is pydantic, "what is there stays"
"""


def test_it_is_as_if_it_were_not_installed_until_it_is_let_in() -> None:
    pytest.importorskip("pydantic")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KEPT_OUT], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "kept out"


@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("local_ray")
def test_a_child_that_has_run_a_step_has_not_loaded_it() -> None:
    """The compiled part of it is a file that the process would map."""
    with HeterogeneousExecutor(onnx.parser.parse_model(TEXT), ["cpu"]) as ex:
        ex.run({"x": np.ones(3, np.float32)})
        pid = ex.stats()["children"]["cpu"]["pid"]
        maps = Path(f"/proc/{pid}/maps").read_text()
    assert "numpy" in maps
    assert "pydantic" not in maps
