"""`hetero bench` times steps and shows what they moved and held, and fails with one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetero.cli.bench import in_turn, spread
from hetero.cli.main import app
from hetero.cli.running import Work
from hetero.options import RuntimeOptions
from tests.cli.models import chain, products, save

SPLIT = ["-p", "sim:0", "-p", "cpu"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def data(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("providers", [["-p", "cpu"], SPLIT, ["--providers", "sim:0,cpu"]])
def test_the_times_are_shown_with_what_was_moved_and_captured(tmp_path: Path, providers: list[str]) -> None:
    result = run(chain(tmp_path), *providers, "--steps", 3)
    assert result.exit_code == 0, result.output
    for text in ("ms per step (middle half", "steps/s", "ms in kernels", "per step and child", "graph slots"):
        assert text in result.output


def test_json_holds_times_and_counters(tmp_path: Path) -> None:
    found = data(products(tmp_path), "-p", "cpu", "--steps", 6)
    step = found["ms_per_step"]
    assert 0 < step["low"] <= step["median"] <= step["high"]
    assert found["steps_per_s"] == pytest.approx(1000 / step["median"])
    assert found["kernel_ms_per_step"] > 0
    assert found["other_ms_per_step"] >= 0
    cpu = found["children"]["cpu"]
    assert cpu["bytes_in_per_step"] == cpu["bytes_out_per_step"] == 64
    assert cpu["buffers_taken_per_step"] == cpu["device_copy_bytes_per_step"] == 0
    assert 0 < cpu["arena_peak_live_bytes"] <= cpu["arena_bytes"] <= cpu["allocated_peak_bytes"]
    (plan,) = cpu["memory_plans"].values()
    assert plan["peak_bytes"] <= plan["used_bytes"] == cpu["arena_peak_live_bytes"]
    assert plan["sum_bytes"] == 11 * 64
    (slot,) = found["graph_slots"]
    assert (slot["recordings"], slot["replays"]) == (1, 8)
    assert "onnxruntime" not in found


def test_copies_to_a_device_and_fused_calls_are_counted(tmp_path: Path) -> None:
    split = data(chain(tmp_path), *SPLIT, "--steps", 2, "--shape", "x=3x4")
    assert split["inputs"] == {"x": "float32[3, 4]"}
    assert split["children"]["sim:0"]["device_copy_bytes_per_step"] >= 96
    whole = data(chain(tmp_path), "-p", "cpu", "--steps", 2)["children"]["cpu"]
    assert (whole["fused_calls"], whole["fused_instructions"]) == (1, 10)


def test_onnxruntime_is_timed_in_turn_with_as_many_threads(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = data(products(tmp_path), "-p", "cpu", "--steps", 4, "--against-onnxruntime", "--threads", 1)
    assert found["threads"] == 1
    assert found["onnxruntime"]["ms_per_step"]["median"] > 0
    ratio = found["onnxruntime"]["ratio"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert "ours takes" in run(products(tmp_path), "-p", "cpu", "--steps", 1, "--against-onnxruntime").output


def test_steps_are_fed_different_numbers_but_for_what_is_given(tmp_path: Path) -> None:
    text = "(float[4] x, float[4] c) => (float[4] y) { y = Add(x, c) }"
    work = Work(save(tmp_path, text), ["cpu"], None, None, None, ["c=2"], 1, 1, "primary", 0)
    with work.opened(RuntimeOptions()) as (ex, turns):
        assert len({turn["x"].tobytes() for turn in turns}) == len(turns) > 1
        assert all((turn["c"] == 2).all() for turn in turns)
        assert ex.stats()["steps"] == 1


def test_calls_alternate() -> None:
    seen: list[str] = []
    ours, theirs = in_turn(lambda: seen.append("ours"), lambda: seen.append("theirs"), 3)
    assert seen == ["ours", "theirs"] * 3
    assert len(ours) == len(theirs) == 3
    assert in_turn(lambda: None, None, 2)[1] == []


def test_the_spread_is_the_middle_half() -> None:
    assert spread([9, 1, 2, 3, 4, 5, 6, 7]) == {"median": 4.5, "low": 3, "high": 6}
    assert spread([2]) == {"median": 2, "low": 2, "high": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "-p", "cpu"], "missing.onnx"),
        (["{path}", "-p", "nonsense"], "nonsense"),
        (["{path}", "-p", "cpu", "--steps", "0"], "--steps"),
        (["{path}", "-p", "cpu", "--warmup", "0"], "--warmup"),
        (["{path}", "-p", "cpu", "--threads", "0"], "--threads"),
        (["{path}", "-p", "cpu", "--shape", "x=2x5"], "axis 1 must be 4, not 5"),
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


def test_an_onnxruntime_that_is_not_there_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run(products(tmp_path), "-p", "cpu", "--steps", 1, "--against-onnxruntime")
    assert result.exit_code == 1
    assert "pip install" in result.stderr
    assert len(result.stderr.splitlines()) == 1
