"""Pad in every mode and version, against NumPy's own padding and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, MemoryLimitError
from hetero.kernels.pad import SMALL_BYTES
from tests.kernels.harness import check_op, run_op


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def grid(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@settings(deadline=None, max_examples=150)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    mode=st.sampled_from(["constant", "edge", "reflect", "wrap"]),
    data=st.data(),
)
def test_padding_is_what_numpy_pads(shape: list[int], mode: Any, data: st.DataObject) -> None:
    x = grid(*shape)
    pads = [data.draw(st.integers(0, 7)) for _ in range(2 * x.ndim)]
    more = [np.array(-1, np.float32)] if mode == "constant" else []
    (out,) = run_op("Pad", [x, i64(*pads), *more], opset=19, mode=mode)
    keywords: Any = {"constant_values": -1} if mode == "constant" else {}
    widths = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    assert out.tolist() == np.pad(x, widths, mode=mode, **keywords).tolist()


def test_large_outputs_are_filled_border_by_border() -> None:
    x = grid(100, 120)
    assert x.nbytes > SMALL_BYTES
    for mode in ("constant", "edge", "reflect"):
        check_op("Pad", [x, i64(2, 0, 1, 5)], opset=18, mode=mode)


def test_the_first_version_takes_pads_and_value_as_attributes() -> None:
    check_op("Pad", [grid(2, 3)], opset=7, pads=[1, 0, 0, 2], value=1.5)
    check_op("Pad", [grid(2, 3)], opset=10, pads=[0, -1, 1, 0], value=-2.0)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_later_versions_take_pads_as_inputs(opset: int) -> None:
    check_op("Pad", [grid(2, 3), i64(1, 0, 0, 2), np.array(3, np.float32)], opset=opset)
    check_op("Pad", [grid(2, 3), i64(1, 0, 0, 2)], opset=opset, mode="edge")


def test_axes_choose_what_is_padded() -> None:
    check_op("Pad", [grid(2, 3), i64(1, 2), np.array(3, np.float32), i64(-1)], opset=18)
    (out,) = run_op("Pad", [grid(2, 3), i64(1, 2), None, i64(0)], opset=18, mode="edge")
    assert out[:, 0].tolist() == [0, 0, 3, 3, 3]


def test_negative_pads_crop_first_and_the_borders_continue_what_is_left() -> None:
    x = np.arange(6)
    (out,) = run_op("Pad", [x, i64(-2, 3)], opset=19, mode="reflect")
    assert out.tolist() == [2, 3, 4, 5, 4, 3, 2]
    (out,) = run_op("Pad", [x, i64(2, -3)], opset=19, mode="wrap")
    assert out.tolist() == [1, 2, 0, 1, 2]
    (out,) = run_op("Pad", [x, i64(-2, -4)], opset=19)
    assert out.tolist() == []
    with pytest.raises(KernelError, match="cannot crop axis 0 of extent 6 by -4 and -3"):
        run_op("Pad", [x, i64(-4, -3)], opset=19)


def test_an_empty_axis_can_be_filled_but_not_continued() -> None:
    x = np.zeros((0, 2), np.float32)
    (out,) = run_op("Pad", [x, i64(1, 0, 1, 0), np.array(5, np.float32)], opset=19)
    assert out.tolist() == [[5, 5], [5, 5]]
    with pytest.raises(KernelError, match="nothing left to continue"):
        run_op("Pad", [x, i64(1, 0, 1, 0)], opset=19, mode="edge")


def test_strings_and_booleans_are_padded_with_their_own_zero() -> None:
    assert run_op("Pad", [np.array(["a"], object), i64(1, 0)], opset=19)[0].tolist() == ["", "a"]
    assert run_op("Pad", [np.array([True]), i64(0, 1)], opset=19)[0].tolist() == [True, False]


def test_a_changed_fill_value_shows_in_the_next_call() -> None:
    from tests.kernels.harness import compile_op

    x, fill = grid(2), np.array([7], np.float32)
    _, compiled = compile_op("Pad", [x, i64(1, 1), fill], opset=19)
    assert compiled.bind is not None
    out = np.empty(4, np.float32)
    call = compiled.bind([x, i64(1, 1), fill], [out], None)
    call()
    fill[0] = 8
    call()
    assert out.tolist() == [8, 0, 1, 8]


def test_malformed_pads_are_refused() -> None:
    with pytest.raises(KernelError, match="'wrap' is no padding mode"):
        run_op("Pad", [grid(2), i64(1, 1)], opset=18, mode="wrap")
    with pytest.raises(KernelError, match="3 pads for 1 axes"):
        run_op("Pad", [grid(2), i64(1, 1, 1)], opset=18)
    with pytest.raises(KernelError, match="must hold one element"):
        run_op("Pad", [grid(2), i64(1, 1), grid(2)], opset=18)
    with pytest.raises(MemoryLimitError):
        run_op("Pad", [grid(2), i64(2**62, 2**62)], opset=18)
