"""Extensions: prepared once per child, run on the providers they name, and every misuse is an error that says whose."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.errors import CaptureError, KernelError, OptionError, UnsupportedNodeError
from hetero.extensions import Extension, ExtensionContext, find, register, unregister
from hetero.extensions import registry as registry_module
from hetero.program.operation import Operation
from hetero.program.program import Dispatch, Instruction, Program
from hetero.providers.base import Provider
from hetero.providers.registry import resolve
from hetero.runtime.extensions import Extensions
from hetero.types import SequenceValue, TensorSpec
from tests import extension_ops

HEAD = '<ir_version: 9, opset_import: ["": 17, "tests.extensions": 1, "local": 1]>\n'
X = np.array([[-1.0, 0.75, 1.0], [0.5, 0.25, -4.0]], np.float32)
F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    for domain, name in list(registry_module._registry):
        if domain != extension_ops.DOMAIN:
            unregister(domain, name)


def executor(text: str, providers: Sequence[Any] = ("cpu",), **keywords: Any) -> hetero.HeterogeneousExecutor:
    proto = onnx.parser.parse_model(HEAD + text)
    return hetero.HeterogeneousExecutor(proto, providers, children="inline", **keywords)


def local(run: Callable[..., Any], outputs: Callable[..., Any] | None = None, **fields: Any) -> Extension:
    """An extension local::Op registered for this test: x -> as many outputs as the node has, all of x's spec."""

    class Local(Extension):
        domain, name = "local", "Op"

        def outputs(self, op: Operation, inputs: Any) -> Any:
            return [inputs[0]] * len(op.present_outputs) if outputs is None else outputs(op, inputs)

        def run(self, state: Any, inputs: Any, outputs: Any, context: ExtensionContext) -> Any:
            return run(inputs, outputs)

    for key, value in fields.items():
        setattr(Local, key, value)
    return register(Local())


TWO_SCALES = (
    "g (float[n, 3] x) => (float[n, 3] y) {"
    " a = tests.extensions.Scale <factor = 3.0> (x) b = Exp(a) c = Softmax <axis = 1> (b)"
    " y = tests.extensions.Scale <factor = 0.5> (c) }"
)


@pytest.mark.parametrize(
    "providers",
    [
        ["cpu"],
        ["sim:0", "cpu"],
        [("sim:0", {"except_ops": ["Softmax"]}), "cpu"],
        [("cpu", {"ops": ["Exp"]}), "sim:0"],
    ],
    ids=["cpu", "sim", "split", "split the other way"],
)
def test_an_extension_gives_the_same_bits_wherever_it_runs(providers: list[Any]) -> None:
    with executor(TWO_SCALES, providers) as ex, executor(TWO_SCALES) as whole:
        for x in (X, X, X[:1]):
            inner = np.exp(np.exp(3 * x.astype(np.float64)))
            found = ex.run({"x": x})["y"]
            np.testing.assert_allclose(found, inner / inner.sum(1, keepdims=True) / 2, rtol=1e-4)
            assert found.tobytes() == whole.run({"x": x})["y"].tobytes()


def test_it_is_prepared_once_per_operation_and_child_and_run_once_per_step() -> None:
    text = (
        "g (float[n, 3] x) => (float[n, 3] y, int64[2] c, int64[2] d) {"
        " y = Exp(x) c = tests.extensions.Count(x) d = tests.extensions.Count(y) }"
    )
    with executor(text) as ex:
        found = [ex.run({"x": x}) for x in (X, X, X[:1], X)]
        assert sorted(n for step in found for n in (step["c"][1], step["d"][1])) == list(range(1, 9))
        assert {step[k][0] for step in found for k in "cd"} == {2}
        assert ex.stats()["children"]["cpu"]["extensions"] == 2
    with executor(text) as ex:  # another child has a cache of its own
        assert ex.run({"x": X})["c"][0] == 2


def test_it_is_prepared_once_however_often_a_body_runs() -> None:
    text = (
        "g (int64 trips, float[n] x) => (float[n] y, int64[k, 2] c) {"
        " more = Constant<value = bool {1}>()"
        " y, c = Loop(trips, more, x) <body = b (int64 i, bool go, float[n] s) => (bool on, float[n] t, int64[2] k)"
        " { on = Identity(go) t = tests.extensions.Scale <factor = -1.0> (s) k = tests.extensions.Count(s) }> }"
    )
    with executor(text) as ex:
        x = np.arange(3, dtype=np.float32)
        first, second = (ex.run({"trips": np.array(n), "x": x}) for n in (3, 2))
        np.testing.assert_array_equal(first["y"], -x)
        np.testing.assert_array_equal(second["y"], x)
        assert [*first["c"][:, 1], *second["c"][:, 1]] == [1, 2, 3, 4, 5]
        assert {*first["c"][:, 0], *second["c"][:, 0]} == {1}


def test_the_data_may_decide_the_shape() -> None:
    text = (
        "g (float[n, 3] x) => (float[k] y, int64[1] n2) {"
        " p = tests.extensions.Positive(x) y = Neg(p) n2 = Shape(y) }"
    )
    with executor(text, ["sim:0", "cpu"]) as ex:
        for x in (X, -X, X):
            found = ex.run({"x": x})
            np.testing.assert_array_equal(found["y"], -x[x > 0])
            assert found["n2"].tolist() == [(x > 0).sum()]


def test_a_shape_may_follow_from_a_value() -> None:
    def outputs(op: Operation, inputs: Any) -> Any:
        return [TensorSpec(F32, (int(inputs[1].value[0]), 2))]

    def run(inputs: Any, outputs: Any) -> None:
        outputs[0][...] = inputs[0][0]

    local(run, outputs, values=(1,), kinds=("cpu", "sim"))
    text = "g (float[n] x, int64[1] rows) => (float[m, 2] y) { y = local.Op(x, rows) }"
    for providers in (["cpu"], ["sim:0"]):
        with executor(text, providers) as ex:
            for rows in (2, 3, 2, 0):
                y = ex.run({"x": np.array([7], np.float32), "rows": np.array([rows])})["y"]
                assert y.shape == (rows, 2)
                assert (y == 7).all()


def test_planning_knows_the_types_that_the_rule_gives() -> None:
    text = "g (float[2, 3] x) => (y) { a = tests.extensions.Scale(x) b = Transpose(a) y = tests.extensions.Scale(b) }"
    plan = hetero.plan(onnx.parser.parse_model(HEAD + text), ["cpu"])
    assert str(plan.outputs[0].type) == "float[3, 2]"
    (partition,) = plan.partitions
    assert [i.dispatch for i in partition.program.instructions].count(Dispatch.EXTENSION) == 2


def test_a_rule_that_refuses_declared_inputs_is_an_error_of_planning() -> None:
    def outputs(op: Operation, inputs: Any) -> Any:
        raise ValueError(f"wants 4 columns, not {inputs[0].shape[1]}")

    local(lambda i, o: None, outputs)
    text = "g (float[2, 3] x) => (float[2, 3] y) { [bad] y = local.Op(x) }"
    with pytest.raises(
        KernelError, match=r"the type rule of extension local::Op failed: ValueError: wants 4 columns"
    ):
        hetero.plan(onnx.parser.parse_model(HEAD + text), ["cpu"])


def test_placement_says_why_an_extension_is_not_on_a_provider() -> None:
    text = "g (float[n, 3] x) => (float[k] y) { [pick] y = tests.extensions.Positive(x) }"
    plan = hetero.plan(onnx.parser.parse_model(HEAD + text), ["sim:0", "cpu"])
    assert [(p.provider, p.rejected[0].reason) for p in plan.placements] == [
        ("cpu", "tests.extensions::Positive is an extension for cpu only")
    ]
    with pytest.raises(UnsupportedNodeError, match=r"'pick'.*is an extension for cpu only"):
        hetero.plan(onnx.parser.parse_model(HEAD + text), ["sim:0"])


def test_a_check_may_decline_dtypes() -> None:
    local(lambda i, o: None, check=lambda self, op, types: "wants integers")
    text = "g (float[n] x) => (float[n] y) { y = local.Op(x) }"
    with pytest.raises(UnsupportedNodeError, match="wants integers"):
        hetero.plan(onnx.parser.parse_model(HEAD + text), ["cpu"])


ONE = "g (float[n, 3] x) => (float[n, 3] y) { [node] y = local.Op(x) }"
TWO = "g (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) { [node] y, z = local.Op(x) }"


def fault(text: str, providers: Sequence[Any] = ("cpu",)) -> KernelError:
    with executor(text, providers) as ex, pytest.raises(KernelError) as caught:
        ex.run({"x": X})
    assert (caught.value.op, caught.value.node) == ("local::Op", "node")
    return caught.value


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_what_run_raises_is_the_cause_of_an_error_that_names_op_and_node(kind: str, session: bool) -> None:
    def run(inputs: Any, outputs: Any) -> None:
        raise ZeroDivisionError("no luck")

    local(run, kinds=(kind,), in_session=session)
    error = fault(ONE, [kind])
    assert "run of extension local::Op failed: ZeroDivisionError: no luck" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize(
    ("text", "run", "message"),
    [
        (TWO, lambda i, o: [i[0] + 1], "gave 1 outputs, the node has 2"),
        (ONE, lambda i, o: [i[0] + 1, i[0] + 2], "gave 2 outputs, the node has 1"),
        (ONE, lambda i, o: [], "gave 0 outputs, the node has 1"),
        (
            ONE,
            lambda i, o: [i[0][:1] + 1],
            r"gave output 0 as float32\[1, 3\], its rule says float32\[2, 3\]",
        ),
        (ONE, lambda i, o: [i[0].astype(np.float64)], "gave output 0 as float64"),
        (ONE, lambda i, o: ["text"], "gave a str, not an array"),
        (ONE, lambda i, o: i[0].__setitem__(0, 1), "read-only"),
    ],
)
def test_a_result_that_is_not_what_the_rule_said_is_an_error(
    text: str, run: Callable[..., Any], message: str, session: bool
) -> None:
    local(run, in_session=session)
    with pytest.raises(KernelError, match=message):
        raise fault(text)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda op, i: [i[0]] * 2, "the shape rule of extension local::Op gives 2 outputs, the node has 1"),
        (lambda op, i: [None], "gives no spec for output 0"),
        (lambda op, i: [TensorSpec(F32, (-1,))], "a negative extent in"),
        (lambda op, i: [1 / 0], "the shape rule of extension local::Op failed: ZeroDivisionError"),
    ],
)
def test_a_rule_that_fails_is_an_error(outputs: Callable[..., Any], message: str) -> None:
    local(lambda i, o: None, outputs)
    with pytest.raises(KernelError, match=message):
        raise fault(ONE)


def test_where_the_data_decide_run_must_return_something() -> None:
    local(lambda i, o: None, lambda op, i: None)
    assert "returned nothing" in str(fault(ONE))


def test_run_sees_the_context_variables_of_whoever_calls() -> None:
    who, seen = ContextVar("who", default=""), []

    def run(inputs: Any, outputs: Any) -> None:
        seen.append(who.get())
        outputs[0][...] = inputs[0]

    local(run)
    with executor(ONE) as ex:
        for name in ("a", "b", "c"):
            token = who.set(name)
            ex.run({"x": X})
            who.reset(token)
    assert seen == ["a", "b", "c"]


def test_an_error_in_prepare_stops_the_executor_from_starting() -> None:
    def prepare(self: Any, op: Operation, context: ExtensionContext) -> Any:
        raise LookupError(f"no table on {context.device}")

    local(lambda i, o: None, prepare=prepare)
    with pytest.raises(
        KernelError, match=r"prepare of extension local::Op failed: LookupError.*no table on cpu"
    ) as e:
        executor(ONE)
    assert e.value.phase == "prepare"
    assert e.value.node == "node"


def test_results_never_share_memory_with_inputs() -> None:
    local(lambda i, o: [i[0]], lambda op, i: None)
    with executor(ONE) as ex:
        x = X.copy()
        y = ex.run({"x": x})["y"]
        assert not np.shares_memory(x, y)
        np.testing.assert_array_equal(x, y)


def test_outputs_left_out_have_no_array_and_numpy_scalars_are_arrays() -> None:
    def run(inputs: Any, outputs: Any) -> Any:
        assert outputs[0] is None
        return [None, inputs[0].sum()]

    local(run, lambda op, i: [None, TensorSpec(F32, ())])
    with executor("g (float[n, 3] x) => (float z) { , z = local.Op(x) }") as ex:
        assert ex.run({"x": X})["z"] == X.sum()


def test_sequences_go_in_and_out() -> None:
    def run(inputs: Any, outputs: Any) -> Any:
        return [SequenceValue([2 * e for e in inputs[0]])]

    local(run, lambda op, i: None)
    text = (
        "g (float[n, 3] x) => (float[n, 3] y) {"
        " s = SequenceConstruct(x, x) t = local.Op(s) y = ConcatFromSequence<axis = 0>(t) }"
    )
    with executor(text) as ex:
        np.testing.assert_array_equal(ex.run({"x": X})["y"], np.concatenate([2 * X, 2 * X]))


# -- the child's table -------------------------------------------------------------------------------------------------


def instruction(name: str) -> Instruction:
    op = Operation(extension_ops.DOMAIN, name, 1, {"factor": 3.0}, (True,), (True,), name="n")
    return Instruction(op, (0,), (1,), (None,), (True,), 0, Dispatch.EXTENSION)


def program(*instructions: Instruction) -> Program:
    return Program("p", instructions, (), (), (), 2)


@pytest.fixture
def sim() -> Iterator[Provider]:
    (provider,) = resolve(["sim:0"])
    yield provider
    provider.close()


SPEC = TensorSpec(F32, (3,))
ARRAY = np.arange(3, dtype=np.float32)


def test_an_operation_that_was_not_prepared_does_not_compile(sim: Provider) -> None:
    with pytest.raises(
        KernelError, match=r"Scale was not prepared on sim:0 \[node 'n', op tests.extensions::Scale"
    ):
        Extensions(sim).compile(instruction("Scale").op, [SPEC], sim)


def test_an_operation_does_not_run_without_an_executor(sim: Provider) -> None:
    with pytest.raises(
        KernelError, match=r"runs in a child executor only.*node 'n', op tests.extensions::Scale"
    ):
        sim.compile(instruction("Scale").op, [SPEC])


def test_an_operation_runs_only_in_the_context_it_was_prepared_for(sim: Provider) -> None:
    (cpu,) = resolve(["cpu"])
    scale = instruction("Scale")
    here, there = Extensions(sim), Extensions(cpu)
    here.prepare([program(scale)])
    with pytest.raises(KernelError, match="was prepared for sim:0, not for cpu"):
        here.compile(scale.op, [SPEC], cpu)
    foreign = here._prepared[scale.op]
    there.prepare([program(scale)])
    with pytest.raises(KernelError, match=r"with a context that it was not prepared for.*node 'n'"):
        there.run(foreign, [ARRAY], [SPEC])


def test_nothing_runs_after_the_child_was_closed(sim: Provider) -> None:
    scale = instruction("Scale")
    table = Extensions(sim)
    table.prepare([program(scale)])
    compiled = table.compile(scale.op, [SPEC], sim)
    prepared = table._prepared[scale.op]
    assert prepared.context.cache == {"prepared": 1}
    call = sim.bind(compiled, [sim.upload(ARRAY)], [sim.empty(SPEC)], None)
    table.close()
    assert prepared.context.cache == {}
    call()
    with pytest.raises(KernelError, match="not prepared for"):
        sim.synchronize()


def test_caches_outlive_a_new_assignment(sim: Provider) -> None:
    table = Extensions(sim)
    for _ in range(2):
        table.prepare([program(instruction("Scale"), instruction("Scale"))])
    assert len(table) == 2
    (context,) = {p.context for p in table._prepared.values()}
    assert context.cache == {"prepared": 4}


def test_what_runs_inside_capture_is_recorded_and_the_rest_says_why_not(sim: Provider) -> None:
    def bound(name: str, **fields: Any) -> Any:
        if fields:
            local(lambda i, o: o[0].fill(1), kinds=("sim",), **fields)
            op = Operation("local", "Op", 1, {}, (True,), (True,), name="n")
        else:
            op = instruction(name).op
        table = Extensions(sim)
        table.prepare([program(Instruction(op, (0,), (1,), (None,), (True,), 0, Dispatch.EXTENSION))])
        return table.compile(op, [SPEC], sim)

    x, y = sim.upload(ARRAY), sim.empty(SPEC)
    recorded = sim.bind(bound("Scale"), [x], [y], None)
    sim.begin_capture("test", "primary")
    recorded()
    token = sim.end_capture()
    sim.launch(token)
    np.testing.assert_array_equal(sim.download(y), 3 * ARRAY)

    seam = sim.bind(bound("Op", in_session=True), [x], [y], None)
    sim.begin_capture("test", "primary")
    with pytest.raises(CaptureError, match="local::Op does not run inside capture"):
        seam()
    sim.abort_capture()

    outside = bound("Count")
    assert outside.capture == "extension tests.extensions::Count runs outside sessions"
    syncs = sim.stats()["syncs"]
    sim.run(outside, [x])
    assert sim.stats()["syncs"] > syncs  # all work before a seam has ended when it runs


# -- registration ------------------------------------------------------------------------------------------------------


def extension(**fields: Any) -> type[Extension]:
    made = {"domain": "local", "name": "Op", "outputs": lambda *a: None, "run": lambda *a: None, **fields}
    return type("Made", (Extension,), made)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"domain": ""}, "domain of .*Made must be an ONNX name, not ''"),
        ({"domain": "ai.onnx.ml"}, "must have a domain of its own: 'ai.onnx.ml' is the ONNX standard's"),
        ({"name": "two words"}, "name of .*Made must be an ONNX name"),
        ({"name": None}, "name of .*Made must be an ONNX name, not None"),
        ({"versions": ()}, "must be opset versions from 1"),
        ({"versions": (0,)}, "must be opset versions from 1"),
        ({"versions": 1}, "versions of .* must list int values, not 1"),
        ({"kinds": "cpu"}, "kinds of .* must list str values"),
        ({"kinds": ()}, "no provider would run it"),
        ({"values": ("x",)}, "values of .* must list int values"),
        ({"in_capture": True}, "in_capture but not in_session"),
        ({"domain": "com.microsoft", "name": "Gelu"}, "com.microsoft::Gelu-1 of .*Made is built in already"),
    ],
)
def test_a_registration_that_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        register(extension(**fields))


def test_only_extensions_are_registered() -> None:
    with pytest.raises(OptionError, match="an instance or a subclass of Extension, not 3"):
        register(3)  # type: ignore[type-var]


def test_two_extensions_of_one_name_must_not_serve_one_version() -> None:
    first, second, third = (extension(versions=v) for v in ((1, 2), (2, 3), (3,)))
    register(first)
    register(third)
    with pytest.raises(OptionError, match=r"local::Op \[2, 3\] is registered already, by .*Made"):
        register(second)

    def at(version: int) -> type[Extension] | None:
        found = find(Operation("local", "Op", version))
        return None if found is None else type(found)

    assert [at(v) for v in (1, 2, 3, 4)] == [first, first, third, None]
    register(second, replace=True)
    assert [at(v) for v in (2, 3)] == [second, second]
    unregister("local", "Op")
    assert at(2) is None


# -- finding them ------------------------------------------------------------------------------------------------------

MODULE = """
import hetero

@hetero.register_extension
class Op(hetero.Extension):
    domain, name = "{domain}", "Op"

    def outputs(self, op, inputs):
        return [inputs[0]]

    def run(self, state, inputs, outputs, context):
        return [inputs[0] + 1]
"""


def model(domain: str) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(
        [helper.make_node("Op", ["x"], ["y"], domain=domain)],
        "g",
        [value],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module on the path that registers found::Op when it is imported."""
    name = "extension_found_by_name"
    (tmp_path / f"{name}.py").write_text(MODULE.format(domain="found"))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry_module._load_entry.cache_clear()
    yield name
    registry_module._load_entry.cache_clear()
    sys.modules.pop(name, None)


def check_found(options: hetero.RuntimeOptions | None) -> None:
    with hetero.HeterogeneousExecutor(model("found"), ["cpu"], children="inline", options=options) as ex:
        np.testing.assert_array_equal(ex.run({"x": ARRAY})["y"], ARRAY + 1)


def test_options_name_the_modules_to_import(module: str) -> None:
    with pytest.raises(UnsupportedNodeError, match="found::Op"):
        check_found(None)
    check_found(hetero.RuntimeOptions(extensions=f"tests.extension_ops, {module}"))


def test_the_environment_names_modules_too(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_EXTENSIONS", module)
    check_found(None)


def test_a_module_that_is_not_there_is_named() -> None:
    options = hetero.RuntimeOptions(extensions="no_such_module")
    with pytest.raises(
        OptionError, match="extension module 'no_such_module' cannot be imported: ModuleNotFoundError"
    ):
        check_found(options)


def entry_points(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = metadata.EntryPoint("found", value, registry_module.GROUP)

    def listed(*, group: str, name: str) -> list[metadata.EntryPoint]:
        return [entry] if (group, name) == (entry.group, entry.name) else []

    monkeypatch.setattr(registry_module.metadata, "entry_points", listed)


def test_an_entry_point_brings_the_extensions_of_its_domain(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_points(monkeypatch, module)
    check_found(None)


def test_an_entry_point_that_cannot_be_loaded_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, "no_such_module")
    with pytest.raises(
        OptionError, match=r"the extensions of domain 'found' \(no_such_module\) cannot be loaded"
    ):
        check_found(None)


def test_the_example_in_the_documentation_works() -> None:
    text = (Path(__file__).parent.parent / "docs" / "extensions.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "extensions_example"}
    for block in blocks:
        exec(block, names)
    assert names["y"].shape == (2,)
