"""`hetero plan` prints the plan for people, for programs and for Graphviz, and fails with one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

from hetero.cli.main import app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensor = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in ("x", "y")]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("Flatten", ["t"], ["f"], name="flat"),
        helper.make_node("Reshape", ["f", "s"], ["y"], name="shape\x1b[31m"),
    ]
    weights = [numpy_helper.from_array(np.array([2, 4], np.int64), "s")]
    graph = helper.make_graph(nodes, "demo", tensor[:1], tensor[1:], weights)
    file = tmp_path / "demo.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_plan_is_shown_in_tables(path: Path) -> None:
    result = run(path, "-p", "cpu")
    assert result.exit_code == 0, result.output
    assert "plan of 'demo': 3 nodes, 1 partition" in result.output
    assert "transfers per step" in result.output
    assert "caller" in result.output


def test_nodes_are_listed_on_demand_and_their_names_cannot_colour_the_terminal(path: Path) -> None:
    result = run(path, "--provider", "cpu", "--nodes")
    assert "turn (Transpose) on cpu" in result.output
    assert "shape\\x1b[31m (Reshape)" in result.output
    assert "\x1b" not in result.output


def test_json_holds_the_whole_plan(path: Path) -> None:
    data = json.loads(run(path, "-p", "cpu", "--json", "--nodes").output)
    assert data["model"] == "demo"
    assert data["providers"] == [{"name": "cpu", "nodes": 3, "partitions": [0], "weights": 1}]
    assert data["partitions"][0]["nodes"] == [0, 1, 2]
    assert data["transfers"] == [
        {"value": "x", "from": "caller", "to": "cpu", "type": "float[2, 4]", "bytes": 32},
        {"value": "y", "from": "cpu", "to": "caller", "type": "float[2, 4]", "bytes": 32},
    ]
    assert [n["node"] for n in data["nodes"]] == ["turn", "flat", "shape\x1b[31m"]
    assert data["fallbacks"] == []
    assert len(data["digest"]) == 64


def test_fallbacks_are_shown_with_their_reason(path: Path) -> None:
    result = run(path, "-p", "sim:0", "-p", "cpu", "--json")
    assert json.loads(result.output)["fallbacks"] == []


def test_stages_are_shown_with_their_nodes_weights_and_time(path: Path) -> None:
    two = ("-p", "sim:0", "-p", "sim:1", "-p", "cpu", "--stages", "auto")
    shown = run(path, *two)
    assert shown.exit_code == 0, shown.output
    assert "stages" in shown.output
    assert "µs" in shown.output
    data = json.loads(run(path, *two, "--json", "--nodes").output)
    assert [(s["stage"], s["provider"]) for s in data["stages"]] == [(0, "sim:0"), (1, "sim:1")]
    assert sum(s["nodes"] for s in data["stages"]) == 3
    assert sum(s["weight_bytes"] for s in data["stages"]) == 16
    assert all(s["memory_limit_bytes"] is None and s["time_s"] > 0 for s in data["stages"])
    assert {n["stage"] for n in data["nodes"]} == {0, 1}


def test_nodes_are_put_where_an_override_says(path: Path) -> None:
    data = json.loads(
        run(path, "-p", "sim:0", "-p", "cpu", "--override", "f*=cpu", "--json", "--nodes").output
    )
    assert {n["node"]: n["provider"] for n in data["nodes"]}["flat"] == "cpu"


def test_dot_is_a_digraph(path: Path) -> None:
    result = run(path, "-p", "cpu", "--dot")
    assert result.exit_code == 0
    assert result.output.startswith('digraph "demo" {')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "-p", "cpu"], "missing.onnx"),
        (["{path}", "-p", "nonsense"], "nonsense"),
        (["{path}", "-p", "cpu", "-p", "cpu"], "twice"),
        (["{path}", "--json", "--dot"], "exclude each other"),
        (["{path}", "-p", "cpu", "--stages", "fair"], "fair"),
        (["{path}", "-p", "cpu", "--override", "cpu"], "PATTERN=PROVIDER"),
        (["{path}", "-p", "cpu", "--override", "x*=cpu"], "matches no node"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_one(path: Path, arguments: list[str], message: str) -> None:
    result = run(*[a.format(path=path) for a in arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_no_model_is_one_line_and_exit_code_one(tmp_path: Path) -> None:
    file = tmp_path / "bad.onnx"
    file.write_bytes(b"\xff\x00 not a model")
    result = run(file, "-p", "cpu")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_strict_fails_where_a_node_falls_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero.providers.simulated import SimulatedProvider

    assert run(path, "-p", "sim:0", "-p", "cpu", "--strict").exit_code == 0
    supports = SimulatedProvider.supports

    def no_flatten(self, op, types):  # type: ignore[no-untyped-def]
        from hetero.providers.base import Match

        return Match(False, "flatten is broken") if op.op_type == "Flatten" else supports(self, op, types)

    monkeypatch.setattr(SimulatedProvider, "supports", no_flatten)
    result = run(path, "-p", "sim:0", "-p", "cpu", "--strict")
    assert result.exit_code == 1
    assert "flat" in result.stderr
    assert "flatten is broken" in result.stderr
    shown = json.loads(run(path, "-p", "sim:0", "-p", "cpu", "--json").output)
    assert shown["fallbacks"][0]["reason"] == "flatten is broken"
