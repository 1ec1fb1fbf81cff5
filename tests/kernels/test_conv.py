"""Conv against a convolution written as loops, over random shapes, and against onnxruntime on each route."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, compile_op, run_op

RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def naive(
    x: Any, w: Any, b: Any, group: int, strides: Any, dilations: Any, begins: Any, outputs: tuple[int, ...]
) -> Any:
    """The operator's text as loops, in float64."""
    maps, per = w.shape[0], w.shape[1]
    y = np.zeros((len(x), maps, *outputs))
    for n, m in np.ndindex(len(x), maps):
        first = m // (maps // group) * per
        for o in np.ndindex(*outputs):
            total = 0.0 if b is None else float(b[m])
            for k in np.ndindex(*w.shape[2:]):
                at = [
                    a * s - p + i * d for a, s, p, i, d in zip(o, strides, begins, k, dilations, strict=True)
                ]
                if all(0 <= a < e for a, e in zip(at, x.shape[2:], strict=True)):
                    for c in range(per):
                        total += float(x[(n, first + c, *at)]) * float(w[(m, c, *k)])
            y[(n, m, *o)] = total
    return y


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    found = {
        "batch": draw(st.integers(0, 2)),
        "group": draw(st.sampled_from([1, 1, 2, 3])),
        "per": draw(st.integers(1, 3)),
        "maps": draw(st.integers(1, 2)),
        "extents": per_axis(1, 6),
        "kernel": per_axis(1, 3),
        "strides": per_axis(1, 3),
        "dilations": per_axis(1, 2),
        "auto_pad": draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])),
        "pads": per_axis(0, 2, 2 * rank),
        "bias": draw(st.booleans()),
    }
    return found


@settings(max_examples=60, deadline=None)
@given(configurations())
def test_conv_agrees_with_loops(c: dict[str, Any]) -> None:
    rank = len(c["kernel"])
    reach = [(k - 1) * d + 1 for k, d in zip(c["kernel"], c["dilations"], strict=True)]
    begins = [0] * rank
    attributes = {"strides": c["strides"], "dilations": c["dilations"], "group": c["group"]}
    if c["auto_pad"].startswith("SAME"):
        outputs = [-(-e // s) for e, s in zip(c["extents"], c["strides"], strict=True)]
        for a in range(rank):
            total = max((outputs[a] - 1) * c["strides"][a] + reach[a] - c["extents"][a], 0)
            begins[a] = total // 2 if c["auto_pad"] == "SAME_UPPER" else -(-total // 2)
        attributes["auto_pad"] = c["auto_pad"]
    else:
        pads = c["pads"] if c["auto_pad"] == "NOTSET" else [0] * (2 * rank)
        begins = pads[:rank]
        room = [e + pads[a] + pads[rank + a] - reach[a] for a, e in enumerate(c["extents"])]
        assume(min(room) >= 0)
        outputs = [r // s + 1 for r, s in zip(room, c["strides"], strict=True)]
        attributes |= {"auto_pad": "VALID"} if c["auto_pad"] == "VALID" else {"pads": pads}
    x = normal(c["batch"], c["per"] * c["group"], *c["extents"])
    w = normal(c["maps"] * c["group"], c["per"], *c["kernel"])
    b = normal(len(w)) if c["bias"] else None
    expected = naive(x, w, b, c["group"], c["strides"], c["dilations"], begins, tuple(outputs))
    (y,) = run_op("Conv", [x, w] if b is None else [x, w, b], opset=11, **attributes)
    assert_close([y], [expected.astype(np.float32)], rtol=1e-4, atol=1e-5)


ROUTES = {
    "pointwise": ((2, 5, 6, 7), (4, 5, 1, 1), {}),
    "pointwise, grouped": ((1, 6, 6, 7), (4, 3, 1, 1), {"group": 2}),
    "pointwise, one axis": ((2, 5, 9), (4, 5, 1), {}),
    "strided 1x1": ((2, 5, 7, 7), (4, 5, 1, 1), {"strides": [2, 2]}),
    "depthwise": ((2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise, multiplied": ((2, 3, 9, 8), (6, 1, 3, 3), {"group": 3, "pads": [2, 0, 1, 3]}),
    "depthwise, strided": (
        (1, 4, 11, 12),
        (4, 1, 5, 5),
        {"group": 4, "strides": [2, 2], "pads": [2, 2, 2, 2]},
    ),
    "depthwise, dilated": (
        (1, 4, 11, 12),
        (4, 1, 3, 3),
        {"group": 4, "dilations": [2, 3], "pads": [2, 3, 2, 3]},
    ),
    "winograd": ((2, 24, 10, 12), (32, 24, 3, 3), {"pads": [1, 1, 1, 1]}),
    "winograd, odd": ((1, 25, 9, 7), (24, 25, 3, 3), {"pads": [0, 1, 1, 0]}),
    "winograd, wide pads": ((1, 24, 6, 6), (24, 24, 3, 3), {"pads": [4, 3, 5, 2]}),
    "direct": ((2, 6, 24, 20), (7, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "direct, strided": ((1, 3, 40, 37), (8, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "direct, grouped": ((1, 6, 20, 20), (6, 3, 5, 5), {"group": 2, "dilations": [2, 1]}),
    "direct, one map": ((1, 5, 24, 20), (1, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    "filters over one channel": ((1, 1, 24, 20), (9, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
    "long filters over one channel": ((2, 1, 1, 900), (6, 1, 1, 70), {"strides": [1, 50]}),
    "few filters over one channel": ((1, 1, 24, 20), (3, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
    "general": ((2, 6, 9, 8), (4, 3, 3, 2), {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "three axes": ((1, 3, 5, 6, 4), (4, 3, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1]}),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
@pytest.mark.parametrize(("x", "w", "attributes"), ROUTES.values(), ids=ROUTES.keys())
def test_each_route_agrees_with_onnxruntime(
    x: Any, w: Any, attributes: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("HETERO_JIT", "0")
    inputs = [normal(*x), normal(*w), normal(w[0])]
    for opset in (10, 22):
        check_op("Conv", inputs, opset=opset, rtol=1e-4, atol=2e-5, **attributes)
    check_op("Conv", inputs[:2], opset=11, rtol=1e-4, atol=2e-5, **attributes)


@pytest.mark.parametrize(("x", "w", "attributes"), ROUTES.values(), ids=ROUTES.keys())
def test_float64_keeps_its_digits(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    inputs = [normal(*shape, dtype=np.float64) for shape in (x, w, (w[0],))]
    check_op("Conv", inputs, opset=11, rtol=1e-12, atol=1e-12, **attributes)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_computed_in_single(dtype: Any) -> None:
    x, w, b = (normal(*s).astype(dtype) for s in ((1, 24, 8, 8), (24, 24, 3, 3), (24,)))
    (wide,) = run_op("Conv", [a.astype(np.float32) for a in (x, w, b)], opset=22, pads=[1, 1, 1, 1])
    (y,) = run_op("Conv", [x, w, b], opset=22, pads=[1, 1, 1, 1])
    assert y.dtype == dtype
    assert (y == wide.astype(dtype)).all()


def test_constant_and_variable_weights_give_the_same_bits() -> None:
    x, w = normal(1, 24, 8, 8), normal(24, 24, 3, 3)
    _, compiled = compile_op("Conv", [x, w], opset=11, pads=[1, 1, 1, 1])
    fixed = w.copy()
    fixed.flags.writeable = False
    results = []
    for weights in (w, fixed):
        y = np.empty((1, 24, 8, 8), np.float32)
        assert compiled.bind is not None
        call = compiled.bind([x, weights], [y], np.empty(compiled.workspace_bytes, np.uint8))
        call()
        results.append(y.tobytes())
        if weights is w:
            w *= 2  # a variable weight is read again at every call
            call()
            assert y.tobytes() != results[0]
            w /= 2
    assert results[0] == results[1]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kernel", [1, 3])
def test_equal_filters_give_equal_maps_to_the_bit(kernel: int, constant: bool) -> None:
    which = np.arange(43) * 7 % 5
    x, w, b = normal(2, 70, 9, 11), normal(5, 70, kernel, kernel)[which], normal(43)
    pads = [kernel // 2] * 4
    w.flags.writeable = not constant
    (y,) = check_op("Conv", [x, w], opset=11, rtol=1e-4, atol=1e-4, pads=pads)
    for m in range(43):
        np.testing.assert_array_equal(y[:, m], y[:, which.tolist().index(which[m])])
    (biased,) = check_op("Conv", [x, w, b], opset=11, rtol=1e-4, atol=1e-4, pads=pads)
    np.testing.assert_array_equal(biased, y + b.reshape(-1, 1, 1))


def test_strided_inputs_are_read_where_they_lie_or_copied() -> None:
    x = normal(2, 9, 8, 6).transpose(0, 3, 1, 2)
    w = normal(3, 3, 4, 6).transpose(2, 3, 0, 1)
    check_op("Conv", [x, w], opset=11, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "w"), [((0, 3, 8, 8), (2, 3, 3, 3)), ((1, 3, 8, 8), (0, 3, 3, 3))])
def test_nothing_in_gives_nothing_out(x: Any, w: Any) -> None:
    (y,) = run_op("Conv", [normal(*x), normal(*w)], opset=11)
    assert y.shape == (x[0], w[0], 6, 6)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 8, 8), (2, 4, 3, 3), {}, "contradict"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"group": 2}, "contradict"),
        ((1, 3, 8, 8), (2, 3, 3), {}, "weight of shape"),
        ((1, 3, 8, 8), (2, 3, 3, 3), {"kernel_shape": [2, 2]}, "kernel_shape"),
        ((1, 3, 2, 2), (2, 3, 3, 3), {}, "does not fit"),
        ((1, 3), (2, 3), {}, "no spatial axis"),
    ],
)
def test_operands_that_contradict_each_other_are_refused(
    x: Any, w: Any, attributes: Any, message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        compile_op("Conv", [normal(*x), normal(*w)], opset=11, **attributes)


def test_a_bias_of_another_length_is_refused() -> None:
    with pytest.raises(KernelError, match="bias of shape"):
        compile_op("Conv", [normal(1, 3, 4, 4), normal(2, 3, 1, 1), normal(3)], opset=11)


def test_integers_are_declined() -> None:
    with pytest.raises(UnsupportedError, match="int32"):
        compile_op("Conv", [np.ones((1, 1, 3, 3), np.int32), np.ones((1, 1, 1, 1), np.int32)], opset=11)
