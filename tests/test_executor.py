"""HeterogeneousExecutor over inline children: runs, futures, order, errors before and during a step, closing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero
from hetero.errors import (
    ClosedError,
    GuardError,
    HeteroError,
    InputError,
    KernelError,
    ModelError,
    OptionError,
    PlanError,
    ProviderError,
    UnsupportedNodeError,
)
from hetero.providers.base import ProviderConfig
from hetero.providers.cpu import CpuProvider
from hetero.providers.registry import create

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
MODEL = HEAD + (
    "g (float[n, 4] x, int64[k] i) => (float[n, 4] y, float[k, 4] z) {"
    " a = Exp(x) b = Softmax<axis=1>(a) y = Add(b, x) z = Gather<axis=0>(b, i) }"
)
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax"]}), "cpu"]


def executor(text: str = MODEL, providers: Any = None, **keywords: Any) -> hetero.HeterogeneousExecutor:
    keywords.setdefault("children", "inline")
    return hetero.HeterogeneousExecutor(onnx.parser.parse_model(text), providers or SPLIT, **keywords)


def feeds(n: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return {"x": x, "i": np.array([n - 1, 0])}


def expected(x: np.ndarray, i: np.ndarray) -> dict[str, np.ndarray]:
    a = np.exp(x)
    b = np.exp(a - a.max(1, keepdims=True))
    b /= b.sum(1, keepdims=True)
    return {"y": b + x, "z": b[i]}


def check(got: dict[str, Any], x: dict[str, np.ndarray]) -> None:
    for name, want in expected(**x).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)


def test_a_model_split_over_a_device_and_the_cpu_runs() -> None:
    with executor() as ex:
        assert {p.child for p in ex.plan.partitions} == {0, 1}
        for n in (3, 3, 5):
            check(ex.run(feeds(n)), feeds(n))
        assert list(ex.run(feeds(), output_names=["z"])) == ["z"]


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "proto", "ir"])
def test_every_way_to_name_a_model(kind: str, tmp_path: Path) -> None:
    import onnx_ir

    proto = onnx.parser.parse_model(MODEL)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    model: Any = {
        "path": path,
        "str": str(path),
        "bytes": proto.SerializeToString(),
        "proto": proto,
        "ir": onnx_ir.from_proto(proto),
    }[kind]
    with hetero.HeterogeneousExecutor(model, SPLIT, children="inline") as ex:
        check(ex.run(feeds()), feeds())


def test_the_same_model_and_options_give_the_same_plan() -> None:
    with executor() as one, executor() as two:
        assert one.plan.to_bytes() == two.plan.to_bytes()
        assert hetero.plan(onnx.parser.parse_model(MODEL), SPLIT) == one.plan


def test_futures_and_map_deliver_in_order() -> None:
    batches = [feeds(1 + k % 3, k) for k in range(20)]
    with executor() as ex:
        futures = [ex.submit(b) for b in batches[:5]]
        for b, f in zip(batches, futures, strict=False):
            check(f.result(timeout=30), b)
        results = list(ex.map(batches, max_in_flight=3))
        assert len(results) == 20
        for b, r in zip(batches, results, strict=True):
            check(r, b)


def test_map_refuses_a_bound_below_one_at_once() -> None:
    with executor() as ex, pytest.raises(OptionError, match="max_in_flight"):
        ex.map([], max_in_flight=0)


def test_planning_leaves_the_callers_provider_objects_open() -> None:
    provider = create(ProviderConfig("sim:0"))
    hetero.plan(onnx.parser.parse_model(MODEL), [provider, "cpu"])
    with pytest.raises(UnsupportedNodeError):
        executor(
            HEAD + "g (float[2] x) => (float[2] y) { y = my.Own(x) }".replace("my.Own", "NoSuchOp"),
            [provider],
        )
    with executor(providers=[provider, "cpu"]) as ex:
        check(ex.run(feeds()), feeds())


def test_map_reads_no_further_ahead_than_asked() -> None:
    taken: list[int] = []

    def batches() -> Any:
        for k in range(10):
            taken.append(k)
            yield feeds(2, k)

    with executor() as ex:
        results = ex.map(batches(), max_in_flight=2)
        next(results)
        assert len(taken) <= 3
        results.close()
        check(ex.run(feeds()), feeds())


def test_eight_threads_get_what_one_gets() -> None:
    failures: list[BaseException] = []
    with executor() as ex:

        def work(seed: int) -> None:
            try:
                for k in range(10):
                    check(ex.run(feeds(1 + (seed + k) % 4, seed)), feeds(1 + (seed + k) % 4, seed))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures
        assert ex.stats()["steps"] == 80


def test_an_error_in_a_step_names_node_device_and_step_and_leaves_the_executor_usable() -> None:
    with executor() as ex:
        for step in (1, 3):
            with pytest.raises(KernelError) as caught:
                ex.run(feeds() | {"i": np.array([99])})
            assert caught.value.step == step
            assert caught.value.op == "Gather"
            assert caught.value.device in ("sim:0", "cpu")
            check(ex.run(feeds()), feeds())
        stats = ex.stats()
        assert (stats["steps"], stats["failed_steps"]) == (2, 2)
        assert all(child["resident_steps"] == 0 for child in stats["children"].values())


def test_an_error_in_map_comes_at_its_step() -> None:
    with executor() as ex:
        results = ex.map([feeds(), feeds() | {"i": np.array([99])}, feeds()])
        check(next(results), feeds())
        with pytest.raises(KernelError):
            next(results)
        check(ex.run(feeds()), feeds())


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"x": None}, InputError, "'x'"),
        ({"x": np.zeros((3, 5), np.float32)}, InputError, "axis 1 must be 4"),
        ({"x": np.zeros((3, 4))}, InputError, "float64"),
        ({"more": np.zeros(3)}, InputError, "unknown 'more'"),
    ],
)
def test_bad_feeds_are_refused_before_anything_runs(
    bad: dict[str, Any], error: type[HeteroError], words: str
) -> None:
    with executor() as ex:
        for call in (ex.run, ex.submit):
            with pytest.raises(error, match=words):
                call(feeds() | bad)
        assert ex.stats()["failed_steps"] == 0


def test_missing_feeds_and_unknown_outputs_are_named() -> None:
    with executor() as ex:
        with pytest.raises(InputError, match="missing 'x'"):
            ex.run({"i": np.array([0])})
        with pytest.raises(InputError, match=r"\['w'\]"):
            ex.run(feeds(), output_names=["w"])


def test_extents_that_contradict_each_other_are_a_guard_error() -> None:
    with executor(HEAD + "g (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }", ["cpu"]) as ex:
        with pytest.raises(GuardError, match="symbol 'n'"):
            ex.run({"x": np.zeros(2, np.float32), "y": np.zeros(1, np.float32)})
        assert ex.run({"x": np.ones(2, np.float32), "y": np.ones(2, np.float32)})["z"].sum() == 4


@pytest.mark.parametrize(
    ("providers", "error", "words"),
    [
        ([], ProviderError, "provider"),
        (["cpu", "cpu"], ProviderError, "cpu"),
        (["tpu:0"], ProviderError, "tpu"),
        ([("cpu", {"no_such_option": 1})], ProviderError, "no_such_option"),
        ([("cpu", {"except_ops": ["Exp"]})], UnsupportedNodeError, "Exp"),
    ],
)
def test_bad_providers_are_an_error_before_any_child_starts(
    providers: Any, error: type[HeteroError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr("hetero.executor.InlineChildren", never)
    with pytest.raises(error, match=words):
        hetero.HeterogeneousExecutor(onnx.parser.parse_model(MODEL), providers, children="inline")


def test_strict_names_the_node_that_falls_back() -> None:
    with pytest.raises(PlanError, match="Softmax"):
        executor(strict=True)
    with executor(providers=["sim:0", "cpu"], strict=True) as ex:
        check(ex.run(feeds()), feeds())


@pytest.mark.parametrize(
    "keywords", [{"children": "threads"}, {"transport": "pigeons"}, {"ray_options": {"a": 1}}]
)
def test_keywords_that_cannot_be_meant_are_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        executor(**keywords)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace", "no"),
        ("max_in_flight", "4"),
        ("max_in_flight", 0),
        ("seed", True),
        ("step_timeout_s", float("nan")),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        hetero.RuntimeOptions(**{name: value})
    assert caught.value.operand == name


def test_a_file_that_is_no_model_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.onnx"):
        hetero.HeterogeneousExecutor(tmp_path / "nothing.onnx", ["cpu"], children="inline")


def test_outputs_that_are_inputs_or_constants_need_no_partition() -> None:
    text = HEAD + "g (float[2] x) => (float[2] x, float[1] c) { c = Constant<value_floats=[3.0]>() }"
    with executor(text, ["cpu"]) as ex:
        assert not ex.plan.partitions
        x = np.ones(2, np.float32)
        got = ex.run({"x": x})
        assert np.array_equal(got["x"], x)
        assert np.array_equal(got["c"], [3])


def test_an_input_with_a_default_is_a_constant_and_cannot_be_fed() -> None:
    text = HEAD + "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    with executor(text, ["cpu"]) as ex:
        x = np.ones(2, np.float32)
        assert [p.name for p in ex.plan.inputs] == ["x"]
        assert np.array_equal(ex.run({"x": x})["y"], [2, 3])
        with pytest.raises(InputError, match=r"'w' set by the model"):
            ex.run({"x": x, "w": x})


def test_closing_ends_everything_and_twice_is_once() -> None:
    ex = executor()
    future = ex.submit(feeds())
    ex.close()
    check(future.result(timeout=1), feeds())
    ex.close()
    for call in (lambda: ex.run(feeds()), lambda: ex.submit(feeds()), ex.stats):
        with pytest.raises(ClosedError):
            call()


def test_closing_waits_for_every_step_that_was_submitted() -> None:
    ex = executor()
    futures = [ex.submit(feeds(2, k)) for k in range(6)]
    ex.close()
    for k, future in enumerate(futures):
        check(future.result(timeout=0), feeds(2, k))


def test_a_submit_that_a_close_overtakes_is_a_closed_error() -> None:
    class Closing(dict[str, np.ndarray]):
        def __getitem__(self, name: str) -> np.ndarray:
            ex.close()
            return super().__getitem__(name)

    with executor() as ex:
        check(ex.submit(feeds()).result(timeout=30), feeds())
        with pytest.raises(ClosedError):
            ex.submit(Closing(feeds()))


def test_a_provider_that_gets_no_node_is_closed_too() -> None:
    class Watched(CpuProvider):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    idle = Watched(ProviderConfig("cpu:1", ops=frozenset({"Tanh"})))
    with executor(providers=["cpu:0", idle]) as ex:
        assert {p.child for p in ex.plan.partitions} == {0}
        assert not idle.closed
    assert idle.closed


def test_a_trace_has_a_span_per_partition_run(tmp_path: Path) -> None:
    with executor(options=hetero.RuntimeOptions(trace=True)) as ex:
        for _ in range(3):
            ex.run(feeds())
        events = json.loads(ex.write_trace(tmp_path / "trace.json").read_text())["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        assert len(spans) == 3 * len(ex.plan.partitions)
        assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"sim:0", "cpu"}
        assert {s["args"]["step"] for s in spans} == {1, 2, 3}


def test_the_environment_overrides_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_TRACE", "1")
    monkeypatch.setenv("HETERO_MAX_IN_FLIGHT", "2")
    with executor() as ex:
        assert ex.options.trace
        assert ex.options.max_in_flight == 2
    monkeypatch.setenv("HETERO_TRACE", "perhaps")
    with pytest.raises(OptionError, match="HETERO_TRACE"):
        executor()


@pytest.mark.parametrize("providers", [["cpu"], ["sim:0"]], ids=["cpu", "sim"])
def test_a_trace_of_ops_says_of_each_what_it_read_and_whether_it_was_captured(
    tmp_path: Path, providers: list[str]
) -> None:
    nodes = " ".join(f"v{k + 1} = Tanh(v{k})" for k in range(9))
    text = (
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y, int64[2, k] z)'
        f" {{ v0 = Neg(x) {nodes} y = Abs(v9) z = NonZero(y) }}"
    )
    options = hetero.RuntimeOptions(trace_ops=True, fuse_elementwise=False)
    model = onnx.parser.parse_model(text)
    plain = hetero.HeterogeneousExecutor(model, providers, children="inline")
    with plain, hetero.HeterogeneousExecutor(model, providers, children="inline", options=options) as ex:
        x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
        want = plain.run({"x": x})
        for _ in range(3):
            got = ex.run({"x": x})
            assert all(got[name].tobytes() == want[name].tobytes() for name in want)
        events = json.loads(ex.write_trace(tmp_path / "ops.json").read_text())["traceEvents"]
    last = [e for e in events if e["ph"] == "X" and e["args"]["step"] == 3]
    assert [e["args"]["op"] for e in last] == ["Neg", *["Tanh"] * 9, "Abs", "NonZero"]
    assert all(e["args"]["capture"] == "segment" for e in last[:-1])
    assert last[-1]["args"]["reason"] == "data-dependent-shape"
    assert last[0]["args"]["reads_bytes"] == last[0]["args"]["writes_bytes"] == 24
