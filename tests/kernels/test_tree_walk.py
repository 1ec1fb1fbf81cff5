"""The compiled walk and its array form."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.kernels.tree_nodes import forest_by_ids
from hetero.kernels.tree_walk import on_module, walk, walk_arrays
from tests.kernels.forests import MODES, Grown, features
from tests.kernels.harness import operation


@pytest.mark.parametrize("extremum", [0, -1, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_array_form_gives_the_same_bits_as_the_compiled_walk(dtype: type, extremum: int) -> None:
    rng = np.random.default_rng(3)
    grown = Grown(rng, trees=2 if extremum else 40, columns=5, targets=(0, 1, 2), modes=MODES, tracks=True)
    x = features(rng, 2000, 5, dtype, nan=True)  # more walks than the array form makes at once
    attributes = grown.attributes("target", double=dtype is np.float64)
    forest = forest_by_ids(
        operation("TreeEnsembleRegressor", [x], domain="ai.onnx.ml", opset=3, **attributes), "target", 3
    )
    arrays = on_module(np, forest)
    scores = [np.empty((2000, 3), dtype) for _ in range(3)]
    scored = [np.empty((2000, 3), bool) for _ in range(3)]
    walk_arrays(np, x, *arrays, scores[0], scored[0], extremum)
    for k, parallel in ((1, False), (2, True)):
        walk.variant(x, arrays[0], parallel=parallel)(x, *arrays, scores[k], scored[k], extremum)
        assert scores[k].tobytes() == scores[0].tobytes()
        assert scored[k].tobytes() == scored[0].tobytes()
    assert scored[0].all() == (extremum == 0), "with few trees some row reaches no weight for some target"
