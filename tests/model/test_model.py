"""The loaded model: signature, defaults, weights, and a digest that sees content and nothing else."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero.model import load_model
from tests.model.build import info, model, node


def base(**changes: object) -> onnx.ModelProto:
    weight = changes.pop("w", np.arange(3, dtype=np.float32))
    assert isinstance(weight, np.ndarray)
    options: dict[str, object] = {"op": "Add", "name": "n", "opset": 21, **changes}
    proto = model(
        [node(str(options["op"]), ["x", "w"], ["y"], name=str(options["name"]))],
        opset=int(str(options["opset"])),
        w=weight,
    )
    return proto


def test_the_digest_changes_with_content_alone(tmp_path: Path) -> None:
    first = load_model(base()).digest
    other_text = base()
    other_text.doc_string = "words"
    other_text.producer_name = "someone"
    path = tmp_path / "elsewhere.onnx"
    onnx.save(other_text, path)
    assert load_model(path).digest == first
    assert len(first) == 64
    nudged = np.array([0, 1, np.nextafter(np.float32(2), np.float32(3))], np.float32)
    different = [
        base(op="Sub"),
        base(name="m"),
        base(opset=20),
        base(w=nudged),
        base(w=np.arange(3.0, dtype=np.float64)),
    ]
    different[-1].graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    different[-1].graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert len({first, *(load_model(m).digest for m in different)}) == 6


def test_the_digest_sees_attributes_and_strings() -> None:
    def proto(**attributes: object) -> onnx.ModelProto:
        return model([node("Odd", ["x"], ["y"], domain="my", **attributes)], domains={"my": 1})

    tensor = helper.make_tensor("t", 1, [1], [1.0])
    variants = [
        proto(),
        proto(a=1),
        proto(a=1.0),
        proto(a="1"),
        proto(a=[1]),
        proto(b=1),
        proto(a=[1.0]),
        proto(a=tensor),
    ]
    variants.append(proto(a=helper.make_tensor("t", 1, [1], [2.0])))
    assert len({load_model(m).digest for m in variants}) == len(variants)


def test_inputs_with_a_default_are_optional() -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x"), info("w", (3,))], w=np.ones(3, np.float32))
    loaded = load_model(proto)
    assert [n for n, _ in loaded.inputs] == ["x"]
    assert loaded.optional_inputs == ("w",)
    assert loaded.weights["w"].tolist() == [1, 1, 1]


def test_before_ir_4_listed_initializers_are_constants() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"])], [info("x"), info("w", (3,))], ir_version=3, w=np.ones(3, np.float32)
    )
    loaded = load_model(proto)
    assert loaded.optional_inputs == ()
    assert [v.name for v in loaded.ir.graph.inputs] == ["x"]


def test_weights_are_a_mapping_that_decodes_once() -> None:
    weights = load_model(base()).weights
    assert list(weights) == ["w"]
    assert "w" in weights
    assert "v" not in weights
    assert weights["w"] is weights["w"]
    assert weights.tensor("w").nbytes == 12
    with pytest.raises(KeyError):
        weights["v"]


def test_loading_leaves_garbage_collection_as_it_was() -> None:
    load_model(base())
    assert gc.isenabled()
    gc.disable()
    try:
        load_model(base())
        assert not gc.isenabled()
    finally:
        gc.enable()
