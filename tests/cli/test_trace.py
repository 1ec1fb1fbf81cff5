"""`hetero trace` shows where a step's time goes and what was captured, and fails with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hetero.cli.main import app
from hetero.cli.profile import own_times, profile
from hetero.trace import Span
from tests.cli.models import chain, products, save

SPLIT = ["-p", "sim:0", "-p", "cpu"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def data(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("providers", [["-p", "cpu"], SPLIT, ["--providers", "sim:0,cpu"]])
def test_tables_name_every_op_type_and_why_the_rest_is_not_captured(
    tmp_path: Path, providers: list[str]
) -> None:
    result = run(chain(tmp_path), *providers, "--steps", 2)
    assert result.exit_code == 0, result.output
    for text in ("op types", "segments and seams", "graph slots", "Tanh", "NonZero", "float32[1, 4]"):
        assert text in result.output


def test_json_holds_times_bytes_and_capture_of_each_node(tmp_path: Path) -> None:
    found = data(products(tmp_path), "-p", "cpu", "--steps", 3)
    assert found["steps"] == 3
    assert found["inputs"] == {"v0": "float32[4, 4]"}
    assert len(found["nodes"]) == 10
    for node in found["nodes"]:
        assert node["op"] == "MatMul"
        assert node["calls_per_step"] == 1
        assert node["writes_bytes_per_step"] == node["reads_bytes_per_step"] == 64
        assert node["capture"] == ["segment"]
        assert node["ms_per_step"] > 0
    assert sum(n["share"] for n in found["nodes"]) == pytest.approx(1)
    assert found["kernel_ms_per_step"] == pytest.approx(sum(n["ms_per_step"] for n in found["nodes"]))
    (op,) = found["ops"]
    assert (op["op"], op["calls_per_step"], op["writes_bytes_per_step"]) == ("MatMul", 10, 640)
    (segment,) = found["segments"]
    assert (segment["segment"], segment["calls_per_step"]) == (0, 10)
    (slot,) = found["graph_slots"]
    assert (slot["on"], slot["graph_slot"], slot["recordings"], slot["segments"]) == ("cpu", "primary", 1, 1)
    assert slot["captured_calls"] == 10
    assert slot["seams"] == slot["quarantine"] == {}


def test_a_fused_call_says_which_nodes_it_covers(tmp_path: Path) -> None:
    found = data(chain(tmp_path), "-p", "cpu", "--dim", "batch=3")
    fused = next(n for n in found["nodes"] if "fused" in n)
    assert fused["fused"] == len(fused["nodes"]) == 10
    assert fused["op"] == "Neg+Tanh+Abs"
    assert fused["calls_per_step"] == 1
    assert fused["reads_bytes_per_step"] == fused["writes_bytes_per_step"] == 48
    (tail,) = [s for s in found["segments"] if s.get("seam") == "data-dependent-shape"]
    assert tail["calls_per_step"] == 1


def test_a_split_model_has_nodes_and_slots_of_each_child(tmp_path: Path, monkeypatch: Any) -> None:
    from hetero.providers.base import Match
    from hetero.providers.simulated import SimulatedProvider

    supports = SimulatedProvider.supports

    def no_tanh(self: Any, op: Any, types: Any) -> Any:
        return Match(False, "no Tanh here") if op.op_type == "Tanh" else supports(self, op, types)

    monkeypatch.setattr(SimulatedProvider, "supports", no_tanh)
    found = data(chain(tmp_path), *SPLIT, "--graph-slot", "verify")
    assert {n["on"] for n in found["nodes"]} == {"sim:0", "cpu"}
    assert {(s["on"], s["graph_slot"]) for s in found["graph_slots"]} == {
        ("sim:0", "verify"),
        ("cpu", "verify"),
    }
    assert {o["on"] for o in found["ops"] if "Tanh" in o["op"]} == {"cpu"}


def test_the_body_of_a_loop_counts_once(tmp_path: Path) -> None:
    body = (
        "b (int64 i, bool c, float[4, 4] a) => (bool d, float[4, 4] r) { d = Identity(c) r = MatMul(a, a) }"
    )
    text = f"(int64 n, bool go, float[4, 4] x) => (float[4, 4] y) {{ y = Loop (n, go, x) <body: graph = {body}> }}"
    found = data(save(tmp_path, text), "-p", "cpu", "--steps", 4, "--fill", "go=1")
    by_op = {o["op"]: o for o in found["ops"]}
    assert by_op["MatMul"]["calls_per_step"] == 1
    assert by_op["Loop"]["capture"] == ["host-control-flow"]
    assert sum(o["share"] for o in found["ops"]) == pytest.approx(1)


def test_the_output_is_a_trace_of_the_steps_after_the_warm_up(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = run(products(tmp_path), "-p", "cpu", "--steps", 2, "--warmup", 4, "--output", file)
    assert "trace written to" in result.output
    events = json.loads(file.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {s["args"]["step"] for s in spans} == {5, 6}
    assert len([s for s in spans if s["cat"] == "op"]) == 20
    assert len([s for s in spans if s["cat"] == "partition"]) == 2


def test_a_file_is_fed_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 4), np.float32))
    found = data(chain(tmp_path), "-p", "cpu", "--input", f"x={tmp_path / 'x.npy'}")
    assert found["inputs"] == {"x": "float32[5, 4]"}
    assert data(chain(tmp_path), "-p", "cpu", "--shape", "x=6x4")["inputs"] == {"x": "float32[6, 4]"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "-p", "cpu"], "missing.onnx"),
        (["{path}", "-p", "nonsense"], "nonsense"),
        (["{path}", "-p", "cpu", "--steps", "0"], "--steps"),
        (["{path}", "-p", "cpu", "--warmup", "0"], "--warmup"),
        (["{path}", "-p", "cpu", "--seed", "-1"], "--seed"),
        (["{path}", "-p", "cpu", "--top", "-1"], "--top"),
        (["{path}", "-p", "cpu", "--shape", "x=2x5"], "axis 1 must be 4, not 5"),
        (["{path}", "-p", "cpu", "--shape", "q=2x5"], "inputs are ['x']"),
        (["{path}", "-p", "cpu", "--input", "x=missing.npy"], "missing.npy"),
        (["{path}", "-p", "cpu", "--output", "{path}/no/trace.json"], "trace.json"),
        (["{symbolic}", "-p", "cpu"], "--dim rows="),
        (["{bad}", "-p", "cpu"], "bad.onnx"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_one(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = chain(tmp_path)
    symbolic = save(tmp_path, "(float[batch, rows] x) => (float[batch, rows] y) { y = Neg(x) }", "symbolic")
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\xff\x00 not a model")
    result = run(*[a.format(path=path, symbolic=symbolic, bad=bad) for a in arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert result.stdout == ""


def span(start_s: float, end_s: float, op: str, track: str = "cpu", **args: Any) -> Span:
    usual = {"op": op, "node": op, "node_index": 0, "program": "p", "section": 0, "call": "kernel"}
    counts = {"reads_bytes": 4, "writes_bytes": 8, "capture": "seam", "reason": "sequence"}
    return Span(op, track, 1, start_s, end_s, "op", {**usual, **counts, **args})


def test_what_runs_inside_another_instruction_is_not_counted_twice() -> None:
    spans = [
        span(1, 2, "inner"),
        span(3, 5, "inner"),
        span(3.5, 4, "innermost"),
        span(0, 10, "Loop", tracing_s=0.5),
        span(0, 10, "elsewhere", "sim:0"),
        Span("partition 0", "cpu", 1, 0, 12),
    ]
    own: dict[str, float] = {}
    for s, own_s in own_times(spans):
        own[s.name] = own.get(s.name, 0) + own_s
    assert own == {"inner": 2.5, "innermost": 0.5, "Loop": 6.5, "elsewhere": 10}


def test_copies_and_releases_take_time_but_are_no_calls() -> None:
    spans = [span(0, 1, "Add", call="copy", reads_bytes=0, writes_bytes=0), span(1, 4, "Add")]
    (row,) = profile(spans, steps=2)["nodes"]
    assert row["ms_per_step"] == 2000
    assert row["calls_per_step"] == 0.5
    assert (row["reads_bytes_per_step"], row["writes_bytes_per_step"]) == (2, 4)
    assert row["capture"] == ["sequence"]
