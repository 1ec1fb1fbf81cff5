"""Operands and attributes that contradict an operator are named, cost nothing, and leave the executor usable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hetero.errors import GuardError, HeteroError, KernelError, MemoryLimitError
from tests.hostile.harness import PROVIDERS, bounded, executor, same_outcome
from tests.hostile.seeds import f32, i64, node_model, scalar

BIG = 2**40
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Case:
    """A node, `good` operands that it takes, and `bad` ones (by position) that it refuses with `words`."""

    op_type: str
    good: Sequence[Any]
    bad: dict[int, Any]
    words: str
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21

    def __str__(self) -> str:
        values = ",".join(str(np.asarray(v).reshape(-1)[:3].tolist()) for v in self.bad.values())
        return f"{self.op_type}-{values}"


def box(*rows: Sequence[float]) -> Any:
    return np.array([rows], np.float32)


X = f32(3, 4)
IMAGE = f32(1, 1, 4, 4)
GRU = [f32(3, 2, 2), f32(1, 9, 2), f32(1, 9, 3), None, np.array([2, 3], np.int32)]
INDICES = (
    *[Case("Gather", [X, i64(0, 2)], {1: i64(0, k)}, "out of range") for k in (3, -4, HIGHEST, LOWEST)],
    Case("Gather", [X, scalar(2)], {1: scalar(3)}, "index 3 is out of range for axis 0 of extent 3"),
    Case("Gather", [X, i64(0)], {0: X[:0]}, "out of range for axis 0 of extent 0"),
    *[
        Case("GatherElements", [X, np.array([[0, 2]])], {1: np.array([[0, k]])}, "out of range")
        for k in (3, -4, HIGHEST, LOWEST)
    ],
    Case("GatherElements", [X, np.array([[0, 2]])], {1: np.zeros((1, 9), np.int64)}, "beyond"),
    *[
        Case("GatherND", [X, np.array([[0, 3]])], {1: np.array([[0, k]])}, "out of range")
        for k in (4, -5, HIGHEST, LOWEST)
    ],
    Case("GatherND", [X, np.array([[0, 3]])], {1: np.array([[0, 1, 1]])}, "3"),
    *[
        Case("ScatterElements", [X, np.array([[0, 2]]), f32(1, 2)], {1: np.array([[0, k]])}, "out of range")
        for k in (3, -4, HIGHEST, LOWEST)
    ],
    Case("ScatterElements", [X, np.array([[0, 2]]), f32(1, 2)], {2: f32(1, 1)}, "updates"),
    *[
        Case("ScatterND", [X, np.array([[0], [2]]), f32(2, 4)], {1: np.array([[0], [k]])}, "out of range")
        for k in (3, -4, HIGHEST, LOWEST)
    ],
    Case("ScatterND", [X, np.array([[0], [2]]), f32(2, 4)], {2: f32(2, 3)}, "updates"),
    Case(
        "TensorScatter",
        [f32(2, 4, 3), f32(2, 2, 3), i64(0, 2)],
        {2: i64(0, 3)},
        "pass the end",
        opset=24,
    ),
    *[
        Case(
            "MaxUnpool",
            [f32(1, 1, 2, 2), np.array([[[[0, 3], [10, 15]]]])],
            {1: np.array([[[[0, 3], [10, k]]]])},
            "outside 16 elements",
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        )
        for k in (16, -1, HIGHEST, LOWEST)
    ],
    *[
        Case("ReverseSequence", [f32(4, 2), i64(4, 2)], {1: i64(4, k)}, "lengths|sequence_lens")
        for k in (5, -1, HIGHEST, LOWEST)
    ],
    *[
        Case("GRU", GRU, {4: np.array([2, k], np.int32)}, "sequence_lens|length", {"hidden_size": 3})
        for k in (4, -1, 2**31 - 1, -(2**31))
    ],
    *[
        Case(
            "RoiAlign",
            [IMAGE, box([0, 0, 3, 3])[0], i64(0)],
            {2: i64(k)},
            "box of sample",
            {"output_height": 2, "output_width": 2},
        )
        for k in (1, -1, HIGHEST)
    ],
)
CHOICES = (
    *[Case("TopK", [X, i64(4)], {1: i64(k)}, "4", {"n_outputs": 2}) for k in (5, -1, HIGHEST, LOWEST)],
    *[Case("OneHot", [i64(0), scalar(3), f32(2)], {1: scalar(k)}, "depth") for k in (-1, LOWEST)],
    *[Case("Tile", [X, i64(2, 1)], {1: i64(2, k)}, "repeats") for k in (-1, LOWEST)],
    Case("Tile", [X, i64(2, 1)], {1: i64(2)}, "repeats"),
    Case("Slice", [X, i64(0), i64(2), i64(1)], {3: i64(2)}, "axis 2 is out of range for rank 2"),
    Case("Slice", [X, i64(0), i64(2), i64(1)], {3: i64(HIGHEST)}, "out of range for rank 2"),
    Case("Slice", [X, i64(0), i64(2), i64(1), i64(1)], {4: i64(0)}, "step"),
    Case("Slice", [X, i64(0), i64(2)], {2: i64(2, 3)}, "do not agree"),
    Case("Squeeze", [f32(2, 1), i64(1)], {1: i64(0)}, "2"),
    Case("Unsqueeze", [X, i64(0)], {1: i64(5)}, "out of range"),
    Case("Unsqueeze", [X, i64(0)], {1: i64(0, 0)}, "twice"),
    Case("Split", [f32(6), i64(2, 4)], {1: i64(2, 5)}, "split", {"n_outputs": 2}),
    Case("Split", [f32(6), i64(2, 4)], {1: i64(-2, 8)}, "split", {"n_outputs": 2}),
    Case("Split", [f32(6), i64(2, 4)], {1: i64(HIGHEST, HIGHEST)}, "split", {"n_outputs": 2}),
    Case("CumSum", [X, scalar(1)], {1: scalar(2)}, "out of range for rank 2"),
    Case("Reshape", [X, i64(2, -1)], {1: i64(5, -1)}, "cannot reshape"),
    Case("Reshape", [X, i64(2, -1)], {1: i64(-1, -1)}, "more than one extent open"),
    Case("Reshape", [X, i64(2, -1)], {1: i64(-2, 6)}, "negative"),
    Case("Reshape", [X, i64(2, -1)], {1: i64(3, 4, 0)}, "axis 2"),
    Case("Reshape", [X, i64(2, -1)], {1: i64(BIG, BIG)}, "cannot reshape"),
    Case("Expand", [f32(3, 1), i64(3, 4)], {1: i64(2, 4)}, "broadcast|expand"),
    Case("Expand", [f32(3, 1), i64(3, 4)], {1: i64(-1, 4)}, "negative|broadcast"),
    Case("Pad", [X, i64(0, 0, 1, 1)], {1: i64(0, -5, 0, 0)}, "pads|extent"),
    Case("Pad", [X, i64(0, 0, 1, 1)], {1: i64(0, 1, 1)}, "pads"),
    Case("Pad", [X, i64(0, 0, 1, 1)], {1: i64(0, LOWEST, 0, LOWEST)}, "pads|extent"),
    Case("MatMul", [f32(2, 3), f32(3, 4)], {1: f32(2, 4)}, "3"),
    Case("MatMul", [f32(2, 3), f32(3, 4)], {1: scalar(1, np.float32)}, "rank|scalar"),
    Case("Gemm", [f32(2, 3), f32(3, 4)], {1: f32(3)}, "matri|rank|axes"),
    Case("Conv", [IMAGE, f32(1, 1, 3, 3)], {1: f32(1, 2, 3, 3)}, "weight"),
    Case("Conv", [IMAGE, f32(1, 1, 3, 3)], {0: f32(1, 1, 2, 2)}, "does not fit"),
    Case("Conv", [IMAGE, f32(1, 1, 3, 3)], {0: f32(4, 4)}, "spatial"),
    Case("LayerNormalization", [X, f32(4)], {1: f32(3)}, "broadcast|scale|Scale"),
    Case("Concat", [X, f32(2, 4)], {1: f32(2, 3)}, "does not join", {"axis": 0}),
    Case("GridSample", [IMAGE, f32(1, 2, 2, 2)], {1: f32(1, 2, 2, 3)}, "grid|3"),
    Case("Einsum", [X, f32(4)], {1: f32(3)}, "4", {"equation": "ij,j->i"}),
    Case("Range", [scalar(0), scalar(5), scalar(1)], {2: scalar(0)}, "delta"),
    *[
        Case(
            "Range",
            [scalar(0.0, np.float32)] * 2 + [scalar(1.0, np.float32)],
            {k: scalar(v, np.float32)},
            "cannot count",
        )
        for k in (0, 1, 2)
        for v in (np.nan, np.inf)
        if (k, v) != (2, np.inf)
    ],
    *[
        Case(
            "Resize",
            [f32(1, 1, 3, 3), None, np.array([1, 1, 2, 2], np.float32)],
            {2: np.array([1, 1, 2, v], np.float32)},
            "scale",
        )
        for v in (np.nan, np.inf, -1.0, 0.0)
    ],
    Case("Resize", [IMAGE, None, None, i64(1, 1, 2, 2)], {3: i64(1, 1, 2, -1)}, "sizes"),
    Case("CenterCropPad", [X, i64(2, 2)], {1: i64(-1, 2)}, "shape|negative|extent"),
    Case("STFT", [f32(1, 16, 1), scalar(4), None, scalar(8)], {1: scalar(0)}, "frame_step|step"),
    Case("STFT", [f32(1, 16, 1), scalar(4), None, scalar(8)], {3: scalar(17)}, "frame_length|16"),
    Case("DFT", [f32(1, 6, 1), scalar(6), scalar(1)], {1: scalar(-1)}, "dft_length|length"),
    Case("DFT", [f32(1, 6, 1), scalar(6), scalar(1)], {2: scalar(3)}, "axis"),
    Case("HannWindow", [scalar(4)], {0: scalar(-1)}, "negative"),
    Case("Trilu", [X, scalar(1)], {0: f32(3)}, "matri|rank|axes|2"),
    Case("Compress", [X, np.array([True, False])], {1: np.array([True] * 13)}, "condition|13"),
    Case("Compress", [X, np.array([True, False])], {1: np.ones((2, 2), bool)}, "condition|axis"),
)
HUGE = (
    *[Case("ConstantOfShape", [i64(2)], {0: i64(*s)}, "bound") for s in ((2**60,), (BIG, BIG), (HIGHEST, 2))],
    *[Case("Expand", [f32(1), i64(2)], {1: i64(*s)}, "bound") for s in ((2**60,), (BIG, BIG), (HIGHEST,))],
    *[Case("Tile", [f32(2), i64(2)], {1: i64(k)}, "bound") for k in (2**60, HIGHEST)],
    *[Case("Range", [scalar(0), scalar(9), scalar(1)], {1: scalar(k)}, "bound") for k in (2**60, HIGHEST)],
    *[Case("OneHot", [i64(0), scalar(3), f32(2)], {1: scalar(k)}, "bound") for k in (2**60, HIGHEST)],
    *[Case("Pad", [f32(2), i64(1, 1)], {1: i64(0, k)}, "bound") for k in (2**60, HIGHEST)],
    Case("Resize", [f32(1, 1, 2), None, None, i64(1, 1, 4)], {3: i64(1, 1, 2**60)}, "bound"),
    Case(
        "Resize",
        [f32(1, 1, 2), None, np.array([1, 1, 2], np.float32)],
        {2: np.array([1, 1, 1e30], np.float32)},
        "bound",
    ),
    Case(
        "Upsample",
        [f32(1, 2), np.array([1, 2], np.float32)],
        {1: np.array([1, 1e30], np.float32)},
        "bound",
        {},
        9,
    ),
    Case("CenterCropPad", [f32(2), i64(3)], {1: i64(2**60)}, "bound"),
    Case("AffineGrid", [f32(1, 2, 3), i64(1, 1, 2, 2)], {1: i64(1, 1, 2**31, 2**31)}, "bound"),
    Case("Col2Im", [f32(1, 4, 4), i64(4, 4), i64(2, 2)], {1: i64(BIG, 4)}, "no blocks", {"strides": [2, 2]}),
    Case("HannWindow", [scalar(4)], {0: scalar(2**60)}, "bound"),
    Case("DFT", [f32(1, 6, 1), scalar(6), scalar(1)], {1: scalar(2**60)}, "bound"),
    Case(
        "MaxUnpool",
        [f32(1, 1, 2), np.array([[[0, 3]]]), i64(1, 1, 4)],
        {2: i64(1, 1, 2**60)},
        "bound",
        {"kernel_shape": [2], "strides": [2]},
    ),
    Case(
        "MelWeightMatrix",
        [scalar(4), scalar(16), scalar(8000)] + [scalar(v, np.float32) for v in (0, 4000)],
        {1: scalar(2**60)},
        "bound",
    ),
)


def _attempt(case: Case, providers: list[str], constants: Sequence[int]) -> None:
    """Good, bad, good again on one executor, where the bad operands are fed; bad alone where they are initializers."""
    attributes = dict(case.attributes)
    n_outputs = attributes.pop("n_outputs", 1)
    bad = [case.bad.get(k, x) for k, x in enumerate(case.good)]
    model, feeds = node_model(
        case.op_type, bad, n_outputs, opset=case.opset, constants=constants, **attributes
    )
    with executor(model, providers) as ex:
        fine = {f"i{k}": x for k, x in enumerate(case.good) if f"i{k}" in feeds}
        before = None if constants else ex.run(fine)
        with bounded(), pytest.raises(HeteroError, match=case.words) as caught:
            ex.run(feeds)
        assert isinstance(caught.value, KernelError | GuardError | MemoryLimitError), repr(caught.value)
        assert caught.value.node == "bad"
        assert case.op_type == caught.value.op
        assert not isinstance(caught.value.__cause__, IndexError | TypeError), "a message of NumPy's"
        if before is not None:
            assert same_outcome(before, ex.run(fine))


@pytest.mark.parametrize("providers", PROVIDERS, ids=lambda p: p[0])
@pytest.mark.parametrize("case", INDICES, ids=str)
def test_an_index_out_of_range_is_named(case: Case, providers: list[str]) -> None:
    _attempt(case, providers, ())


@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_operands_that_contradict_the_operator_are_named(case: Case, constant: bool) -> None:
    _attempt(case, PROVIDERS[0], list(case.bad) if constant else ())


@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
@pytest.mark.parametrize("case", HUGE, ids=str)
def test_a_declared_size_beyond_the_bound_is_refused_before_it_is_allocated(
    case: Case, constant: bool
) -> None:
    _attempt(case, PROVIDERS[constant], list(case.bad) if constant else ())
