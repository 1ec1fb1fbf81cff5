"""Decision forests as flat arrays: read from a node's attributes, checked as untrusted data, ready to be walked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.kernels.operands import fail
from hetero.program.operation import Operation
from hetero.types import HostArray

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
"""By number: how a node compares its feature with its value."""
EQUAL, MEMBER, LEAF = 4, 6, -1
FEATURE, MODE, YES, NO, NAN, FIRST, LAST = range(7)
"""Columns of `Forest.nodes`: feature, mode, child where the comparison holds, child where not, whether NaN counts as
holding, and the range of a leaf's entries in `targets` and `weights`."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees without cycles whose nodes all exist.

    nodes: (n, 7) int32. values: (n,) what a node compares with. roots: (trees,). targets, weights: (w,), the entries
    of all leaves. n_features: 1 + the largest feature a node asks for. `values` and `weights` share one dtype.
    """

    nodes: HostArray
    values: HostArray
    roots: HostArray
    targets: HostArray
    weights: HostArray
    n_targets: int
    n_features: int


def ints(op: Operation, name: str) -> HostArray:
    """An attribute of integers as an int64 array; empty where it is missing."""
    return np.asarray(op.attr(name, ()), np.int64).reshape(-1)


def numbers(op: Operation, name: str) -> HostArray | None:
    """`name_as_tensor`, or `name` as float32; None where neither is there."""
    given = op.attr(f"{name}_as_tensor")
    if given is not None:
        return np.asarray(given).reshape(-1)
    values = op.attr(name)
    return None if values is None else np.asarray(values, np.float32).reshape(-1)


def forest_by_ids(op: Operation, prefix: str, n_targets: int) -> Forest:
    """The forest of TreeEnsembleClassifier (`prefix` "class") and TreeEnsembleRegressor ("target").

    float64 where an attribute is a double tensor, else float32. Raises: KernelError for arrays of different lengths,
    unknown modes, nodes that are missing, twice there or their own ancestors, features and targets out of range.
    """
    trees, ids = ints(op, "nodes_treeids"), ints(op, "nodes_nodeids")
    modes = _modes(op, op.attr("nodes_modes", ()))
    found = numbers(op, "nodes_values")
    values = np.zeros(len(trees), np.float32) if found is None else found
    features = ints(op, "nodes_featureids")
    yes, no = ints(op, "nodes_truenodeids"), ints(op, "nodes_falsenodeids")
    columns = {"nodeids": ids, "modes": modes, "values": values, "featureids": features, "truenodeids": yes}
    _same_length(op, len(trees), {f"nodes_{k}": v for k, v in (columns | {"falsenodeids": no}).items()})
    place = _Places(op, trees, ids)
    inner = np.flatnonzero(modes != LEAF)
    children = np.tile(np.arange(len(trees)), (2, 1))
    children[0, inner] = place.of(trees[inner], yes[inner], "nodes_truenodeids")
    children[1, inner] = place.of(trees[inner], no[inner], "nodes_falsenodeids")
    _, first = np.unique(trees, return_index=True)
    targets, weights = ints(op, f"{prefix}_ids"), numbers(op, f"{prefix}_weights")
    weights = np.zeros(0, np.float32) if weights is None else weights
    owner_trees, owner_ids = ints(op, f"{prefix}_treeids"), ints(op, f"{prefix}_nodeids")
    entries = {"weights": weights, "treeids": owner_trees, "nodeids": owner_ids}
    _same_length(op, len(targets), {f"{prefix}_{k}": v for k, v in entries.items()})
    owners = place.of(owner_trees, owner_ids, f"{prefix}_nodeids")
    order = np.argsort(owners, kind="stable")
    spans = np.searchsorted(owners[order], np.arange(len(trees) + 1))
    return _forest(
        op,
        modes,
        values,
        features,
        children,
        _tracks(op, len(trees)),
        np.sort(first),
        np.stack([spans[:-1], spans[1:]]),
        targets[order],
        weights[order],
        n_targets,
        f"{prefix}_ids",
    )


def forest_by_index(op: Operation, n_targets: int) -> Forest:
    """The forest of TreeEnsemble: children are indices, leaves stand apart. Raises as `forest_by_ids`."""
    modes = np.asarray(op.attr("nodes_modes", np.zeros(0, np.uint8))).reshape(-1).astype(np.int64)
    if ((modes < 0) | (modes > MEMBER)).any():
        fail(op, f"modes are 0 to {MEMBER}, not {int(modes.min())} to {int(modes.max())}", "nodes_modes")
    values = np.asarray(op.attr("nodes_splits", np.zeros(0, np.float32))).reshape(-1)
    features, targets = ints(op, "nodes_featureids"), ints(op, "leaf_targetids")
    weights = np.asarray(op.attr("leaf_weights", np.zeros(0, np.float32))).reshape(-1)
    n, leaves = len(modes), len(targets)
    sides = []
    for side in ("true", "false"):
        ids, to_leaf = ints(op, f"nodes_{side}nodeids"), ints(op, f"nodes_{side}leafs")
        _same_length(op, n, {f"nodes_{side}nodeids": ids, f"nodes_{side}leafs": to_leaf})
        limit = np.where(to_leaf != 0, leaves, n)
        if ((ids < 0) | (ids >= limit)).any():
            fail(op, "an index points at no node or leaf", f"nodes_{side}nodeids")
        sides.append(np.concatenate([ids + np.where(to_leaf != 0, n, 0), n + np.arange(leaves)]))
    _same_length(op, n, {"nodes_splits": values, "nodes_featureids": features})
    _same_length(op, leaves, {"leaf_weights": weights})
    roots = ints(op, "tree_roots")
    if roots.size and not 0 <= roots.min() <= roots.max() < n:
        fail(op, f"a root is none of the {n} nodes", "tree_roots")
    pad = np.zeros(leaves, np.int64)
    spans = np.zeros((2, n + leaves), np.int64)
    spans[0, n:], spans[1, n:] = np.arange(leaves), np.arange(1, leaves + 1)
    return _forest(
        op,
        np.concatenate([modes, pad + LEAF]),
        np.concatenate([values, pad.astype(values.dtype)]),
        np.concatenate([features, pad]),
        np.stack(sides),
        _tracks(op, n + leaves),
        roots,
        spans,
        targets,
        weights,
        n_targets,
        "leaf_targetids",
    )


def _forest(
    op: Operation,
    modes: HostArray,
    values: HostArray,
    features: HostArray,
    children: HostArray,
    tracks: HostArray,
    roots: HostArray,
    spans: HostArray,
    targets: HostArray,
    weights: HostArray,
    n_targets: int,
    operand: str,
) -> Forest:
    """children, spans: (2, n). Raises: KernelError for cycles, and features and targets out of range."""
    inner = modes != LEAF
    if targets.size and not 0 <= targets.min() <= targets.max() < n_targets:
        fail(op, f"{int(targets.min())} to {int(targets.max())}, of {n_targets} outputs", operand)
    if inner.any() and features[inner].min() < 0:
        fail(op, f"feature {int(features[inner].min())} is negative", "nodes_featureids")
    _check_acyclic(op, children, inner)
    modes, values, features, children, tracks, spans = _members(
        op, modes, values, features, children, tracks, spans
    )
    inner = modes != LEAF
    dtype = np.result_type(values, weights, np.float32)
    columns = (np.where(inner, features, 0), modes, *children, tracks, *spans)
    return Forest(
        np.ascontiguousarray(np.stack(columns, 1), np.int32),
        values.astype(dtype),
        roots.astype(np.int64),
        targets,
        weights.astype(dtype),
        n_targets,
        int(features[inner].max()) + 1 if inner.any() else 0,
    )


def _members(
    op: Operation,
    modes: HostArray,
    values: HostArray,
    features: HostArray,
    children: HostArray,
    tracks: HostArray,
    spans: HostArray,
) -> tuple[HostArray, ...]:
    """The nodes that ask for membership as chains of nodes that ask for equality: the walk then knows one thing less.

    The k-th such node has the k-th of the sets in membership_values, which NaN separates.
    """
    asking = np.flatnonzero(modes == MEMBER)
    listed = np.asarray(op.attr("membership_values", np.zeros(0, values.dtype))).reshape(-1)
    sets: list[HostArray] = np.split(listed, np.flatnonzero(np.isnan(listed)) + 1) if listed.size else []
    sets = [s[~np.isnan(s)] for s in sets]
    if len(sets) < len(asking):
        fail(op, f"{len(sets)} sets for {len(asking)} nodes", "membership_values")
    if not asking.size:
        return modes, values, features, children, tracks, spans
    modes, values, children = modes.copy(), values.copy(), children.copy()
    modes[asking] = EQUAL
    extra_of: list[int] = []
    extra_values: list[Any] = []
    extra_no: list[int] = []
    for node, members in zip(asking.tolist(), sets, strict=False):
        values[node] = members[0] if members.size else np.nan  # nothing equals NaN
        last = int(children[1, node])
        following = len(modes) + len(extra_of)
        for k, member in enumerate(members[1:].tolist()):
            extra_of.append(node)
            extra_values.append(member)
            extra_no.append(last if k == members.size - 2 else following + k + 1)
        if members.size > 1:
            children[1, node] = following
    copied = np.asarray(extra_of, np.int64)
    return (
        np.concatenate([modes, modes[copied]]),
        np.concatenate([values, np.asarray(extra_values, values.dtype)]),
        np.concatenate([features, features[copied]]),
        np.concatenate([children, [children[0, copied], np.asarray(extra_no, np.int64)]], 1),
        np.concatenate([tracks, tracks[copied]]),
        np.concatenate([spans, spans[:, copied]], 1),
    )


def _check_acyclic(op: Operation, children: HostArray, inner: HostArray) -> None:
    """Take away, again and again, the nodes that no node points at: what stays points in a circle."""
    pointing = np.bincount(children[:, inner].reshape(-1), minlength=len(inner))
    free = np.flatnonzero(inner & (pointing == 0))
    taken = 0
    while free.size:
        taken += free.size
        reached = children[:, free].reshape(-1)
        np.subtract.at(pointing, reached, 1)
        reached = np.unique(reached)
        free = reached[inner[reached] & (pointing[reached] == 0)]
    if taken != np.count_nonzero(inner):
        at = int(np.flatnonzero(inner & (pointing > 0))[0])
        fail(op, f"node {at} of the ensemble is its own ancestor", "nodes_truenodeids")


class _Places:
    """Finds nodes by (tree id, node id)."""

    def __init__(self, op: Operation, trees: HostArray, ids: HostArray) -> None:
        self._op = op
        self._trees, tree_ranks = np.unique(trees, return_inverse=True)
        self._ids, id_ranks = np.unique(ids, return_inverse=True)
        keys = tree_ranks * len(self._ids) + id_ranks
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        twice = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if twice.size:
            at = self._order[twice[0]]
            fail(op, f"node {int(ids[at])} of tree {int(trees[at])} is there twice", "nodes_nodeids")

    def of(self, trees: HostArray, ids: HostArray, operand: str) -> HostArray:
        """Where these nodes stand. Raises: KernelError for one that is missing."""
        if not trees.size:
            return np.zeros(0, np.int64)
        tree_ranks, known_trees = _ranks(self._trees, trees)
        id_ranks, known_ids = _ranks(self._ids, ids)
        found, known = _ranks(self._keys, tree_ranks * len(self._ids) + id_ranks)
        missing = np.flatnonzero(~(known & known_trees & known_ids))
        if missing.size:
            tree, node = int(trees[missing[0]]), int(ids[missing[0]])
            fail(self._op, f"tree {tree} has no node {node}", operand)
        places: HostArray = self._order[found]
        return places


def _ranks(ordered: HostArray, wanted: HostArray) -> tuple[HostArray, HostArray]:
    """Positions in `ordered`, and whether they hold what was wanted."""
    if not ordered.size:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    found = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return found, ordered[found] == wanted


def _modes(op: Operation, texts: Sequence[str | bytes]) -> HostArray:
    names = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts]
    number = {name: k for k, name in enumerate(MODES)} | {"LEAF": LEAF}
    unknown = sorted({n for n in names if n not in number})
    if unknown:
        fail(op, f"{unknown[0]!r} is none of {[*MODES, 'LEAF']}", "nodes_modes")
    return np.asarray([number[n] for n in names], np.int64)


def _tracks(op: Operation, n: int) -> HostArray:
    """Which of `n` nodes take NaN as holding; those that the attribute does not list do not."""
    listed = ints(op, "nodes_missing_value_tracks_true")[:n] == 1
    return np.concatenate([listed, np.zeros(n - len(listed), bool)])


def _same_length(op: Operation, n: int, arrays: dict[str, HostArray]) -> None:
    for name, array in arrays.items():
        if len(array) != n:
            fail(op, f"{len(array)} entries, where {n} are expected", name)
