"""Weights that lie in files: a child that is started anew finds them again, or gets them from the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from actors import chaos
from actors.spool import Spool
from hetero import HeterogeneousExecutor, RuntimeOptions

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

TEXT = (
    '<ir_version: 9, opset_import: ["": 17]> g (float[n, 512] x) => (float[n, 600] y)'
    " { a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }"
)
SPLIT: list[Any] = [("cpu:0", {"except_ops": ["Relu"]}), ("cpu:1", {"ops": ["Relu"]})]
RNG = np.random.default_rng(0)
X = {"x": RNG.standard_normal((3, 512)).astype(np.float32)}


def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    for name, shape in (("v", (512, 700)), ("w", (700, 600))):
        array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


@pytest.fixture(scope="module")
def want() -> bytes:
    with HeterogeneousExecutor(model(), ["cpu"], children="inline") as ex:
        out: bytes = ex.run(X)["y"].tobytes()
    return out


def put(ex: HeterogeneousExecutor) -> bool:
    """Whether weights lie in the object store."""
    held: Any = ex._children
    return bool(held._held.weights.refs)


def test_a_lost_child_maps_the_weights_of_a_model_in_memory_again(want: bytes) -> None:
    with HeterogeneousExecutor(model(), SPLIT, ray_options={"standbys": 1}) as ex:
        for _ in range(3):
            assert ex.run(X)["y"].tobytes() == want
            chaos.kill("cpu:0", ex)
        assert ex.run(X)["y"].tobytes() == want
        assert not put(ex)


def test_where_the_file_was_replaced_a_lost_child_gets_the_weights_that_the_model_was_loaded_with(
    tmp_path: Path, want: bytes
) -> None:
    onnx.save_model(model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    with HeterogeneousExecutor(tmp_path / "m.onnx", SPLIT) as ex:
        assert ex.run(X)["y"].tobytes() == want
        chaos.kill("cpu:0", ex)
        assert ex.run(X)["y"].tobytes() == want
        assert not put(ex)
        (tmp_path / "new").write_bytes(bytes((tmp_path / "w.bin").stat().st_size))
        (tmp_path / "new").rename(tmp_path / "w.bin")
        chaos.kill("cpu:0", ex)
        assert ex.run(X)["y"].tobytes() == want
        assert put(ex)


def test_children_that_cannot_reach_the_file_start_all_the_same(
    monkeypatch: pytest.MonkeyPatch, want: bytes
) -> None:
    monkeypatch.setattr(Spool, "path", "/nowhere/at/all")
    with HeterogeneousExecutor(model(), SPLIT) as ex:
        assert ex.run(X)["y"].tobytes() == want
        assert put(ex)
        chaos.kill("cpu:0", ex)
        assert ex.run(X)["y"].tobytes() == want


def test_the_store_holds_them_where_files_are_switched_off(want: bytes) -> None:
    with HeterogeneousExecutor(model(), SPLIT, options=RuntimeOptions(map_weights=False)) as ex:
        assert put(ex)
        assert ex.run(X)["y"].tobytes() == want
