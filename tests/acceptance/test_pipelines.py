"""Pipelines as exporters of classical models write them, against onnxruntime: on the host alone, and split."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero import HeterogeneousExecutor
from tests.kernels.forests import Grown

PROVIDERS = [["cpu"], ["sim:0", "cpu"], ["sim:0", "sim:1", "cpu"]]
RNG = np.random.default_rng(8)
NAN = float("nan")


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    """A node of ai.onnx.ml where that has the operator, of com.microsoft for Tokenizer, else of ai.onnx."""
    domain = (
        "com.microsoft"
        if op_type == "Tokenizer"
        else "ai.onnx.ml"
        if onnx.defs.has(op_type, 3, "ai.onnx.ml")
        else ""
    )
    return helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)


def model(nodes: list[Any], feeds: dict[str, Any], outputs: list[str], **constants: Any) -> onnx.ModelProto:
    dtypes = {
        k: TensorProto.STRING if v.dtype == object else helper.np_dtype_to_tensor_dtype(v.dtype)
        for k, v in feeds.items()
    }
    graph = helper.make_graph(
        nodes,
        "pipeline",
        [helper.make_tensor_value_info(k, dtypes[k], ["n", *v.shape[1:]]) for k, v in feeds.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [("", 18), ("ai.onnx.ml", 3), ("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=8)


def table() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Numbers imputed and scaled, categories encoded, joined, into a linear classifier that ends in maps."""
    feeds = {
        "numbers": np.array([[1.0, NAN], [NAN, 2.0], [3.0, -1.0]], np.float32),
        "kind": np.array([["red"], ["blue"], ["?"]], object),
        "count": np.array([[3], [1], [7]], np.int64),
    }
    nodes = [
        node("Imputer", ["numbers"], ["whole"], replaced_value_float=NAN, imputed_value_floats=[0.5, 0.25]),
        node("Scaler", ["whole"], ["scaled"], offset=[1.0, 0.0], scale=[0.5, 2.0]),
        node("OneHotEncoder", ["kind"], ["hot"], cats_strings=["red", "green", "blue"], zeros=1),
        node("Reshape", ["hot", "shape"], ["flat"]),
        node("OneHotEncoder", ["count"], ["counted"], cats_int64s=[1, 3], zeros=1),
        node("Reshape", ["counted", "pair"], ["counts"]),
        node("FeatureVectorizer", ["scaled", "flat", "counts"], ["features"], inputdimensions=[2, 3, 2]),
        node("LinearClassifier", ["features"], ["label", "scores"], coefficients=RNG.normal(size=21).tolist(),
             intercepts=[0.1, 0.2, -0.1], classlabels_strings=["a", "b", "c"], post_transform="SOFTMAX"),
        node("Normalizer", ["scores"], ["shares"], norm="L1"),
        node("ZipMap", ["shares"], ["maps"], classlabels_strings=["a", "b", "c"]),
    ]  # fmt: skip
    shapes = {"shape": np.array([-1, 3], np.int64), "pair": np.array([-1, 2], np.int64)}
    return model(nodes, feeds, ["label", "maps"], **shapes), feeds


def boosted() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Binary boosting with one score, its label cast from a text."""
    feeds = {"x": RNG.normal(size=(40, 4)).astype(np.float32)}
    forest = Grown(RNG, trees=10, columns=4, targets=(0,)).attributes("class")
    nodes = [
        node("TreeEnsembleClassifier", ["x"], ["text", "scores"], classlabels_strings=["0", "1"], base_values=[-0.3],
             post_transform="LOGISTIC", **forest),
        node("LabelEncoder", ["text"], ["label"], keys_strings=["0", "1"], values_int64s=[-1, 1]),
        node("ArrayFeatureExtractor", ["scores", "second"], ["probability"]),
        node("Binarizer", ["probability"], ["likely"], threshold=0.5),
    ]  # fmt: skip
    return model(nodes, feeds, ["label", "probability", "likely"], second=np.array([1], np.int64)), feeds


def words() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Texts in lower case, tokens, counts of n-grams, a linear model."""
    feeds = {"texts": np.array(["the Cat sat", "no such words", "cat the cat"], object)}
    nodes = [
        node("StringNormalizer", ["texts"], ["lower"], case_change_action="LOWER", locale="C.UTF-8"),
        node("Tokenizer", ["lower"], ["tokens"], mark=0, mincharnum=1, pad_value="#", tokenexp="[a-z]+"),
        node("TfIdfVectorizer", ["tokens"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=2,
             max_skip_count=0, ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3],
             pool_strings=["cat", "sat", "the", "the", "cat"]),
        node("Shape", ["texts"], ["n"]),
        node("MatMul", ["counts", "weights"], ["margins"]),
        node("Sigmoid", ["margins"], ["p"]),
    ]  # fmt: skip
    return model(
        nodes, feeds, ["counts", "p", "n"], weights=RNG.normal(size=(4, 2)).astype(np.float32)
    ), feeds


def vectors() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Support vectors over centred features, and a regression beside it."""
    feeds = {"x": RNG.normal(size=(12, 3)).astype(np.float32)}
    svm = {
        "kernel_type": "RBF",
        "kernel_params": [0.4, 0.0, 3.0],
        "support_vectors": RNG.normal(size=18).tolist(),
    }
    nodes = [
        node("Sub", ["x", "mean"], ["centred"]),
        node("SVMClassifier", ["centred"], ["label", "p"], classlabels_ints=[2, 4, 8], vectors_per_class=[2, 2, 2],
             coefficients=RNG.normal(size=12).tolist(), rho=[0.1, -0.2, 0.3], prob_a=[-1.0, -2.0, -1.5],
             prob_b=[0.1, 0.0, -0.1], **svm),
        node("SVMRegressor", ["centred"], ["y"], n_supports=6, coefficients=RNG.normal(size=6).tolist(),
             rho=[0.5], **svm),
        node("LinearRegressor", ["centred"], ["z"], coefficients=[1.0, -1.0, 0.5], intercepts=[2.0], targets=1),
    ]  # fmt: skip
    return model(nodes, feeds, ["label", "p", "y", "z"], mean=np.array([0.1, 0.2, 0.3], np.float32)), feeds


CASES = {"table": table, "boosted": boosted, "words": words, "vectors": vectors}


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert [list(m) for m in got] == [list(m) for m in expected]
        got, expected = ([list(m.values()) for m in maps] for maps in (got, expected))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    elif expected.dtype.kind == "f":
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    else:
        assert got.tolist() == expected.tolist()


def bits(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) and value.dtype != object else list(value)


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_gives_what_onnxruntime_gives_and_the_same_bits_wherever_it_runs(case: str) -> None:
    proto, feeds = CASES[case]()
    expected = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    seen = []
    for providers in PROVIDERS:
        with HeterogeneousExecutor(proto, providers=providers, children="inline") as ex:
            assert not any("onnx.reference" in p.reason for p in ex.plan.placements)
            for _ in range(2):
                out = ex.run(feeds)
                for name, want in zip([o.name for o in proto.graph.output], expected, strict=True):
                    same(out[name], want)
                seen.append([bits(v) for v in out.values()])
    assert all(s == seen[0] for s in seen)
