"""Steps of other shapes may run on other devices: a plan per class, the same bits, states that stay or are carried."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

import hetero
from hetero import HeterogeneousExecutor
from hetero.errors import InputError, OptionError, PlanError
from hetero.planner.check import check_plan
from hetero.planner.plan import Plan
from tests.models.decoder import build, prompt

HEAD = '<ir_version: 9, opset_import: ["": 17, "my": 1]>\n'
TEXT = HEAD + (
    "g (float[batch, sequence] x, float[sequence, 2] w) => (float[batch, 2] y, float[batch, sequence] z)"
    " { a = Exp(x) z = Neg(a) b = MatMul(z, w) y = my.f(b) }\n"
    '<domain: "my", opset_import: ["": 17]> f (a) => (c) { b = Tanh(a) c = Abs(b) }'
)
DECODE: dict[str, Any] = {"decode": {"when": {"sequence": 1}, "providers": ["cpu", "sim:0"]}}
SPLIT: list[Any] = [("sim:0", {"except_ops": ["MatMul"]}), "cpu"]


def feeds(batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sequence)
    return {
        "x": rng.standard_normal((batch, sequence)).astype(np.float32),
        "w": rng.standard_normal((sequence, 2)).astype(np.float32),
    }


def bits(results: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in results.items()}


def homes(plan: Plan) -> set[str]:
    return {p.provider for p in plan.placements}


def test_each_class_has_a_plan_and_each_step_runs_by_its_own() -> None:
    model = onnx.parser.parse_model(TEXT)
    with (
        HeterogeneousExecutor(model, SPLIT, children="inline", shape_classes=DECODE) as ex,
        HeterogeneousExecutor(model, ["cpu"], children="inline") as whole,
    ):
        assert homes(ex.plan) == {"sim:0", "cpu"}
        assert homes(ex.plan.variants[0].plan) == {"cpu"}
        for shape in ((2, 3), (2, 1), (2, 1), (1, 5), (3, 1), (2, 3)):
            assert bits(ex.run(feeds(*shape))) == bits(whole.run(feeds(*shape)))
        assert ex.run(feeds(2, 1), output_names=["y"]).keys() == {"y"}
        stats = ex.stats()
        assert stats["steps_by_class"] == {"decode": 4}
        assert stats["steps"] == 7
        futures = [ex.submit(feeds(2, n)) for n in (1, 4, 1)]
        assert [bits(f.result()) for f in futures] == [bits(whole.run(feeds(2, n))) for n in (1, 4, 1)]


def test_the_first_class_that_fits_is_taken() -> None:
    model = onnx.parser.parse_model(TEXT)
    classes: dict[str, Any] = {
        "short": {"when": {"sequence": (0, 4)}, "overrides": {"*": "cpu"}},
        "wide": {"when": {"batch": (8, None), "sequence": (2, None)}, "stages": "auto"},
        "never": {"when": {"sequence": 2}},
    }
    providers: list[Any] = ["sim:0", "sim:1", "cpu"]
    with HeterogeneousExecutor(model, providers, children="inline", shape_classes=classes) as ex:
        for shape in ((1, 4), (8, 4), (8, 5), (9, 9), (7, 5)):
            ex.run(feeds(*shape))
        assert ex.stats()["steps_by_class"] == {"short": 2, "wide": 2, "never": 0}
        assert homes(ex.plan) == {"sim:0"}
        assert homes(ex.plan.variants[0].plan) == {"cpu"}
        assert homes(ex.plan.variants[1].plan) == {"sim:0", "sim:1"}
        text = ex.plan.explain()
    assert "shape class 'short', where sequence = 0 to 4" in text
    assert "shape class 'wide', where batch = 8 to any, sequence = 2 to any" in text
    assert "shape class 'never', where sequence = 2" in text


def test_stages_of_a_class_are_balanced_for_its_shapes() -> None:
    """Where rows are few, reading weights counts most, and where they are many, what is done with each row."""
    nodes = " ".join(f"v{k + 1} = Softmax(v{k})" for k in range(8))
    model = onnx.parser.parse_model(
        HEAD + f"g (float[rows, 4096] v0) => (float[rows, 64] y) {{ {nodes} y = MatMul(v8, w) }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4096, 64), np.float32), "w"))
    classes: dict[str, Any] = {
        "few": {"when": {"rows": 1}, "stages": "auto"},
        "many": {"when": {"rows": (2, 1_000_000)}, "stages": "auto"},
    }
    plan = hetero.plan(model, ["sim:0", "sim:1"], shape_classes=classes)
    counts = {v.name: [len(p.node_indices) for p in v.plan.partitions] for v in plan.variants}
    assert counts == {"few": [8, 1], "many": [5, 4]}


def test_plans_with_classes_are_data_like_others() -> None:
    model = onnx.parser.parse_model(TEXT)
    plan = hetero.plan(model, SPLIT, shape_classes=DECODE)
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert [v.when for v in again.variants] == [(("sequence", 1, 1),)]
    assert again.variants[0].plan == plan.variants[0].plan
    assert again.explain(nodes=True) == plan.explain(nodes=True)
    assert plan != hetero.plan(model, SPLIT)
    numbers = [[p.id for p in s.partitions] for s in plan.sections]
    assert [n for row in numbers for n in row] == list(range(sum(map(len, numbers))))


def test_damaged_bytes_give_a_sound_plan_or_a_plan_error() -> None:
    data = hetero.plan(onnx.parser.parse_model(TEXT), SPLIT, shape_classes=DECODE).to_bytes()
    rng = random.Random(4)
    refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(14, len(data))] = rng.randrange(256)
        try:
            plan = Plan.from_bytes(bytes(damaged))
        except PlanError:
            refused += 1
        else:
            assert Plan.from_bytes(plan.to_bytes()) == plan
            assert plan.explain()
            assert plan.sections
    assert refused > 200


def test_a_variant_that_does_not_go_with_its_plan_is_refused() -> None:
    model = onnx.parser.parse_model(TEXT)
    plan = hetero.plan(model, SPLIT, shape_classes=DECODE)
    (own,) = plan.variants
    other = hetero.plan(onnx.parser.parse_model(TEXT.replace("Exp", "Sin")), SPLIT)
    broken = [
        (replace(plan, variants=(own, own)), "two variants of one name"),
        (replace(plan, variants=(replace(own, plan=plan),)), "has variants"),
        (replace(plan, variants=(replace(own, plan=other),)), "of another model"),
        (
            replace(plan, variants=(replace(own, plan=replace(own.plan, outputs=())),)),
            "other inputs or outputs",
        ),
        (replace(plan, variants=(replace(own, when=(("odd", 1, 1),)),)), "no input has an extent 'odd'"),
        (replace(plan, variants=(replace(own, when=(("sequence", 2, 1),)),)), "from 2 to 1"),
        (
            replace(plan, variants=(replace(own, plan=replace(own.plan, weights=(("w",), ()))),)),
            "does not hold",
        ),
    ]
    for bad, message in broken:
        with pytest.raises(PlanError, match=message):
            check_plan(bad)
    with pytest.raises(PlanError, match="has variants"):
        Plan.from_bytes(replace(plan, variants=(replace(own, plan=plan),)).to_bytes())


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        ({"d": {}}, OptionError, "says `when` it holds"),
        ({"d": {"when": {"sequence": -1}}}, OptionError, "'sequence' is a number or a pair"),
        ({"d": {"when": {"sequence": (3, 2)}}}, OptionError, "'sequence' is a number or a pair"),
        ({"d": {"when": {"sequence": True}}}, OptionError, "'sequence' is a number or a pair"),
        ({"d": {"when": {"sequence": 1}, "speed": 3}}, OptionError, "no option 'speed'"),
        ({"d": {"when": {"sequence": 1}, "providers": "cpu"}}, OptionError, "list of names"),
        ({"d": {"when": {"sequence": 1}, "stages": "odd"}}, OptionError, "stages must be"),
        ({"d": 3}, OptionError, "described by a dict"),
        ({"d": {"when": {"tokens": 1}}}, PlanError, r"'tokens' is no extent.*\['batch', 'sequence'\]"),
        ({"d": {"when": {"sequence": 1}, "providers": ["gpu"]}}, PlanError, "'gpu'; there are: sim:0, cpu"),
    ],
)
def test_a_class_that_cannot_be_meant_is_refused(
    classes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hetero.plan(onnx.parser.parse_model(TEXT), SPLIT, shape_classes=classes)


def tokens_of(ids: np.ndarray, at: int) -> dict[str, np.ndarray]:
    return {
        "input_ids": ids,
        "attention_mask": np.ones((1, at + ids.shape[1]), np.int64),
        "position_ids": np.arange(at, at + ids.shape[1])[None],
    }


@pytest.mark.parametrize("where", ["elsewhere", "the same device"])
def test_a_decoder_prefills_on_one_device_and_decodes_on_another_over_one_state(where: str) -> None:
    model = build()
    pairs = {
        i.name: o.name
        for i, o in zip(
            [i for i in model.graph.input if i.name.startswith("past")],
            [o for o in model.graph.output if o.name.startswith("present")],
            strict=True,
        )
    }
    decode = {
        "when": {"sequence_length": 1},
        "providers": ["cpu", "sim:0"] if where == "elsewhere" else ["sim:0", "cpu"],
    }

    def generate(providers: list[Any], **keywords: Any) -> list[bytes]:
        with HeterogeneousExecutor(model, providers, children="inline", **keywords) as ex:
            ex.bind_state(pairs)
            ids, at, seen = prompt(), 0, []
            for _ in range(5):
                (logits,) = ex.run(tokens_of(ids, at)).values()
                seen.append(logits.tobytes())
                at += ids.shape[1]
                ids = logits[:, -1].argmax(axis=-1)[:, None]
            if keywords:
                assert ex.stats()["steps_by_class"] == {"decode": 4}
            return seen

    assert generate(["sim:0", "cpu"], shape_classes={"decode": decode}) == generate(["cpu"])


def test_device_buffers_are_bound_where_every_class_uses_them() -> None:
    model = onnx.parser.parse_model(TEXT)
    names = {p.op: p.node for p in hetero.plan(model, ["sim:0", "sim:1"]).placements}
    near = {"decode": {"when": {"sequence": 1}, "overrides": {names["MatMul"]: "sim:1"}}}
    with HeterogeneousExecutor(model, ["sim:0", "sim:1"], children="inline", shape_classes=near) as ex:
        assert ex.plan.children == [0, 1]
        x = ex.device_buffer("sim:0", (2, 1))
        value = feeds(2, 1)
        x.write(value["x"])
        binding = ex.io_binding()
        binding.bind_input("x", x)  # Exp reads it on sim:0 in both classes
        binding.bind_input("w", value["w"])
        z = ex.device_buffer("sim:0", (2, 1))
        binding.bind_output("z", z)
        for _ in range(3):
            ex.run_with_binding(binding)
        assert ex.stats()["steps_by_class"] == {"decode": 3}
        assert np.array_equal(z.read(), -np.exp(value["x"]))
        with pytest.raises(InputError, match="belongs to sim:0, sim:1"):
            binding.bind_input("w", ex.device_buffer("sim:1", (1, 2)))
