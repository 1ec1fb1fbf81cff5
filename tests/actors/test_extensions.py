"""Extensions on actors: the modules that register them reach the actor's process, and each child prepares its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero
from hetero.errors import KernelError, OptionError
from hetero.extensions import register, unregister
from tests import extension_ops

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

X = np.array([[-1.0, 0.75, 1.0]], np.float32)
HEAD = '<ir_version: 9, opset_import: ["": 17, "tests.extensions": 1, "local": 1]>\n'


def model(nodes: str) -> Any:
    return onnx.parser.parse_model(HEAD + f"g (float[n, 3] x) => (float[n, 3] y, int64[2] c) {{ {nodes} }}")


def test_an_extension_reaches_every_actor_by_the_module_that_defines_it() -> None:
    nodes = (
        "a = tests.extensions.Scale <factor = 3.0> (x) b = Exp(a)"
        " y = tests.extensions.Scale <factor = 0.5> (b) c = tests.extensions.Count(y)"
    )
    providers: list[Any] = [("sim:0", {"except_ops": ["Exp"]}), "cpu"]
    with hetero.HeterogeneousExecutor(model(nodes), providers) as ex:
        found = [ex.run({"x": X}) for _ in range(3)]
        assert ex.stats()["children"]["sim:0"]["extensions"] == 3
    with hetero.HeterogeneousExecutor(model(nodes), providers, children="inline") as ex:
        inline = ex.run({"x": X})["y"]
    assert [f["y"].tobytes() for f in found] == [inline.tobytes()] * 3
    assert [f["c"].tolist() for f in found] == [[1, 1], [1, 2], [1, 3]]


def test_what_an_actor_cannot_find_or_import_is_an_error_that_says_so() -> None:
    class Op(extension_ops.Count):
        domain, name = "local", "Op"

    register(Op())
    try:
        local = model("y = Exp(x) c = local.Op(x)")
        # The class's module can be imported over there, but registers nothing of this name.
        with pytest.raises(
            KernelError, match="no extension local::Op-1 is registered in this process"
        ) as caught:
            hetero.HeterogeneousExecutor(local, ["cpu"])
        assert caught.value.phase == "prepare"
        Op.__module__ = "__main__"
        with pytest.raises(OptionError, match="local::Op is defined in the main script"):
            hetero.HeterogeneousExecutor(local, ["cpu"])
    finally:
        unregister("local", "Op")
