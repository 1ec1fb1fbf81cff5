"""Connected components of a mask by runs: rows become runs of set pixels, touching runs one component."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Components:
    """Bounding boxes of `n` components, each array of shape (n,), int64; right and bottom are exclusive.

    Ordered by each component's first pixel in row-major order.
    """

    left: NDArray[np.int64]
    top: NDArray[np.int64]
    right: NDArray[np.int64]
    bottom: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.left)


def find_components(mask: NDArray[np.bool_]) -> Components:
    """The 8-connected components of `mask`, shape (height, width).

    Works on runs rather than pixels, so the cost follows the number of strokes on the page, and every
    step is a whole-array operation.
    """
    row, start, end = _runs(mask)
    upper, lower = _touching(row, start, end, stride=mask.shape[1] + 2)
    root = _roots(len(row), upper, lower)
    _, component = np.unique(root, return_inverse=True)
    count = int(component.max()) + 1 if len(component) else 0
    left = np.full(count, mask.shape[1], np.int64)
    top = np.full(count, mask.shape[0], np.int64)
    right, bottom = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.minimum.at(left, component, start)
    np.minimum.at(top, component, row)
    np.maximum.at(right, component, end)
    np.maximum.at(bottom, component, row + 1)
    return Components(left, top, right, bottom)


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, start and exclusive end of each run of set pixels, in row-major order."""
    height, width = mask.shape
    edged = np.zeros((height, width + 2), np.int8)
    edged[:, 1:-1] = mask
    step = np.diff(edged, axis=1)  # +1 where a run starts, -1 where it has just ended
    row, start = np.nonzero(step == 1)
    end = np.nonzero(step == -1)[1]
    return row.astype(np.int64), start.astype(np.int64), end.astype(np.int64)


def _touching(
    row: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64], stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index pairs (run in one row, run in the next row) whose pixels touch, corners included.

    Row and column are folded into one key, so that one binary search over the page finds, for each run,
    the first and the last run above that it touches.
    """
    above = (row - 1) * stride
    first = np.searchsorted(row * stride + end, above + start, side="left")
    last = np.searchsorted(row * stride + start, above + end, side="right")
    count = np.maximum(last - first, 0)
    lower = np.repeat(np.arange(len(row)), count)
    within = np.arange(len(lower)) - np.repeat(np.cumsum(count) - count, count)
    upper = np.repeat(first, count) + within
    return upper.astype(np.int64), lower.astype(np.int64)


def _roots(count: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest index reachable from each of `count` nodes over the undirected edges (a, b).

    Union-find without a loop over edges: every root is hooked under the smallest root it has an edge to,
    then paths are halved until flat. A few rounds suffice where one edge at a time needs thousands.
    """
    root = np.arange(count, dtype=np.int64)
    while True:
        at_a, at_b = root[a], root[b]
        open_edges = at_a != at_b
        if not open_edges.any():
            return root
        # Edges inside one component stay so: later rounds need only the ones that still join two.
        a, b, at_a, at_b = a[open_edges], b[open_edges], at_a[open_edges], at_b[open_edges]
        np.minimum.at(root, np.maximum(at_a, at_b), np.minimum(at_a, at_b))
        while not np.array_equal(flatter := root[root], root):
            root = flatter
