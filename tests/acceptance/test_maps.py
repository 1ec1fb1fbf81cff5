"""Maps from end to end: fed as dicts, returned as dicts, on the host whatever else there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from hetero import HeterogeneousExecutor
from hetero.backend import run_node
from hetero.errors import InputError, KernelError
from hetero.planner.codec import decode, encode
from tests.kernels.forests import Grown, features

PROVIDERS = [["cpu"], ["sim:0", "cpu"], ["cpu", "sim:0"]]


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(n, t) for n, t in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def map_of(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


def peer(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def classifier(labels: dict[str, Any]) -> onnx.ModelProto:
    """As exporters write one: scaled features, trees, a ZipMap."""
    forest = Grown(np.random.default_rng(0), trees=4, columns=3, targets=(0, 1, 2))
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["h"]),
        helper.make_node("TreeEnsembleClassifier", ["h"], ["label", "scores"], domain="ai.onnx.ml",
                         post_transform="SOFTMAX", **labels, **forest.attributes("class")),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", **labels),
    ]  # fmt: skip
    return model(nodes, {"x": helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])}, ["label", "maps"])


@pytest.mark.parametrize("providers", PROVIDERS, ids="+".join)
@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [4, 5, 6]}, {"classlabels_strings": ["a", "b", "c"]}]
)
def test_a_classifier_ends_in_a_dict_per_row(providers: list[str], labels: dict[str, Any]) -> None:
    proto, x = classifier(labels), features(np.random.default_rng(1), 9, 3)
    expected_label, expected = peer(proto, {"x": x})
    with HeterogeneousExecutor(proto, providers=providers, children="inline") as ex:
        for rows in (9, 9, 4):
            out = ex.run({"x": x[:rows]})
            assert out["label"].tolist() == expected_label[:rows].tolist()
            assert [list(m) for m in out["maps"]] == [list(m) for m in expected[:rows]]
            for got, want in zip(out["maps"], expected, strict=False):
                assert isinstance(got, dict)
                assert got == pytest.approx(want, rel=1e-5)
                assert all(type(v) is float for v in got.values())


def test_placement_says_why_maps_stay_on_the_host() -> None:
    proto = classifier({"classlabels_int64s": [4, 5, 6]})
    with HeterogeneousExecutor(proto, providers=["sim:0", "cpu"], children="inline") as ex:
        placed = {p.op: p for p in ex.plan.placements}
        assert placed["ai.onnx.ml::TreeEnsembleClassifier"].provider == "sim:0"
        assert placed["ai.onnx.ml::ZipMap"].provider == "cpu"
        assert "runs on the host only" in placed["ai.onnx.ml::ZipMap"].rejected[0].reason
        assert decode(encode(ex.plan)) == ex.plan


VECTORIZER = helper.make_node(
    "DictVectorizer", ["m"], ["v"], domain="ai.onnx.ml", string_vocabulary=["b", "a", "z"]
)
DOUBLED = helper.make_node("Add", ["v", "v"], ["y"])


@pytest.mark.parametrize("providers", PROVIDERS, ids="+".join)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
def test_a_dict_is_fed_as_the_map_that_the_model_declares(providers: list[str], dtype: int) -> None:
    proto = model([VECTORIZER, DOUBLED], {"m": map_of(TensorProto.STRING, dtype)}, ["y"])
    with HeterogeneousExecutor(proto, providers=providers, children="inline") as ex:
        for fed in ({"a": 1, "b": 2}, {"b": 3, "q": 4}, {}):
            y = ex.run({"m": fed})["y"]
            assert y.dtype == helper.tensor_dtype_to_np_dtype(dtype)
            assert y.tolist() == [[2 * fed.get(k, 0) for k in ("b", "a", "z")]]


@pytest.mark.parametrize(
    ("fed", "message"),
    [
        ([("a", 1.0)], r"must be map\(string, float\), not list"),
        ({"a": "x"}, "must be"),
        ({1: 1.0}, "has the key 1"),
        ({"a": [1.0, 2.0]}, "must be"),
        ({"a": None}, "must be"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_such_map_is_refused_before_anything_runs(fed: Any, message: str) -> None:
    proto = model([VECTORIZER], {"m": map_of(TensorProto.STRING, TensorProto.FLOAT)}, ["v"])
    with HeterogeneousExecutor(proto, providers=["cpu"], children="inline") as ex:
        with pytest.raises(InputError, match=message):
            ex.run({"m": fed})
        assert ex.run({"m": {"a": 2.0}})["v"].tolist() == [[0, 2, 0]]


def cast_map(value: int, fed: dict[int, Any], **attributes: Any) -> tuple[onnx.ModelProto, Any]:
    node = helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", **attributes)
    proto = model([node], {"m": map_of(TensorProto.INT64, value)}, ["y"])
    with HeterogeneousExecutor(proto, providers=["cpu"], children="inline") as ex:
        return proto, ex.run({"m": fed})["y"]


DENSE, SPARSE = {"map_form": "DENSE"}, {"map_form": "SPARSE", "max_map": 5}


@pytest.mark.parametrize(("cast", "form"), [("TO_FLOAT", DENSE), ("TO_FLOAT", SPARSE), ("TO_INT64", DENSE),
                                            ("TO_INT64", SPARSE), ("TO_STRING", DENSE)])  # fmt: skip
def test_a_map_of_numbers_becomes_a_row(cast: str, form: dict[str, Any]) -> None:
    fed = {3: 2.5, 1: -7.0}
    proto, got = cast_map(TensorProto.FLOAT, fed, cast_to=cast, **form)
    (expected,) = peer(proto, {"m": fed})
    assert got.shape == expected.shape
    assert got.dtype == (object if cast == "TO_STRING" else expected.dtype)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("cast", "form", "fed", "row"),
    [
        ("TO_FLOAT", DENSE, {4: "2", 0: "1.5"}, [1.5, 2.0]),
        ("TO_INT64", SPARSE, {4: "2", 0: "17"}, [17, 0, 0, 0, 2]),
        ("TO_STRING", SPARSE, {1: "b"}, ["", "b", "", "", ""]),
        ("TO_FLOAT", DENSE, {}, []),
        ("TO_FLOAT", SPARSE, {}, [0.0] * 5),
    ],
)
def test_a_map_of_texts_becomes_a_row(
    cast: str, form: dict[str, Any], fed: dict[int, str], row: list[Any]
) -> None:
    assert cast_map(TensorProto.STRING, fed, cast_to=cast, **form)[1].tolist() == [row]


@pytest.mark.parametrize(
    ("form", "fed", "message"),
    [
        ({"map_form": "SPARSE", "max_map": 2}, {2: 1.0}, "max_map is 2"),
        ({"map_form": "SPARSE", "max_map": 2}, {-1: 1.0}, "max_map is 2"),
        ({"cast_to": "TO_FLOAT"}, {0: "seven"}, "no float32"),
        ({"cast_to": "TO_MARS"}, {0: 1.0}, "'TO_MARS'"),
        ({"map_form": "HEAP"}, {0: 1.0}, "'HEAP'"),
    ],
)
def test_a_map_that_makes_no_row_is_an_error(form: dict[str, Any], fed: dict[int, Any], message: str) -> None:
    node = helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", **form)
    with pytest.raises(KernelError, match=message):
        run_node(node, [fed])


def test_a_single_node_takes_and_gives_dicts() -> None:
    node = helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])
    (maps,) = run_node(node, [np.array([1, 2], np.float32)], "SIM:0")
    assert maps == [{"a": 1.0, "b": 2.0}]
    assert type(maps[0]) is dict
    (row,) = run_node(VECTORIZER, [{"a": 3.0}])
    assert row.dtype == np.float32
    assert row.tolist() == [[0, 3, 0]]
    with pytest.raises(InputError, match="empty map"):
        run_node(VECTORIZER, [{}])
    with pytest.raises(KernelError, match=r"shape \[3\] for 2 labels"):
        run_node(node, [np.zeros(3, np.float32)])
