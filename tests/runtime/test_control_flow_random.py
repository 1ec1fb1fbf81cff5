"""Random nested control flow, whole and split over devices: the interpreter's values, and the same bits every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hetero
from hetero.types import SequenceValue
from tests.runtime.flow_graphs import random_feeds, random_model
from tests.runtime.flow_reference import interpret

PLACES: list[list[Any]] = [
    ["cpu"],
    [("sim:0", {"except_ops": ["Scan", "Sub"]}), ("sim:1", {"except_ops": ["If", "Neg"]}), "cpu"],
]


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return (
            isinstance(found, SequenceValue) and len(found) == len(wanted) and all(map(same, found, wanted))
        )
    wanted = np.asarray(wanted)
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and bool(np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"))
    )


@pytest.mark.parametrize("seed", range(16))
def test_random_nested_control_flow_gives_what_the_text_says_whole_and_split(seed: int) -> None:
    model = random_model(seed)
    feeds = [random_feeds(seed), random_feeds(seed + 1000)]
    with np.errstate(all="ignore"):
        wanted = [interpret(model.graph, f) for f in feeds]
    names = [o.name for o in model.graph.output]
    for providers in PLACES:
        with hetero.HeterogeneousExecutor(model, providers=providers, children="inline") as ex:
            for turn in (0, 1, 0, 0):  # other shapes and conditions in between
                found = ex.run(feeds[turn])
                for name, value in zip(names, wanted[turn], strict=True):
                    assert same(found[name], value), (providers, turn, name, found[name], value)
