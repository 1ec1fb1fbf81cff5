"""Plan bytes are the same everywhere, and bytes from anyone give a sound plan or a PlanError."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import OptionError, PlanError
from hetero.planner.codec import MAGIC, decode, encode
from hetero.planner.plan import Plan, Stage
from hetero.program.packing import dumps, loads
from hetero.program.program import Instruction, Port, Program
from hetero.types import DataType, TensorType
from tests.planner.fakes import F32, FakeProvider, graph, ints, node, plan_of

BODY = Program(
    "then",
    (Instruction(node("my::B", "k", "r", name="inside").op, (0,), (1,), (F32,), (True,), 0),),
    (Port("a", 0, F32),),
    (),
    (Port("r", 1, F32),),
    2,
    n_captures=1,
)


def with_stages(plan: Plan) -> Plan:
    """The plan with its first node in a stage."""
    first, *others = plan.placements
    return replace(plan, placements=(replace(first, stage=3), *others), stages=(Stage(3, 0, 2**61, 12),))


def sample(**options: object) -> Plan:
    g = graph(
        [
            node("my::A", "x w", "a"),
            node("my::B", "a", "b"),
            node("my::A", "b a", "c"),
            node("Shape", "c", "s"),
            node("If", "p a", "d", then_branch=BODY, else_branch=BODY),
            node("my::B", "c d s", "e"),
        ],
        "x p",
        "c e x w",
        {"w": 4},
        {"s": ints(2), "p": TensorType(DataType.BOOL, ())},
    )
    gpu = FakeProvider("sim:0", ["my::A"], only=["my::A", "Shape"])
    gpu.config = replace(gpu.config, options=tuple(options.items()))
    return with_stages(plan_of(g, [gpu, FakeProvider("cpu")]))


def test_a_plan_survives_its_bytes() -> None:
    plan = sample(memory=1 << 30, nested={"b": [1, 2.5], "a": (None, True, "ü")})
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.digest == plan.digest
    assert again.to_bytes() == plan.to_bytes()
    assert again.providers == plan.providers
    assert again.parcels == plan.parcels
    assert again.transfers == plan.transfers
    assert again.weights == plan.weights == (("w",), ())
    assert again.placements == plan.placements
    assert again.stages == plan.stages == (Stage(3, 0, 2**61, 12),)
    assert [p.node_indices for p in again.partitions] == [p.node_indices for p in plan.partitions]
    assert [(p.name, p.type) for p in again.outputs] == [(p.name, p.type) for p in plan.outputs]
    assert again.explain(nodes=True) == plan.explain(nodes=True)


def test_a_plan_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(sample())) == sample()


def test_different_plans_differ() -> None:
    plan = sample()
    assert plan != sample(memory=1)
    assert plan.digest != sample(memory=1).digest
    assert plan != "plan"
    assert plan != replace(plan, model="other")


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import hashlib; from tests.planner.test_codec import sample;"
        "print(hashlib.sha256(sample(z=1, a={'y': 1, 'x': 2}).to_bytes()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {sample(a={"x": 2, "y": 1}, z=1).digest + "\n"}


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**63, b"raw", 1 + 2j, ["ok", object()], "\ud800"])
def test_options_that_are_no_plain_data_are_refused(value: object) -> None:
    with pytest.raises(OptionError) as caught:
        sample(threads=value).to_bytes()
    assert caught.value.operand == "threads"
    assert caught.value.device == "sim:0"


def test_options_that_nest_without_end_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(OptionError, match="nest"):
        sample(loop=endless).to_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"hetero", MAGIC, MAGIC + b"\x63\x00", MAGIC + b"\x01\x00", b"x" * 100]
)
def test_bytes_that_are_no_plan_are_refused(data: bytes) -> None:
    with pytest.raises(PlanError):
        decode(data)


def test_every_truncation_is_refused() -> None:
    data = sample().to_bytes()
    for end in range(len(data)):
        with pytest.raises(PlanError):
            decode(data[:end])
    with pytest.raises(PlanError):
        decode(data + b"\xc0")


def test_damaged_bytes_give_a_sound_plan_or_a_plan_error() -> None:
    data = sample(memory=[1, "x"]).to_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(MAGIC) + 2, len(data))] = rng.randrange(256)
        try:
            plan = decode(bytes(damaged))
        except PlanError:
            refused += 1
        else:
            assert decode(encode(plan)) == plan
            assert plan.explain(nodes=True)
            assert plan.to_dot()
    assert refused > 1000


Plain = st.recursive(
    st.none() | st.integers(-3, 40) | st.text(max_size=3) | st.binary(max_size=6),
    lambda s: st.lists(s, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_records_with_a_part_replaced_give_a_sound_plan_or_a_plan_error(data: st.DataObject) -> None:
    plan = sample(memory=[1, "x"])
    start = len(MAGIC) + 2
    root = loads(plan.to_bytes()[start:])
    at: list[object] = root
    while True:
        index = data.draw(st.integers(0, len(at) - 1))
        inner = at[index]
        if not isinstance(inner, list) or not inner or data.draw(st.booleans()):
            break
        at = inner
    at[index] = data.draw(Plain)
    try:
        decoded = decode(plan.to_bytes()[:start] + dumps(root))
    except PlanError:
        return
    assert decode(encode(decoded)) == decoded
