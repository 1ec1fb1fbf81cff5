"""ONNX's multi-device annotations: honoured when read, refused with the reason, written so that they read the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import hetero
from benchmarks.models import encoder
from hetero.errors import ModelError, OptionError, PlanError
from hetero.planner.plan import Plan
from tests.models.decoder import build

CHAIN = (
    '<ir_version: 11, opset_import: ["": 20]>\n'
    "g (float[2, 4] x) => (float[2, 4] y) { a = Exp(x) b = Softmax(a) c = Neg(b) y = Abs(c) }"
)
SIMS: list[Any] = ["sim:0", "sim:1", "cpu"]
X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}


def chain(devices: tuple[str, ...] = ("sim:0", "sim:1"), name: str = "pair") -> onnx.ModelProto:
    """Exp, Softmax, Neg, Abs, named n0 to n3, and a configuration without annotations."""
    model = onnx.parser.parse_model(CHAIN)
    for k, node in enumerate(model.graph.node):
        node.name = f"n{k}"
    configure(model, name, devices)
    return model


def configure(model: onnx.ModelProto, name: str, devices: tuple[str, ...], count: int | None = None) -> None:
    configuration = model.configuration.add()
    configuration.name = name
    configuration.num_devices = len(devices) if count is None else count
    configuration.device.extend(devices)


def mark(
    model: onnx.ModelProto, index: int, stage: int | None = None, *, name: str = "pair", **devices: list[int]
) -> onnx.NodeDeviceConfigurationProto:
    """Annotate a node: its stage, and by tensor name the devices that the tensor lies on, whole."""
    found = model.graph.node[index].device_configurations.add()
    found.configuration_id = name
    if stage is not None:
        found.pipeline_stage = stage
    for tensor, where in devices.items():
        spec = found.sharding_spec.add()
        spec.tensor_name = tensor
        spec.device.extend(where)
    return found


def homes(plan: Plan) -> list[str]:
    return [p.provider for p in plan.placements if not p.path]


def stages(plan: Plan) -> list[int | None]:
    return [p.stage for p in plan.placements if not p.path]


def test_a_node_runs_on_the_device_of_its_stage() -> None:
    model = chain()
    for index, stage in enumerate((0, 0, 1, 1)):
        mark(model, index, stage)
    plan = hetero.plan(model, SIMS, stages="model")
    assert homes(plan) == ["sim:0", "sim:0", "sim:1", "sim:1"]
    assert stages(plan) == [0, 0, 1, 1]
    assert [(s.number, s.child) for s in plan.stages] == [(0, 0), (1, 1)]
    with hetero.HeterogeneousExecutor(model, SIMS, children="inline", stages="model") as ex:
        got = ex.run(X)["y"]
    with hetero.HeterogeneousExecutor(model, ["cpu"], children="inline") as ex:
        assert got.tobytes() == ex.run(X)["y"].tobytes()


def test_annotations_count_only_when_asked_for() -> None:
    model = chain()
    mark(model, 0, 1)
    assert homes(hetero.plan(model, SIMS)) == ["sim:0"] * 4


def test_a_tensor_says_where_its_node_runs_whatever_the_stage_and_others_stay_where_they_were() -> None:
    model = chain()
    mark(model, 1, 0, b=[1])
    mark(model, 2, a=[0, 1], c=[1])  # the input replicated, the output in one place
    plan = hetero.plan(model, SIMS, stages="model")
    assert homes(plan) == ["sim:0", "sim:1", "sim:1", "sim:0"]
    assert stages(plan) == [None, 0, None, None]


def test_a_tensor_replicated_on_a_group_lies_on_the_device_of_the_stage() -> None:
    model = chain()
    spec = mark(model, 0, 1).sharding_spec.add()
    spec.tensor_name = "a"
    spec.device.append(-1)
    group = spec.index_to_device_group_map.add()
    group.key = -1
    group.value.extend([0, 1])
    assert homes(hetero.plan(model, SIMS, stages="model"))[0] == "sim:1"


def test_an_axis_in_one_shard_is_whole() -> None:
    model = chain()
    mark(model, 0, 1, a=[1])
    dim = model.graph.node[0].device_configurations[0].sharding_spec[0].sharded_dim.add()
    dim.axis = 0
    dim.simple_sharding.add(num_shards=1)
    assert homes(hetero.plan(model, SIMS, stages="model"))[0] == "sim:1"


def sharded() -> onnx.ModelProto:
    model = chain()
    mark(model, 1, 0, b=[0, 1])
    dim = model.graph.node[1].device_configurations[0].sharding_spec[0].sharded_dim.add()
    dim.axis = -1
    dim.simple_sharding.add(num_shards=2)
    return model


def test_a_tensor_in_shards_is_refused_with_node_tensor_axis_and_reason() -> None:
    with pytest.raises(PlanError) as caught:
        hetero.plan(sharded(), SIMS, stages="model")
    assert (caught.value.node, caught.value.operand, caught.value.op) == ("n1", "b", "Softmax")
    for part in ("'pair'", "axis -1", "2 shards", "kept whole"):
        assert part in str(caught.value)
    assert hetero.plan(sharded(), SIMS), "it matters only to those who ask for it"


def test_what_the_device_does_not_take_falls_back() -> None:
    model = chain()
    for index in range(4):
        mark(model, index, 1)
    providers: list[Any] = ["sim:0", ("sim:1", {"except_ops": ["Softmax"]}), "cpu"]
    plan = hetero.plan(model, providers, stages="model")
    assert homes(plan) == ["sim:1", "sim:0", "sim:1", "sim:1"]
    assert stages(plan) == [1, None, 1, 1]


def test_overrides_beat_annotations() -> None:
    model = chain()
    for index in range(4):
        mark(model, index, 1)
    plan = hetero.plan(model, SIMS, stages="model", overrides={"n2": "cpu"})
    assert homes(plan) == ["sim:1", "sim:1", "cpu", "sim:1"]
    assert stages(plan) == [1, 1, None, 1]


def test_weights_must_fit_where_they_are_annotated_to_be() -> None:
    text = CHAIN.replace(
        "a = Exp(x)", "w = Constant<value = float[8] {1,2,3,4,5,6,7,8}>() r = Neg(w) a = Exp(x)"
    )
    model = onnx.parser.parse_model(text.replace("y = Abs(c)", "d = Abs(c) s = ReduceSum(r) y = Add(d, s)"))
    configure(model, "pair", ("sim:0", "sim:1"))
    for index, node in enumerate(model.graph.node):
        if node.op_type != "Constant":
            mark(model, index, 1)
    assert hetero.plan(model, SIMS, stages="model").stages[0].weight_bytes == 32
    with pytest.raises(PlanError, match="take 32 bytes, 31 bytes are available") as caught:
        hetero.plan(model, ["sim:0", ("sim:1", {"memory_limit_bytes": 31})], stages="model")
    assert caught.value.device == "sim:1"


def test_one_of_several_configurations_is_chosen_by_name() -> None:
    model = chain()
    configure(model, "other", ("sim:1", "sim:0"))
    mark(model, 0, 0)
    mark(model, 0, 0, name="other")
    assert homes(hetero.plan(model, SIMS, configuration="pair"))[0] == "sim:0"
    assert homes(hetero.plan(model, SIMS, stages="model", configuration="other"))[0] == "sim:1"
    with pytest.raises(PlanError, match=r"choose one of \['pair', 'other'\]"):
        hetero.plan(model, SIMS, stages="model")
    with pytest.raises(OptionError, match="goes with"):
        hetero.plan(model, SIMS, stages="auto", configuration="pair")


@pytest.mark.parametrize(
    ("devices", "providers", "expected"),
    [
        (("CUDA:1", "SIM:0"), ["sim:0", "cuda:1"], ["cuda:1", "sim:0"]),
        (("sim", "CPU"), ["cpu", "sim:0"], ["sim:0", "cpu"]),
        ((), ["sim:1", "cpu"], ["sim:1", "cpu"]),
    ],
)
def test_devices_are_providers_by_name_or_by_place(
    devices: tuple[str, ...], providers: list[str], expected: list[str]
) -> None:
    from hetero.planner.annotations import children_of

    found = children_of(ir.ModelConfiguration("c", 2, devices), providers)
    assert [providers[k] for k in found] == expected


def _bodies_differ(model: onnx.ModelProto) -> None:
    body = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 20]>\n'
        "g (float[2, 4] x, bool p) => (float[2, 4] y) { y = If(p) <then_branch = t () => (float[2, 4] u)"
        " { u = Exp(x) }, else_branch = e () => (float[2, 4] v) { v = Neg(x) }> }"
    )
    model.graph.CopyFrom(body.graph)
    mark(model, 0, 0)
    inner = model.graph.node[0].attribute[0].g.node[0].device_configurations.add()
    inner.configuration_id, inner.pipeline_stage = "pair", 1


def _in_a_function(model: onnx.ModelProto) -> None:
    functions = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 20, "my": 1]>\n'
        "g (float[2, 4] x) => (float[2, 4] y) { y = my.f(x) }\n"
        '<domain: "my", opset_import: ["": 20]> f (a) => (b) { b = Exp(a) }'
    )
    model.CopyFrom(functions)
    configure(model, "pair", ("sim:0", "sim:1"))
    inner = model.functions[0].node[0].device_configurations.add()
    inner.configuration_id, inner.pipeline_stage = "pair", 1


BROKEN: list[tuple[Callable[[onnx.ModelProto], Any], str]] = [
    (lambda m: m.ClearField("configuration"), "has no device configurations"),
    (lambda m: configure(m, "pair", ("sim:0",)), "have one name"),
    (lambda m: setattr(m.configuration[0], "num_devices", 3), "has 3 devices and names 2"),
    (lambda m: m.configuration[0].device.__setitem__(1, "tpu:7"), "'tpu:7', which is no provider here"),
    (lambda m: mark(m, 0, 2), "stage 2 has no device"),
    (lambda m: mark(m, 0, -1), "stage -1 is negative"),
    (lambda m: (mark(m, 0, 0), mark(m, 0, 1)), "annotated twice"),
    (lambda m: mark(m, 0, a=[2]), "'a' lies on device 2"),
    (lambda m: mark(m, 0, a=[-1]), "'a' lies on device -1"),
    (lambda m: mark(m, 1, a=[0], b=[1]), "lie on different devices"),
    (_bodies_differ, "in a body of"),
    (_in_a_function, "in a function"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_annotations_that_cannot_be_honoured_are_refused(
    damage: Callable[[onnx.ModelProto], Any], message: str
) -> None:
    model = chain()
    damage(model)
    with pytest.raises(PlanError, match=message):
        hetero.plan(model, SIMS, stages="model")


def test_a_configuration_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'odd'; it has \['pair'\]"):
        hetero.plan(chain(), SIMS, configuration="odd")
    unnamed = chain(())
    unnamed.configuration[0].num_devices = 4
    with pytest.raises(PlanError, match="4 devices without names, and there are 3 providers"):
        hetero.plan(unnamed, SIMS, stages="model")


def test_calls_hand_their_annotation_to_what_they_become() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 20, "my": 1]>\n'
        "g (float[2, 4] x) => (float[2, 4] y) { a = my.f(x) y = my.f(a) }\n"
        '<domain: "my", opset_import: ["": 20]> f (a) => (c) { b = Exp(a) c = Neg(b) }'
    )
    configure(model, "pair", ("sim:0", "sim:1"))
    mark(model, 0, 0, a=[1])
    mark(model, 1, 1, y=[0])
    plan = hetero.plan(model, SIMS, stages="model")
    assert homes(plan) == ["sim:1", "sim:1", "sim:0", "sim:0"]
    assert stages(plan) == [0, 0, 1, 1]


# -- writing -----------------------------------------------------------------------------------------------------
LOOP = (
    '<ir_version: 8, opset_import: ["": 17, "my": 1]>\n'
    "g (float[n, 4] x, int64 trips, string[n] s) => (float[a, b] y, string[n] t) {"
    " t = Identity(s) e = Exp(x) shape = Shape(e) go = Constant<value = bool {1}>() k = my.f(e)"
    " looped = Loop (trips, go, e) <body = b (int64 i, bool c, float[n, 4] v) => (bool c2, float[n, 4] u)"
    " { c2 = Identity(c) u = Add(v, k) }> r = Reshape(looped, shape) y = Sigmoid(r) }\n"
    '<domain: "my", opset_import: ["": 17]> f (a) => (c) { b = Tanh(a) c = Sqrt(b) }'
)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "loop", "filtered", "unstaged"])
def test_an_annotated_model_gives_the_same_plan(kind: str) -> None:
    model: onnx.ModelProto = (
        encoder(layers=3, hidden=16, heads=2)
        if kind in ("encoder", "filtered", "unstaged")
        else build()
        if kind == "decoder"
        else onnx.parser.parse_model(LOOP)
    )
    providers: list[Any] = ["sim:0", "sim:1", "sim:2", "cpu"]
    if kind == "loop":  # so that the function is not cut in two
        providers = ["sim:0", "sim:1", "cpu"]
    if kind in ("filtered", "unstaged"):
        providers[0] = ("sim:0", {"except_ops": ["Softmax"]})
    keywords: dict[str, Any] = {} if kind == "unstaged" else {"stages": "auto"}
    plan = hetero.plan(model, providers, **keywords)
    before = model.SerializeToString(deterministic=True)
    annotated = plan.annotate(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(annotated)
    again = hetero.plan(annotated, providers, stages="model")
    assert again == plan
    assert hetero.plan(annotated.SerializeToString(), providers, configuration="hetero") == plan
    assert hetero.plan(ir.from_proto(annotated), providers, stages="model") == plan
    assert again.annotate(annotated) == annotated
    assert not any(node.metadata_props for node in annotated.graph.node)


def test_overrides_survive_as_placements() -> None:
    model = encoder(layers=2, hidden=16, heads=2)
    plan = hetero.plan(model, SIMS, stages="auto", overrides={"l0_softmax": "cpu", "l1_qk": "sim:0"})
    again = hetero.plan(plan.annotate(model), SIMS, stages="model")
    assert [replace(p, reason="") for p in again.placements] == [
        replace(p, reason="") for p in plan.placements
    ]
    assert again.parcels == plan.parcels
    assert again.stages == plan.stages


def test_other_configurations_stay_and_one_of_the_name_is_replaced() -> None:
    model = chain(name="hetero")
    configure(model, "mine", ("a", "b", "c"))
    mark(model, 0, 1, name="hetero")
    mark(model, 1, 2, name="mine")
    annotated = hetero.plan(model, ["sim:0"]).annotate(model)
    assert [(c.name, list(c.device)) for c in annotated.configuration] == [
        ("mine", ["a", "b", "c"]),
        ("hetero", ["sim:0"]),
    ]
    assert [c.configuration_id for c in annotated.graph.node[0].device_configurations] == ["hetero"]
    assert [c.configuration_id for c in annotated.graph.node[1].device_configurations] == ["mine", "hetero"]
    named = hetero.plan(model, ["sim:0"]).annotate(model, name="second")
    assert [c.name for c in named.configuration] == ["hetero", "mine", "second"]


def test_external_data_stay_where_they_are(tmp_path: Path) -> None:
    model = encoder(layers=2, hidden=16, heads=2)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    plan = hetero.plan(tmp_path / "m.onnx", SIMS, stages="auto")
    annotated = plan.annotate(tmp_path / "m.onnx")
    assert not any(tensor.raw_data for tensor in annotated.graph.initializer)
    onnx.save(annotated, tmp_path / "annotated.onnx")
    assert hetero.plan(tmp_path / "annotated.onnx", SIMS, stages="model") == plan


def test_an_old_models_weights_stay_what_they_are() -> None:
    model = encoder(layers=1, hidden=16, heads=2)
    model.ir_version = 3
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(i.name, i.data_type, i.dims) for i in model.graph.initializer
    )
    plan = hetero.plan(model, SIMS, stages="auto")
    annotated = plan.annotate(model)
    assert annotated.ir_version == 11
    assert hetero.plan(annotated, SIMS, stages="model") == plan


def test_a_plan_of_another_model_is_refused() -> None:
    plan = hetero.plan(encoder(layers=1, hidden=16, heads=2), SIMS)
    with pytest.raises(PlanError, match="of another model"):
        plan.annotate(chain())
    with pytest.raises(PlanError, match="of another model"):
        plan.annotate(encoder(layers=2, hidden=16, heads=2))
    with pytest.raises(ModelError, match="cannot be read"):
        plan.annotate("no/such/file.onnx")


def test_a_call_that_is_run_in_parts_cannot_be_written() -> None:
    model = onnx.parser.parse_model(LOOP)
    providers: list[Any] = [("sim:0", {"except_ops": ["Tanh"]}), "cpu"]
    with pytest.raises(PlanError, match="call of function 'f' on several devices"):
        hetero.plan(model, providers).annotate(model)
