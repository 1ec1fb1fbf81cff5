"""TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble against onnxruntime; a plain walk in Python for the
rest."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.forests import MODES, Grown, features
from tests.kernels.harness import assert_close, check_op, reference, run_op

ML = {"domain": "ai.onnx.ml", "opset": 3}
COMPARE = dict(
    zip(MODES, (operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne), strict=True)
)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("based", [False, True])
def test_a_regressor_aggregates_its_trees(
    rng: np.random.Generator, aggregate: str, targets: int, based: bool
) -> None:
    forest = Grown(rng, trees=7, columns=4, targets=tuple(range(targets)))
    attributes = forest.attributes("target") | (
        {"base_values": [0.25 * k for k in range(1, targets + 1)]} if based else {}
    )
    x = features(rng, 33, 4)
    check_op(
        "TreeEnsembleRegressor", [x], aggregate_function=aggregate, n_targets=targets, **ML, **attributes
    )


@pytest.mark.parametrize("modes", [*((m,) for m in MODES), MODES], ids=lambda m: "+".join(m)[:12])
@pytest.mark.parametrize("tracks", [False, True])
def test_every_mode_of_a_branch_compares_as_its_name_says_and_nan_goes_where_it_is_sent(
    rng: np.random.Generator, modes: tuple[str, ...], tracks: bool
) -> None:
    forest = Grown(rng, trees=4, columns=3, targets=(0,), modes=modes, tracks=tracks)
    check_op(
        "TreeEnsembleRegressor",
        [features(rng, 64, 3, nan=True)],
        n_targets=1,
        **ML,
        **forest.attributes("target"),
    )


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_features_may_be_double_or_integers(rng: np.random.Generator, dtype: type) -> None:
    forest = Grown(rng, trees=4, columns=3, targets=(0, 1, 2))
    x = features(rng, 20, 3, dtype)
    check_op(
        "TreeEnsembleClassifier",
        [x],
        n_outputs=2,
        classlabels_int64s=[5, 6, 7],
        **ML,
        **forest.attributes("class"),
    )


def test_double_attributes_are_compared_and_summed_in_double(rng: np.random.Generator) -> None:
    forest = Grown(rng, trees=5, columns=2, targets=(0, 1))
    x = features(rng, 40, 2, np.float64)
    attributes = forest.attributes("target", double=True) | {"base_values_as_tensor": np.array([1e-9, 0.5])}
    check_op("TreeEnsembleRegressor", [x], n_targets=2, rtol=1e-7, **ML, **attributes)


@pytest.mark.parametrize("transform", [*TRANSFORMS, "PROBIT"])
@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [3, -1, 8]}, {"classlabels_strings": ["a", "b", "ü"]}]
)
@pytest.mark.parametrize("based", [False, True])
def test_a_classifier_of_three_gives_label_and_transformed_scores(
    rng: np.random.Generator, transform: str, labels: dict[str, Any], based: bool
) -> None:
    forest = Grown(rng, trees=6, columns=4, targets=(0, 1, 2), depth=3)
    attributes = forest.attributes("class") | ({"base_values": [0.1, -0.2, 0.3]} if based else {})
    check_op("TreeEnsembleClassifier", [features(rng, 25, 4)], n_outputs=2, post_transform=transform,
             atol=1e-5, **labels, **ML, **attributes)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("lowest", [0.0, -1.0], ids=["probabilities", "margins"])
@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 9]}, {"classlabels_strings": ["no", "yes"]}])
def test_a_binary_classifier_with_one_score_gives_both(
    rng: np.random.Generator, transform: str, column: int, lowest: float, labels: dict[str, Any]
) -> None:
    forest = Grown(rng, trees=3, columns=4, targets=(column,), lowest=lowest)
    check_op("TreeEnsembleClassifier", [features(rng, 25, 4)], n_outputs=2, post_transform=transform,
             **labels, **ML, **forest.attributes("class"))  # fmt: skip


def test_a_base_value_moves_the_one_score_of_a_binary_classifier(rng: np.random.Generator) -> None:
    forest = Grown(rng, trees=3, columns=4, targets=(0,))
    check_op("TreeEnsembleClassifier", [features(rng, 25, 4)], n_outputs=2, post_transform="LOGISTIC",
             base_values=[0.4], classlabels_int64s=[0, 1], **ML, **forest.attributes("class"))  # fmt: skip


def test_two_classes_with_scores_of_their_own_give_the_label_of_the_greater_one(
    rng: np.random.Generator,
) -> None:
    """onnxruntime answers 1 or 0 by the sign of the second score here, whatever the labels are."""
    forest = Grown(rng, trees=5, columns=4, targets=(0, 1), lowest=0.0)
    labels, scores = run_op("TreeEnsembleClassifier", [features(rng, 25, 4)], n_outputs=2,
                            classlabels_int64s=[30, 40], **ML, **forest.attributes("class"))  # fmt: skip
    np.testing.assert_array_equal(labels, np.array([30, 40])[scores.argmax(1)])
    assert set(labels.tolist()) == {30, 40}


def test_one_target_is_transformed_as_the_text_says(rng: np.random.Generator) -> None:
    """onnxruntime leaves the scores of a single target as they are, but for PROBIT."""
    forest = Grown(rng, trees=5, columns=4, targets=(0,))
    x, attributes = features(rng, 25, 4), forest.attributes("target")
    (plain,) = run_op("TreeEnsembleRegressor", [x], n_targets=1, **ML, **attributes)
    (logistic,) = run_op(
        "TreeEnsembleRegressor", [x], n_targets=1, post_transform="LOGISTIC", **ML, **attributes
    )
    np.testing.assert_allclose(logistic, 1 / (1 + np.exp(-plain.astype(np.float64))), rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_any_number_of_rows_is_walked(rng: np.random.Generator, rows: int) -> None:
    forest = Grown(rng, trees=9, columns=4, targets=(0, 1))
    check_op("TreeEnsembleRegressor", [features(rng, rows, 4)], n_targets=2, use_ort=rows > 0, **ML,
             **forest.attributes("target"))  # fmt: skip


def ensemble(grown: Grown, members: dict[int, list[float]], dtype: type) -> dict[str, Any]:
    """The attributes of TreeEnsemble 5 for the forest; `members`: node -> the set that it asks membership of."""
    inner = [n for n in grown.nodes if n[4] != "LEAF"]
    at = {n[:2]: k for k, n in enumerate(inner)}
    leaves = {w[:2]: k for k, w in enumerate(grown.weights)}
    sides: dict[str, list[int]] = {}
    for side, column in (("true", 5), ("false", 6)):
        keys = [(n[0], n[column]) for n in inner]
        sides[f"nodes_{side}nodeids"] = [leaves.get(k, at.get(k, 0)) for k in keys]
        sides[f"nodes_{side}leafs"] = [int(k in leaves) for k in keys]
    sets = [v for k in sorted(members) for v in (*members[k], np.nan)]
    return sides | {
        "tree_roots": [at[tree, 0] for tree in sorted({n[0] for n in inner})],
        "nodes_featureids": [n[2] for n in inner],
        "nodes_splits": np.array([n[3] for n in inner], dtype),
        "nodes_modes": np.array(
            [6 if k in members else MODES.index(n[4]) for k, n in enumerate(inner)], np.uint8
        ),
        "nodes_missing_value_tracks_true": [n[7] for n in inner],
        "leaf_targetids": [w[2] for w in grown.weights],
        "leaf_weights": np.array([w[3] for w in grown.weights], dtype),
        **({"membership_values": np.array(sets, dtype)} if members else {}),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", range(4))
def test_an_ensemble_of_version_5_aggregates_its_trees(
    rng: np.random.Generator, dtype: type, aggregate: int
) -> None:
    grown = Grown(rng, trees=3, columns=3, targets=(0,), modes=MODES)
    x = features(rng, 50, 3, dtype)
    check_op("TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, n_targets=1, aggregate_function=aggregate,
             **ensemble(grown, {}, dtype))  # fmt: skip


@pytest.mark.parametrize("members", [{0: [0.5]}, {0: [0.5], 3: [-1.0, 0.0, 1.0], 4: [0.0, 0.5]}, {1: []}])
def test_a_node_of_version_5_may_ask_for_membership_of_a_set(
    rng: np.random.Generator, members: dict[int, list[float]]
) -> None:
    """onnxruntime goes astray in sets of fractions; so the trees are walked here, node by node."""
    grown = Grown(rng, trees=3, columns=3, targets=(0,), modes=MODES, tracks=True)
    x = features(rng, 200, 3, nan=True)
    (scores,) = run_op("TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, n_targets=1,
                       **ensemble(grown, members, np.float32))  # fmt: skip
    expected = [sum(walked(grown, members, tree, row) for tree in range(3)) for row in x.tolist()]
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-5, atol=1e-6)


def walked(grown: Grown, members: dict[int, list[float]], tree: int, row: list[float]) -> float:
    """The weight of the leaf that `row` reaches in `tree`, the only one that it has."""
    nodes = {n[:2]: n for n in grown.nodes}
    inner = [n[:2] for n in grown.nodes if n[4] != "LEAF"]
    at = (tree, 0)
    while nodes[at][4] != "LEAF":
        _, _, feature, split, mode, yes, no, tracks = nodes[at]
        value, listed = row[feature], members.get(inner.index(at))
        holds = COMPARE[mode](value, split) if listed is None else value in listed
        at = (tree, yes if holds or (tracks and value != value) else no)
    return next(w[3] for w in grown.weights if w[:2] == at)


def test_an_ensemble_of_half_precision_sums_in_single(rng: np.random.Generator) -> None:
    grown = Grown(rng, trees=3, columns=3, targets=(0,))
    attributes = ensemble(grown, {}, np.float16)
    x = features(rng, 50, 3, np.float16)
    wide = {
        k: v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype == np.float16 else v
        for k, v in attributes.items()
    }
    expected = reference(
        "TreeEnsemble", [x.astype(np.float32)], domain="ai.onnx.ml", opset=5, n_targets=1, **wide
    )
    actual = run_op("TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, n_targets=1, **attributes)
    assert_close(actual, [expected[0].astype(np.float16)], rtol=2e-3, atol=1e-3)


STUMP = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_truenodeids": [7, 0, 0]}, "no node 7"),
        ({"nodes_truenodeids": [0, 0, 0]}, "its own ancestor"),
        (
            {"nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], "nodes_truenodeids": [1, 0, 0],
             "nodes_falsenodeids": [2, 2, 0]},
            "its own ancestor",
        ),
        ({"nodes_nodeids": [0, 1, 1]}, "there twice"),
        ({"nodes_featureids": [2, 0, 0]}, "feature 2"),
        ({"nodes_featureids": [-1, 0, 0]}, "negative"),
        ({"nodes_featureids": [1, 0]}, "2 entries, where 3"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "TWIG"]}, "'TWIG'"),
        ({"target_ids": [0, 1]}, "1 outputs"),
        ({"target_nodeids": [1, 3]}, "no node 3"),
        ({"target_treeids": [0, 4]}, "tree 4"),
        ({"base_values": [1.0, 2.0]}, "2 values for 1"),
        ({"post_transform": "SQUARE"}, "'SQUARE'"),
        ({"aggregate_function": "MEDIAN"}, "'MEDIAN'"),
        ({"n_targets": 0}, "not positive"),
        ({"nodes_nodeids": [0, 1, 2**62]}, "no node 2"),
    ],
)  # fmt: skip
def test_a_damaged_ensemble_is_an_error_that_says_where(changes: dict[str, Any], message: str) -> None:
    attributes = {"n_targets": 1} | STUMP | changes
    with pytest.raises(KernelError, match=message):
        run_op("TreeEnsembleRegressor", [np.zeros((2, 2), np.float32)], **ML, **attributes)


def test_a_branch_of_version_5_that_leads_back_or_nowhere_is_an_error() -> None:
    good = {
        "tree_roots": [0],
        "nodes_featureids": [0, 0],
        "nodes_splits": np.zeros(2, np.float32),
        "nodes_modes": np.zeros(2, np.uint8),
        "nodes_truenodeids": [1, 0],
        "nodes_trueleafs": [0, 1],
        "nodes_falsenodeids": [0, 0],
        "nodes_falseleafs": [1, 1],
        "leaf_targetids": [0],
        "leaf_weights": np.ones(1, np.float32),
    }
    for changes, message in (
        ({"nodes_trueleafs": [0, 0]}, "its own ancestor"),
        ({"nodes_falsenodeids": [0, 1]}, "no node or leaf"),
        ({"tree_roots": [2]}, "none of the 2 nodes"),
        ({"nodes_modes": np.array([0, 7], np.uint8)}, "0 to 6"),
        ({"nodes_modes": np.array([0, 6], np.uint8)}, "0 sets for 1"),
        ({"aggregate_function": 4}, "none of 0 to 3"),
    ):
        with pytest.raises(KernelError, match=message):
            run_op(
                "TreeEnsemble", [np.zeros((1, 1), np.float32)], domain="ai.onnx.ml", opset=5, **good | changes
            )
