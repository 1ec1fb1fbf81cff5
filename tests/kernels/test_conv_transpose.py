"""ConvTranspose against onnxruntime, over ranks, groups, pads and asked-for shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(7)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


CASES = {
    "plain": ((2, 3, 5, 4), (3, 4, 3, 3), {}),
    "no overlap": ((1, 3, 5, 4), (3, 4, 2, 2), {"strides": [2, 2]}),
    "gaps": ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": [3, 3]}),
    "overlap": (
        (2, 4, 5, 4),
        (4, 3, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "grouped": ((1, 6, 5, 4), (6, 2, 3, 3), {"group": 3, "strides": [2, 1]}),
    "depthwise": ((2, 6, 5, 4), (6, 1, 3, 3), {"group": 6, "strides": [2, 2]}),
    "dilated": ((1, 2, 5, 4), (2, 3, 3, 2), {"dilations": [2, 3], "pads": [0, 1, 2, 1]}),
    "one axis": ((2, 3, 7), (3, 4, 4), {"strides": [2], "pads": [1, 1]}),
    "three axes": ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": [2, 1, 2]}),
    "same upper": ((1, 2, 5, 5), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same lower": ((1, 2, 5, 5), (2, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "valid": ((1, 2, 5, 5), (2, 3, 3, 3), {"auto_pad": "VALID"}),
    "asked": (
        (1, 2, 3, 3),
        (2, 3, 3, 3),
        {"output_shape": [6, 7], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
}


@pytest.mark.parametrize(("x", "w", "attributes"), CASES.values(), ids=CASES.keys())
def test_conv_transpose_agrees_with_onnxruntime(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    maps = w[1] * attributes.get("group", 1)
    for inputs in ([normal(*x), normal(*w)], [normal(*x), normal(*w), normal(maps)]):
        for opset in (10, 11, 22):
            check_op("ConvTranspose", inputs, opset=opset, rtol=1e-4, atol=1e-5, **attributes)


def test_half_precision_and_strided_inputs_are_taken() -> None:
    x, w = normal(1, 4, 5, 3).transpose(0, 3, 1, 2), normal(3, 4, 2, 2)
    check_op("ConvTranspose", [x, w], opset=11, rtol=1e-4, atol=1e-5)
    (wide,) = run_op("ConvTranspose", [x.astype(np.float16).astype(np.float32), w], opset=11)
    (y,) = run_op("ConvTranspose", [x.astype(np.float16), w.astype(np.float16)], opset=11)
    np.testing.assert_allclose(y, wide, rtol=1e-2, atol=1e-2)


def test_an_empty_batch_gives_an_empty_result_and_no_channels_give_the_bias() -> None:
    (y,) = run_op("ConvTranspose", [normal(0, 2, 3, 3), normal(2, 3, 2, 2)], opset=11)
    assert y.shape == (0, 3, 4, 4)
    (y,) = run_op("ConvTranspose", [normal(1, 0, 3, 3), normal(0, 3, 2, 2), normal(3)], opset=11)
    assert y.shape == (1, 3, 4, 4)
    assert (y == y[:, :, :1, :1]).all()


@pytest.mark.parametrize(
    ("w", "attributes"),
    [
        ((3, 3, 2, 2), {}),
        ((2, 3, 2), {}),
        ((2, 3, 2, 2), {"group": 3}),
        ((2, 3, 2, 2), {"output_padding": [1]}),
        ((2, 3, 2, 2), {"pads": [3, 3, 3, 3]}),
        ((2, 3, 2, 2), {"output_shape": [1, 2, 3]}),
        ((2, 3, 2, 2), {"kernel_shape": [3, 3]}),
    ],
)
def test_operands_that_contradict_each_other_are_refused(w: Any, attributes: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="node 'node'"):
        compile_op("ConvTranspose", [normal(1, 2, 3, 3), normal(*w)], opset=11, **attributes)
