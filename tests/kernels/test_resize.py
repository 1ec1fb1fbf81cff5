"""Resize and Upsample against onnxruntime where it agrees with the operator's text, else against onnx.reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels.base import lookup
from hetero.program.operation import Operation
from hetero.types import TensorSpec
from tests.kernels.harness import check_op, compile_op, run_op

RNG = np.random.default_rng(29)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    c: dict[str, Any] = {"mode": mode}
    c["coordinate_transformation_mode"] = draw(
        st.sampled_from(
            ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"]
        )
    )
    if mode == "nearest":
        c["nearest_mode"] = draw(
            st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        )
    elif draw(st.booleans()):
        c["antialias"] = 1
    if mode == "cubic":
        c["exclude_outside"] = draw(st.integers(0, 1))
        c["cubic_coeff_a"] = draw(st.sampled_from([-0.75, -0.5]))
    return c


EXTENT = st.integers(1, 7)


@settings(max_examples=80, deadline=None)
@given(configurations(), EXTENT, EXTENT, EXTENT, EXTENT)
def test_resize_to_sizes_agrees_with_onnxruntime(c: dict[str, Any], h: int, w: int, oh: int, ow: int) -> None:
    # Where a position falls on a tie, single precision decides, and onnxruntime's last bit is not ours.
    ratios = {7, 7 * 3, 5 * 7, 7 * 6}
    assume(c["mode"] != "nearest" or not {h * oh, w * ow} & ratios)
    assume(c["mode"] != "nearest" or all(a % b == 0 or b % a == 0 for a, b in ((h, oh), (w, ow))))
    check_op("Resize", [normal(1, 2, h, w), None, None, np.array([1, 2, oh, ow])], opset=18, atol=2e-5, **c)


@settings(max_examples=40, deadline=None)
@given(
    configurations(),
    EXTENT,
    EXTENT,
    st.sampled_from([0.5, 1.0, 1.5, 2.0, 2.6]),
    st.sampled_from([0.6, 1.0, 3.0]),
)
def test_resize_by_scales_agrees_with_onnxruntime(
    c: dict[str, Any], h: int, w: int, sh: float, sw: float
) -> None:
    assume(int(h * sh) > 0 and int(w * np.float32(sw)) > 0)
    whole = (h * sh).is_integer() and (w * sw).is_integer()
    # With a fraction of an element left over, onnx's own examples and onnxruntime read align_corners differently.
    assume(whole or c["coordinate_transformation_mode"] != "align_corners")
    assume(c["mode"] != "nearest" or {sh, sw} <= {0.5, 1.0, 2.0, 3.0})
    check_op("Resize", [normal(1, 2, h, w), None, f32(1, 1, sh, sw)], opset=19, atol=2e-5, **c)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.5), (1, 1, 1, 1)], ids=str)
def test_resize_10_and_upsample_agree_with_onnxruntime(mode: str, scales: tuple[float, ...]) -> None:
    x = normal(1, 2, 4, 6)
    check_op("Resize", [x, f32(*scales)], opset=10, mode=mode)
    if min(scales) >= 1:
        check_op("Upsample", [x, f32(*scales)], opset=9, mode=mode)
        check_op("Upsample", [x], opset=7, mode=mode, scales=[float(s) for s in scales])


@pytest.mark.parametrize("roi", [(0.2, 0.1, 0.7, 0.9), (-0.3, 0.5, 0.6, 1.4), (0.9, 0.8, 0.1, 0.2)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_crop_is_resized_and_what_lies_outside_takes_the_value_asked_for(mode: str, roi: Any) -> None:
    y1, x1, y2, x2 = roi
    check_op(
        "Resize",
        [normal(1, 2, 6, 7), f32(0, 0, y1, x1, 1, 1, y2, x2), None, np.array([1, 2, 5, 4])],
        opset=13,
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.5,
        atol=2e-5,
    )


def test_tf_half_pixel_for_nn_is_served_where_it_existed() -> None:
    check_op(
        "Resize",
        [normal(1, 1, 4, 4), f32(), f32(), np.array([1, 1, 6, 3])],
        opset=11,
        mode="nearest",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
        nearest_mode="floor",
    )


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2]], ids=str)
def test_axes_and_policies_choose_the_sizes(policy: str, axes: list[int]) -> None:
    inputs = [normal(1, 2, 4, 6), None, None, np.array([5, 9])]
    keywords: dict[str, Any] = {"opset": 18, "mode": "linear", "keep_aspect_ratio_policy": policy}
    (y,) = check_op("Resize", inputs, use_ort=False, axes=axes, atol=1e-5, **keywords)
    (same,) = run_op("Resize", inputs, axes=[a - 4 for a in axes], **keywords)
    assert (same == y).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float64, np.float16, np.bool_, object])
def test_nearest_moves_elements_of_any_dtype(dtype: Any) -> None:
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    (y,) = run_op("Resize", [x, None, f32(1, 1, 2, 3)], opset=19, mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")  # fmt: skip
    assert y.dtype == x.dtype
    assert (y == x.repeat(2, 2).repeat(3, 3)).all()


def test_interpolated_integers_stay_in_their_range() -> None:
    x = np.array([0, 255, 255, 0, 0, 255], np.uint8).reshape(1, 1, 1, 6)
    (y,) = run_op("Resize", [x, None, f32(1, 1, 1, 2)], opset=19, mode="cubic")
    (wide,) = run_op("Resize", [x.astype(np.float32), None, f32(1, 1, 1, 2)], opset=19, mode="cubic")
    assert wide.max() > 255
    assert wide.min() < 0
    assert (y == np.clip(wide, 0, 255).astype(np.uint8)).all()


def test_five_axes_and_strided_inputs_are_resized_axis_by_axis() -> None:
    x = normal(1, 4, 5, 3, 2).transpose(0, 4, 1, 2, 3)
    sizes = np.array([1, 2, 6, 3, 5])
    check_op("Resize", [x, None, None, sizes], opset=18, use_ort=False, mode="linear", atol=1e-5)


def test_float16_is_interpolated_in_single() -> None:
    x = normal(1, 1, 3, 4, dtype=np.float16)
    (y,) = run_op("Resize", [x, None, f32(1, 1, 2, 2)], opset=19, mode="linear")
    (wide,) = run_op("Resize", [x.astype(np.float32), None, f32(1, 1, 2, 2)], opset=19, mode="linear")
    assert (y == wide.astype(np.float16)).all()


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_twin_agrees_with_compiled_code(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [normal(2, 3, 5, 6), None, f32(1, 1, 1.7, 0.6)]
    (fast,) = run_op("Resize", inputs, opset=19, mode=mode)
    monkeypatch.setenv("HETERO_JIT", "0")
    (plain,) = run_op("Resize", inputs, opset=19, mode=mode)
    np.testing.assert_allclose(plain, fast, rtol=1e-6, atol=1e-6)


def test_nothing_resized_is_nothing() -> None:
    (y,) = run_op("Resize", [normal(0, 2, 3, 3), None, f32(1, 1, 2, 2)], opset=19)
    assert y.shape == (0, 2, 6, 6)
    with pytest.raises(KernelError, match="sizes"):
        compile_op("Resize", [normal(1, 1, 0, 3), None, None, np.array([1, 1, 2, 2])], opset=19)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ([None, f32(1, 1, 2)], {}),
        ([None, f32(1, 1, 2, -1)], {}),
        ([None, f32(1, 1, 2, np.nan)], {}),
        ([None, None, None], {}),
        ([None, f32(1, 1, 2, 2), np.array([1, 1, 2, 2])], {}),
        ([None, f32(2, 2)], {"axes": [2, 2]}),
        ([None, f32(2, 2)], {"axes": [2, 4]}),
        ([None, f32(1, 1, 2, 2)], {"mode": "lanczos"}),
        ([None, f32(1, 1, 2, 2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
        ([None, None, np.array([1, 1, -2, 2])], {}),
    ],
)
def test_operands_that_contradict_each_other_are_refused(
    inputs: list[Any], attributes: dict[str, Any]
) -> None:
    with pytest.raises(KernelError, match="node 'node'"):
        compile_op("Resize", [normal(1, 1, 3, 3), *inputs], opset=19, **attributes)


def test_a_huge_scale_is_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(MemoryLimitError):
        compile_op("Resize", [normal(1, 1, 3, 3), None, f32(1, 1, 1e30, 1)], opset=19)


def test_scales_must_be_known_when_compiling() -> None:
    definition = lookup("", "Resize", 19)
    assert definition is not None
    specs = [TensorSpec(np.dtype(np.float32), (1, 1, 3, 3)), TensorSpec(np.dtype(np.float32), (0,))]
    specs.append(TensorSpec(np.dtype(np.float32), (4,)))
    with pytest.raises(UnsupportedError, match="known"):
        definition.compile(Operation("", "Resize", 19), specs, np)
