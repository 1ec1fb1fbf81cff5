"""Random decision forests as attributes of ai.onnx.ml's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
SPLITS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Few values, which features take too: so that equality decides."""


def features(
    rng: np.random.Generator, rows: int, columns: int, dtype: Any = np.float32, nan: bool = False
) -> Any:
    """Rows whose elements are splits as often as not; some NaN, if `nan`."""
    x = np.where(
        rng.random((rows, columns)) < 0.5,
        rng.choice(SPLITS, (rows, columns)),
        rng.normal(size=(rows, columns)),
    )
    if nan:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x.astype(dtype)


class Grown:
    """Nodes by (tree, node id), in the order of their ids; leaves give weights to some of `targets`."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        trees: int,
        columns: int,
        targets: tuple[int, ...],
        depth: int = 4,
        modes: tuple[str, ...] = MODES[:1],
        lowest: float = -1.0,
        tracks: bool = False,
    ) -> None:
        self._rng, self._columns, self._targets = rng, columns, targets
        self._modes, self._lowest = modes, lowest
        self.nodes: list[tuple[int, int, int, float, str, int, int, int]] = []
        self.weights: list[tuple[int, int, int, float]] = []
        for tree in range(trees):
            self._next = 0
            self._grow(tree, depth, tracks)

    def _grow(self, tree: int, depth: int, tracks: bool) -> int:
        rng, node = self._rng, self._next
        self._next += 1
        at = len(self.nodes)
        if depth == 0 or (node and rng.random() < 0.2):
            self.nodes.append((tree, node, 0, 0.0, "LEAF", 0, 0, 0))
            for target in self._targets:
                if rng.random() < 0.7 or len(self._targets) == 1:
                    self.weights.append((tree, node, target, float(np.float32(rng.uniform(self._lowest, 1)))))
            return node
        mode, feature = str(rng.choice(self._modes)), int(rng.integers(self._columns))
        self.nodes.append(
            (tree, node, feature, float(rng.choice(SPLITS)), mode, 0, 0, int(tracks and rng.random() < 0.5))
        )
        yes, no = self._grow(tree, depth - 1, tracks), self._grow(tree, depth - 1, tracks)
        self.nodes[at] = (*self.nodes[at][:5], yes, no, self.nodes[at][7])
        return node

    def attributes(self, prefix: str, *, double: bool = False) -> dict[str, Any]:
        """For TreeEnsembleClassifier (`prefix` "class") or TreeEnsembleRegressor ("target"); numbers as double tensors
        where `double`."""
        trees, ids, of, values, modes, yes, no, tracks = (list(c) for c in zip(*self.nodes, strict=True))
        owner_trees, owners, targets, weights = (list(c) for c in zip(*self.weights, strict=True))
        found: dict[str, Any] = {
            "nodes_treeids": trees,
            "nodes_nodeids": ids,
            "nodes_featureids": of,
            "nodes_modes": modes,
            "nodes_truenodeids": yes,
            "nodes_falsenodeids": no,
            f"{prefix}_treeids": owner_trees,
            f"{prefix}_nodeids": owners,
            f"{prefix}_ids": targets,
        }
        if any(tracks):
            found["nodes_missing_value_tracks_true"] = tracks
        for name, listed in (("nodes_values", values), (f"{prefix}_weights", weights)):
            found |= {f"{name}_as_tensor": np.asarray(listed, np.float64)} if double else {name: listed}
        return found
