"""The ONNX backend API: what its callers hand over and get back, on each device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import helper

import hetero
from hetero.errors import (
    ClosedError,
    InputError,
    ModelError,
    OptionError,
    ProviderError,
    UnsupportedNodeError,
)

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
MODEL = HEAD + "g (float[2] x, float[2] w) => (float[2] y, float[2] z) { y = Sub(x, w) z = Exp(y) }"
WEIGHT = HEAD.replace("9", "3") + (
    "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {10, 20}> { y = Sub(x, w) }"
)
X, W = np.array([1, 2], np.float32), np.array([3, 5], np.float32)
DEVICES = ["CPU", "SIM", "SIM:1"]


def model(text: str = MODEL) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_go_in_and_outputs_come_back_in_the_models_order(device: str) -> None:
    with hetero.backend.prepare(model(), device) as rep:
        for inputs in ([X, W], (X, W), {"w": W, "x": X}):
            y, z = rep.run(inputs)
            assert np.array_equal(y, X - W)
            np.testing.assert_allclose(z, np.exp(X - W), rtol=1e-6)


def test_a_device_comes_before_the_cpu() -> None:
    with hetero.backend.prepare(model(), "SIM:1") as rep:
        assert [p.name for p in rep.executor.plan.providers] == ["sim:1", "cpu"]
        assert {p.provider for p in rep.executor.plan.placements} == {"sim:1"}


def test_providers_take_the_place_of_the_device() -> None:
    options = hetero.RuntimeOptions(fold_constants=False)
    with hetero.backend.prepare(
        model(), providers=[("sim:0", {"except_ops": ["Exp"]}), "cpu"], options=options
    ) as rep:
        assert [p.provider for p in rep.executor.plan.placements] == ["sim:0", "cpu"]
        assert not rep.executor.options.fold_constants


def test_a_weight_that_is_listed_as_an_input_is_not_fed() -> None:
    (y,) = hetero.backend.run_model(model(WEIGHT), [X])
    assert np.array_equal(y, [-9, -18])


def test_one_array_may_stand_for_a_list_of_one() -> None:
    (y,) = hetero.backend.run_model(model(WEIGHT), X)
    assert np.array_equal(y, [-9, -18])


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_is_a_list_and_an_optional_may_be_none(device: str) -> None:
    sequence = HEAD + (
        "g (seq(float[2]) s, optional(float[2]) o) => (seq(float[2]) t, optional(float[2]) p) {"
        " i = Constant<value_int=0>() e = SequenceAt(s, i) t = SequenceInsert(s, e) p = Identity(o) }"
    )
    t, p = hetero.backend.run_model(model(sequence), [[X, W], None], device)
    assert isinstance(t, list)
    assert [e.tolist() for e in t] == [[1, 2], [3, 5], [1, 2]]
    assert p is None


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([X], r"takes 2 inputs \(\['x', 'w'\]\), not 1"),
        ([X, W, W], "takes 2 inputs"),
        ({"x": X}, "missing 'w'"),
        ([X, W.astype(np.float64)], "input 'w' must be float"),
        (X, "a list or a dict of arrays, not ndarray"),
        (3, "a list or a dict of arrays, not int"),
        ("xw", "a list or a dict of arrays, not str"),
    ],
)
def test_wrong_inputs_say_what_is_wanted(inputs: Any, words: str) -> None:
    with hetero.backend.prepare(model()) as rep:
        with pytest.raises(InputError, match=words):
            rep.run(inputs)
        assert np.array_equal(rep.run([X, W])[0], X - W)


def test_unknown_keywords_are_refused_and_the_suites_tolerances_are_not() -> None:
    with pytest.raises(OptionError, match="no_such"):
        hetero.backend.prepare(model(), no_such=1)
    with hetero.backend.prepare(model(), rtol=1e-3, atol=0) as rep, pytest.raises(OptionError, match="other"):
        rep.run([X, W], other=1)


@pytest.mark.parametrize("device", ["NPU", "SIM:x", "", 7])
def test_a_device_that_is_not_there_is_an_error(device: Any) -> None:
    assert not hetero.backend.supports_device(device)
    with pytest.raises(ProviderError):
        hetero.backend.prepare(model(), device)


def test_devices_are_known_by_their_names_in_capitals() -> None:
    assert all(hetero.backend.supports_device(device) for device in [*DEVICES, "CPU:0"])
    assert not hetero.backend.supports_device("CUDA:999999")


def test_a_rep_closes_its_executor_when_told_to_and_when_it_is_dropped() -> None:
    rep = hetero.backend.prepare(model())
    rep.close()
    rep.close()
    with pytest.raises(ClosedError):
        rep.run([X, W])
    dropped = hetero.backend.prepare(model())
    executor, gone = dropped.executor, weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None
    with pytest.raises(ClosedError):
        executor.run({"x": X, "w": W})


def test_a_model_that_nobody_can_run_is_incompatible() -> None:
    strange = model(HEAD + "g (float[2] x) => (float[2] y) { y = Exp(x) }")
    assert hetero.backend.is_compatible(strange)
    strange.graph.node[0].domain = "no.such"
    strange.opset_import.append(helper.make_opsetid("no.such", 1))
    assert not hetero.backend.is_compatible(strange)
    with pytest.raises(UnsupportedNodeError, match=r"no\.such::Exp"):
        hetero.backend.prepare(strange)


@pytest.mark.parametrize("device", DEVICES)
def test_a_node_runs_alone(device: str) -> None:
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    for inputs in ([X, W], {"b": W, "a": X}):
        (c,) = hetero.backend.run_node(node, inputs, device)
        assert np.array_equal(c, X - W)


def test_a_nodes_inputs_may_be_left_out_repeated_or_narrow() -> None:
    (c,) = hetero.backend.run_node(
        helper.make_node("Clip", ["x", "", "high"], ["c"]), [W, None, np.float32(4)]
    )
    assert c.tolist() == [3, 4]
    (d,) = hetero.backend.run_node(helper.make_node("Add", ["x", "x"], ["d"]), [X, X])
    assert d.tolist() == [2, 4]
    narrow = X.astype(ml_dtypes.bfloat16)
    (e,) = hetero.backend.run_node(helper.make_node("Neg", ["x"], ["e"]), [narrow])
    assert (e.dtype, e.tolist()) == (narrow.dtype, [-1, -2])


def test_a_nodes_list_is_a_sequence_and_text_is_text() -> None:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    (y,) = hetero.backend.run_node(node, [[X, W[:1]]])
    assert y.tolist() == [1, 2, 3]
    (text,) = hetero.backend.run_node(
        helper.make_node("StringConcat", ["a", "b"], ["c"]), [np.array(["x", "y"]), np.array(["1", "2"])]
    )
    assert text.tolist() == ["x1", "y2"]


def test_a_node_is_of_the_opset_that_is_asked_for() -> None:
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    (y,) = hetero.backend.run_node(node, [X[None]], opset_version=11, outputs_info=[(np.float32, (2,))])
    assert np.array_equal(y, X)
    with pytest.raises(ModelError, match="Squeeze has no attribute 'axes'"):
        hetero.backend.run_node(node, [X[None]])


def test_a_nodes_other_domain_is_imported_at_its_newest_version() -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L1")
    (y,) = hetero.backend.run_node(node, [X[None]])
    np.testing.assert_allclose(y, X[None] / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "keywords", "words"),
    [
        ([X], {}, "has 2 inputs, not 1"),
        ([X, None], {}, "'b' of a single node cannot be None"),
        ([X, []], {}, "'b' of a single node cannot be an empty sequence"),
        ([X, np.array("2020", "M8[D]")], {}, "'b'.*datetime64"),
        (3, {}, "a list or a dict of arrays, not int"),
        ([X, W], {"outputs_info": []}, "0 entries for 1 outputs"),
    ],
)
def test_what_a_node_cannot_be_fed_is_an_error(inputs: Any, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        hetero.backend.run_node(helper.make_node("Sub", ["a", "b"], ["c"]), inputs, **keywords)


def test_what_is_no_node_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"an onnx\.NodeProto, not dict"):
        hetero.backend.run_node({}, [])
