"""MaxPool, AveragePool and LpPool against pooling written as loops, and against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(17)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def naive(op_type: str, x: Any, c: dict[str, Any]) -> Any:
    """One window after the other, in float64; positions beyond the declared pads count for nothing."""
    rank = len(c["kernel"])
    begins, ends = c["pads"][:rank], c["pads"][rank:]
    outputs = []
    for a, extent in enumerate(x.shape[2:]):
        room = extent + begins[a] + ends[a] - (c["kernel"][a] - 1) * c["dilations"][a] - 1
        count = (-(-room // c["strides"][a]) if c["ceil"] else room // c["strides"][a]) + 1
        if c["ceil"] and (count - 1) * c["strides"][a] >= extent + begins[a]:
            count -= 1
        outputs.append(count)
    y = np.zeros((*x.shape[:2], *outputs))
    for o in np.ndindex(*outputs):
        values, padding = [], 0
        for k in np.ndindex(*c["kernel"]):
            at = [o[a] * c["strides"][a] - begins[a] + k[a] * c["dilations"][a] for a in range(rank)]
            if all(0 <= i < e for i, e in zip(at, x.shape[2:], strict=True)):
                values.append(x[(..., *at)].astype(np.float64))
            elif all(-begins[a] <= at[a] < x.shape[2 + a] + ends[a] for a in range(rank)):
                padding += 1
        if op_type == "MaxPool":
            y[(..., *o)] = np.max(values, axis=0)
        elif op_type == "LpPool":
            y[(..., *o)] = sum(abs(v) ** c["p"] for v in values) ** (1 / c["p"])
        else:
            y[(..., *o)] = sum(values) / (len(values) + (padding if c["include"] else 0))
    return y.astype(np.float32)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, dilations = per_axis(1, 4), per_axis(1, 2)
    # A pad below the kernel keeps one input in reach of every window, so that no mean is of nothing.
    pads = [draw(st.integers(0, (k - 1) // 2)) for k in kernel] * 2
    return {
        "extents": per_axis(3, 7),
        "kernel": kernel,
        "strides": per_axis(1, 3),
        "dilations": dilations,
        "pads": pads,
        "ceil": draw(st.booleans()),
        "include": draw(st.booleans()),
        "p": draw(st.integers(1, 3)),
    }


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@settings(max_examples=40, deadline=None)
@given(c=configurations())
def test_pools_agree_with_loops(op_type: str, c: dict[str, Any]) -> None:
    reach = [(k - 1) * d + 1 for k, d in zip(c["kernel"], c["dilations"], strict=True)]
    rank = len(reach)
    assume(all(r <= e + 2 * p for r, e, p in zip(reach, c["extents"], c["pads"], strict=False)))
    if any(d > 1 for d in c["dilations"]):
        c["pads"] = [0] * (2 * rank)
        assume(all(r <= e for r, e in zip(reach, c["extents"], strict=True)))
    x = normal(2, 2, *c["extents"])
    attributes: dict[str, Any] = {
        "kernel_shape": c["kernel"],
        "strides": c["strides"],
        "dilations": c["dilations"],
        "pads": c["pads"],
        "ceil_mode": int(c["ceil"]),
    }
    if op_type == "AveragePool":
        attributes["count_include_pad"] = int(c["include"])
    if op_type == "LpPool":
        attributes["p"] = c["p"]
    (y,) = run_op(op_type, [x], opset=22, **attributes)
    assert_close([y], [naive(op_type, x, c)], rtol=1e-4, atol=1e-5)


CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, [7, 8, 10, 11, 12, 22]),
    ("MaxPool", {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, [11]),
    ("MaxPool", {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}, [11]),
    ("MaxPool", {"kernel_shape": [3, 2], "ceil_mode": 1, "strides": [2, 3], "dilations": [2, 1]}, [10, 12]),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2]}, [7, 10, 11, 19, 22]),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, [7, 22]),
    ("AveragePool", {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER", "strides": [2, 2]}, [11, 19]),
    (
        "AveragePool",
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1},
        [19],
    ),
    ("LpPool", {"kernel_shape": [3, 2], "strides": [2, 1], "p": 3}, [7, 11, 18]),
]


@pytest.mark.parametrize(("op_type", "attributes", "opsets"), CASES)
def test_pools_agree_with_onnxruntime_at_each_version(
    op_type: str, attributes: dict[str, Any], opsets: list[int]
) -> None:
    for opset in opsets:
        check_op(op_type, [normal(2, 3, 9, 10)], opset=opset, rtol=1e-5, atol=1e-5, **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_takes_bytes(dtype: Any) -> None:
    x = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (1, 2, 6, 6)).astype(dtype)
    check_op("MaxPool", [x], opset=12, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_half_precision_strided_and_empty_inputs_are_taken(op_type: str) -> None:
    x = normal(2, 6, 5, 3, dtype=np.float16).transpose(0, 3, 1, 2)
    (y,) = run_op(op_type, [x], opset=22, kernel_shape=[2, 2])
    (wide,) = run_op(op_type, [x.astype(np.float32)], opset=22, kernel_shape=[2, 2])
    assert (y == wide.astype(np.float16)).all()
    (y,) = run_op(op_type, [normal(0, 3, 5, 5)], opset=22, kernel_shape=[2, 2])
    assert y.shape == (0, 3, 4, 4)


def test_a_window_on_pads_alone_has_the_lowest_maximum() -> None:
    (y,) = run_op("MaxPool", [normal(1, 1, 4)], opset=12, kernel_shape=[1], pads=[1, 0])
    assert y[0, 0, 0] == -np.inf


def test_mistakes_are_named() -> None:
    with pytest.raises(KernelError, match="kernel_shape"):
        compile_op("MaxPool", [normal(1, 1, 4, 4)], opset=12)
    with pytest.raises(KernelError, match="p is 0"):
        compile_op("LpPool", [normal(1, 1, 4, 4)], opset=18, kernel_shape=[2, 2], p=0)
    for op_type in ("MaxPool", "AveragePool", "LpPool"):
        with pytest.raises(UnsupportedError, match="int64"):
            compile_op(op_type, [np.ones((1, 1, 4, 4), np.int64)], opset=22, kernel_shape=[2, 2])
