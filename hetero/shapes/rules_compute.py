"""Symbolic shapes of operators that compute: elementwise, contractions, windows, reductions."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.program.operation import Operation
from hetero.shapes.extent import ONE, Known, add, call, constant, floordiv, multiply, subtract
from hetero.shapes.facts import MAX_VALUES, UNKNOWN, Fact, Facts
from hetero.shapes.rules_layout import Facts_, argument, axes_in, broadcast, given

_ARITHMETIC = {"Add": add, "Sub": subtract, "Mul": multiply, "Div": floordiv}


def same(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """The first output has the shape of the first input."""
    return [Fact(inputs[0].shape)]


def broadcasting(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """All inputs broadcast; small integers are followed through the four kinds of arithmetic."""
    shape = broadcast(facts, inputs)
    function = _ARITHMETIC.get(op.op_type)
    if function is None or len(inputs) != 2 or shape is None or len(shape) > 1:
        return [Fact(shape)]
    a, b = inputs[0].value, inputs[1].value
    if a is None or b is None or not (len(a) == len(b) or 1 in (len(a), len(b))):
        return [Fact(shape)]
    n = max(len(a), len(b)) if a and b else 0
    if n > MAX_VALUES:
        return [Fact(shape)]
    a, b = (v * n if len(v) == 1 else v for v in (a, b))
    if op.op_type == "Div" and any(d is None or (d.constant or 0) <= 0 for d in b):
        return [
            Fact(shape)
        ]  # ONNX rounds to zero, and extents round down: the same for positive divisors alone
    return [Fact(shape, tuple(function(x, y) for x, y in zip(a, b, strict=True)))]


def matmul(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """MatMul, of vectors and of stacks of matrices."""
    a, b = inputs
    if not a.shape or not b.shape:
        return [UNKNOWN]
    right = len(b.shape) - 2 if len(b.shape) > 1 else 0
    _meet(facts, (a, len(a.shape) - 1), (b, right))
    stack = broadcast(facts, [Fact(x.shape[:-2], name=x.name) for x in (a, b) if x.shape is not None])
    if stack is None:
        return [UNKNOWN]
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return [Fact((*stack, *rows, *columns))]


def gemm(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Gemm; C must broadcast to the result."""
    a, b = inputs[:2]
    if a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return [UNKNOWN]
    i, j = (1 if op.attr(name, 0) else 0 for name in ("transA", "transB"))
    _meet(facts, (a, 1 - i), (b, j))
    shape = (a.shape[i], b.shape[1 - j])
    if len(inputs) > 2 and inputs[2].shape is not None and len(inputs[2].shape) <= 2:
        c = inputs[2].shape
        for k, extent in enumerate(c, 2 - len(c)):
            where = f"axis {k - 2 + len(c)} of {inputs[2].name!r}"
            facts.demand(
                "fits", extent, shape[k], "C does not broadcast to the result", where, f"axis {k} of A·B"
            )
    return [Fact(shape)]


def _meet(facts: Facts, left: tuple[Fact, int], right: tuple[Fact, int]) -> None:
    (a, i), (b, j) = left, right
    assert a.shape is not None
    assert b.shape is not None
    facts.demand(
        "equal",
        a.shape[i],
        b.shape[j],
        "inner extents of a product differ",
        f"axis {i} of {a.name!r}",
        f"axis {j} of {b.name!r}",
    )


def conv(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Conv with a kernel of known extents."""
    x, w = inputs[:2]
    if x.shape is None or w.shape is None or len(x.shape) != len(w.shape) or len(x.shape) < 3:
        return [UNKNOWN]
    channels = multiply(w.shape[1], constant(op.attr("group", 1)))
    facts.demand(
        "equal", x.shape[1], channels, "channels differ", f"axis 1 of {x.name!r}", f"those of {w.name!r}"
    )
    kernel = tuple(d.constant if d is not None else None for d in w.shape[2:])
    return [Fact((x.shape[0], w.shape[0], *_windows(facts, op, x, kernel)))]


def pool(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """MaxPool and AveragePool."""
    x = inputs[0]
    kernel = op.attr("kernel_shape", ())
    if x.shape is None or len(x.shape) != len(kernel) + 2:
        return [UNKNOWN]
    if op.attr("ceil_mode", 0):
        return [Fact((*x.shape[:2], *[None] * len(kernel)))] * len(op.present_outputs)
    return [Fact((*x.shape[:2], *_windows(facts, op, x, kernel)))] * len(op.present_outputs)


def _windows(facts: Facts, op: Operation, x: Fact, kernel: Sequence[int | None]) -> list[Known]:
    """Extents of the spatial axes behind windows of this kernel."""
    rank = len(kernel)
    strides = op.attr("strides") or (1,) * rank
    dilations = op.attr("dilations") or (1,) * rank
    pads = op.attr("pads") or (0,) * 2 * rank
    mode = op.attr("auto_pad", "NOTSET")
    wrong = (
        not len(strides) == len(dilations) == len(pads) / 2 == rank
        or min((*strides, *dilations), default=1) < 1
    )
    if (
        wrong
        or x.shape is None
        or min(pads, default=0) < 0
        or mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    ):
        return [None] * rank
    found: list[Known] = []
    for k, (extent, taps) in enumerate(zip(x.shape[2:], kernel, strict=True)):
        stride = constant(strides[k])
        if mode.startswith("SAME"):
            found.append(floordiv(add(extent, constant(strides[k] - 1)), stride))
            continue
        if taps is None or extent is None:
            found.append(None)
            continue
        padding = pads[k] + pads[k + rank] if mode == "NOTSET" else 0
        reach = (taps - 1) * dilations[k] + 1
        if padding < reach:
            least, where = constant(reach - padding), f"axis {k + 2} of {x.name!r}"
            facts.demand("reaches", extent, least, "a window does not fit", where, "the least it may be")
        if reach - padding <= strides[k]:  # then an extent of 0 gives 0 by itself
            found.append(add(floordiv(add(extent, constant(padding - reach)), stride), ONE))
        else:
            found.append(call("window", extent, constant(padding), constant(reach), stride))
    return found


def reduction(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Reductions over known axes."""
    x = inputs[0]
    if x.shape is None:
        return [UNKNOWN]
    since = 13 if op.op_type == "ReduceSum" else 18
    axes = argument(op, inputs, 1, "axes", since)
    if axes is None and op.version >= since and given(op, 1):
        return [UNKNOWN]
    if not axes:
        axes = () if op.attr("noop_with_empty_axes", 0) else tuple(range(len(x.shape)))
    gone = axes_in(axes, len(x.shape))
    if gone is None:
        return [UNKNOWN]
    if op.attr("keepdims", 1):
        return [Fact(tuple(ONE if k in gone else d for k, d in enumerate(x.shape)))]
    return [Fact(tuple(d for k, d in enumerate(x.shape) if k not in gone))]
