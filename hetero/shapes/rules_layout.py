"""Symbolic shapes of layout operators, and the values of the shape arithmetic between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hetero.program.operation import Operation
from hetero.shapes.extent import ONE, Extent, Known, add, call, constant, floordiv, multiply, product
from hetero.shapes.facts import MAX_VALUES, UNKNOWN, Fact, Facts

Facts_ = Sequence[Fact]


def argument(op: Operation, inputs: Facts_, index: int, attribute: str, since: int) -> tuple[int, ...] | None:
    """Integers that are an attribute before version `since`, an input from then on; None where absent or unknown."""
    if op.version < since:
        given = op.attr(attribute)
        return None if given is None else tuple(given) if isinstance(given, tuple) else (int(given),)
    return inputs[index].integers() if index < len(inputs) else None


def given(op: Operation, index: int) -> bool:
    """Whether the operation has this input."""
    return index < len(op.present_inputs) and op.present_inputs[index]


def axis_in(axis: int, rank: int) -> int | None:
    """The axis counted from the front; None where it is out of range (left to the kernel)."""
    return axis % rank if -rank <= axis < rank else None


def axes_in(axes: Iterable[int], rank: int) -> list[int] | None:
    """The same for several, which must differ."""
    found = [axis_in(a, rank) for a in axes]
    known = [a for a in found if a is not None]
    return known if len(known) == len(found) and len(set(known)) == len(known) else None


def cast(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Identity and Cast; the latter keeps integers that stay integers."""
    (x,) = inputs
    target = op.attr("to")
    return [x] if target is None or int(target) in (6, 7) else [Fact(x.shape)]


def shape(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Shape, with `start` and `end` since 15."""
    extents = inputs[0].shape
    if extents is None:
        return [UNKNOWN]
    part = extents[op.attr("start", 0) : op.attr("end")]
    return [Fact((constant(len(part)),), part)]


def size(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Size."""
    extents = inputs[0].shape
    return [Fact((), None if extents is None else (product(extents),))]


def transpose(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Transpose."""
    extents = inputs[0].shape
    if extents is None:
        return [UNKNOWN]
    perm = op.attr("perm", tuple(reversed(range(len(extents)))))
    return [Fact(tuple(extents[k] for k in perm)) if sorted(perm) == list(range(len(extents))) else UNKNOWN]


def reshape(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Reshape: element counts must agree, or divide where one extent is left open."""
    x = inputs[0]
    wanted = inputs[1].value if len(inputs) > 1 else None
    if wanted is None:
        return [UNKNOWN]
    target = [_target(x, k, w, bool(op.attr("allowzero", 0))) for k, w in enumerate(wanted)]
    total = None if x.shape is None else product(x.shape)
    open_axes = [k for k, w in enumerate(wanted) if w is not None and w.constant == -1]
    texts = f"the elements of {x.name!r}", "what the target shape asks for"
    if len(open_axes) == 1:
        (at,) = open_axes
        rest = product((*target[:at], *target[at + 1 :]))
        facts.demand("divides", total, rest, "a reshape cannot divide", *texts)
        target[at] = _quotient(total, rest)
    elif not open_axes:
        facts.demand("equal", total, product(tuple(target)), "a reshape cannot keep the elements", *texts)
    return [Fact(tuple(target), x.value if len(target) <= 1 else None)]


def _target(x: Fact, axis: int, wanted: Known, allowzero: bool) -> Known:
    if wanted is None or allowzero or (wanted.constant is not None and wanted.constant != 0):
        return wanted
    if x.shape is None or axis >= len(x.shape):
        return None
    return x.shape[axis] if wanted.constant == 0 else call("copied", wanted, x.shape[axis])


def _quotient(total: Known, rest: Known) -> Known:
    """total // rest, with the factors that both share cancelled (where they are 0 the reshape is refused)."""
    if total is None or rest is None or len(total.terms) != 1 or len(rest.terms) != 1:
        return floordiv(total, rest)
    ((above, factor),), ((below, divisor),) = total.terms, rest.terms
    left = list(above)
    for atom in below:
        if atom not in left:
            return floordiv(total, rest)
        left.remove(atom)
    return floordiv(Extent(((tuple(left), factor),)), constant(divisor))


def flatten(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Flatten."""
    extents = inputs[0].shape
    axis = op.attr("axis", 1)
    if extents is None or not -len(extents) <= axis <= len(extents):
        return [UNKNOWN]
    axis = axis + len(extents) if axis < 0 else axis
    return [Fact((product(extents[:axis]), product(extents[axis:])))]


def squeeze(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Squeeze: the axes named must have extent 1."""
    x = inputs[0]
    axes = argument(op, inputs, 1, "axes", 13)
    if x.shape is None or axes is None:
        return [Fact(None, x.value)]
    dropped = axes_in(axes, len(x.shape))
    if dropped is None:
        return [UNKNOWN]
    for axis in dropped:
        facts.demand(
            "equal",
            x.shape[axis],
            ONE,
            "an axis cannot be squeezed",
            f"axis {axis} of {x.name!r}",
            "its extent must be",
        )
    return [Fact(tuple(d for k, d in enumerate(x.shape) if k not in dropped), x.value)]


def unsqueeze(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Unsqueeze."""
    x = inputs[0]
    axes = argument(op, inputs, 1, "axes", 13)
    if x.shape is None or axes is None:
        return [UNKNOWN]
    rank = len(x.shape) + len(axes)
    new = axes_in(axes, rank)
    if new is None:
        return [UNKNOWN]
    old = iter(x.shape)
    return [Fact(tuple(ONE if k in new else next(old) for k in range(rank)), x.value if rank == 1 else None)]


def concat(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Concat: extents must agree along the other axes."""
    shapes = [x.shape for x in inputs if x.shape is not None]
    if len(shapes) != len(inputs) or len({len(s) for s in shapes}) != 1:
        return [UNKNOWN]
    axis = axis_in(op.attr("axis", 1), len(shapes[0]))
    if axis is None:
        return [UNKNOWN]
    found = list(shapes[0])
    for x, extents in zip(inputs[1:], shapes[1:], strict=True):
        for k, extent in enumerate(extents):
            if k == axis:
                found[k] = add(found[k], extent)
                continue
            facts.demand(
                "equal",
                found[k],
                extent,
                "inputs of a concatenation disagree",
                f"axis {k} of {inputs[0].name!r}",
                f"that of {x.name!r}",
            )
            found[k] = extent if found[k] is None else found[k]
    values = [v for x in inputs for v in (x.value if x.value is not None else (None,) * (MAX_VALUES + 1))]
    return [Fact(tuple(found), tuple(values) if len(found) == 1 and len(values) <= MAX_VALUES else None)]


def slice_(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Slice between known positions; an extent between others is unknown."""
    x = inputs[0]
    if x.shape is None:
        return [UNKNOWN]
    starts, ends = (argument(op, inputs, k, name, 10) for k, name in ((1, "starts"), (2, "ends")))
    axes = argument(op, inputs, 3, "axes", 10)
    steps = argument(op, inputs, 4, "steps", 10)
    some = starts if starts is not None else ends
    named = op.version < 10 or given(op, 3)
    if (named and axes is None and op.version >= 10) or (given(op, 4) and steps is None) or some is None:
        return [Fact((None,) * len(x.shape))]
    chosen = axes_in(range(len(some)) if axes is None else axes, len(x.shape))
    if chosen is None or len(chosen) != len(some):
        return [UNKNOWN]
    found = list(x.shape)
    for k, axis in enumerate(chosen):
        found[axis] = None
        if starts is not None and ends is not None and len(starts) == len(ends) == len(chosen):
            found[axis] = sliced(x.shape[axis], starts[k], ends[k], 1 if steps is None else steps[k])
    value = None
    if x.value is not None and len(x.shape) == 1 and starts is not None and ends is not None:
        value = x.value[starts[0] : ends[0] : 1 if steps is None else steps[0]]
    return [Fact(tuple(found), value)]


def sliced(extent: Known, start: int, end: int, step: int) -> Known:
    """What a slice leaves of an extent."""
    if step == 0:
        return None
    if start == 0 and step == 1 and end >= np.iinfo(np.int32).max:
        return extent
    return call("sliced", extent, constant(start), constant(end), constant(step))


def gather(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Gather; of a vector of known values, at known places."""
    x, at = inputs
    if x.shape is None or at.shape is None:
        return [UNKNOWN]
    axis = axis_in(op.attr("axis", 0), len(x.shape))
    if axis is None:
        return [UNKNOWN]
    value = None
    places = at.integers()
    if x.value is not None and len(x.shape) == 1 and places is not None:
        if not all(-len(x.value) <= p < len(x.value) for p in places):
            return [UNKNOWN]
        value = tuple(x.value[p] for p in places)
    return [Fact((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]), value)]


def expand(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Expand: the input's extents must broadcast with the target's."""
    x, wanted = inputs[0], inputs[1].value
    if x.shape is None or wanted is None:
        return [UNKNOWN]
    return [Fact(broadcast(facts, [x, Fact(wanted, name=inputs[1].name)]))]


def broadcast(facts: Facts, operands: Facts_) -> tuple[Known, ...] | None:
    """The shape that operands broadcast to, with a demand wherever two extents meet; None for unknown ranks."""
    shapes = [x.shape for x in operands if x.shape is not None]
    if len(shapes) != len(operands) or not shapes:
        return None
    rank = max(map(len, shapes))
    found: list[Known] = [ONE] * rank
    holders = [""] * rank
    for x, extents in zip(operands, shapes, strict=True):
        for k, extent in enumerate(extents, rank - len(extents)):
            here = f"axis {k - rank + len(extents)} of {x.name!r}"
            have = found[k]
            if have is not None and have.constant == 1:
                found[k], holders[k] = extent, here
                continue
            if extent is not None and extent.constant == 1:
                continue
            facts.demand("broadcast", have, extent, "extents do not broadcast", holders[k], here)
            found[k] = _joined(have, extent)
            holders[k] = here
    return tuple(found)


def _joined(a: Known, b: Known) -> Known:
    if a == b:
        return a
    for one in (a, b):
        if one is not None and (one.constant or 0) > 1:
            return one
    return call("broadcast", a, b)


def split(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Split into known sizes, or into equal parts."""
    x, n = inputs[0], len(op.present_outputs)
    axis = None if x.shape is None else axis_in(op.attr("axis", 0), len(x.shape))
    if x.shape is None or axis is None:
        return [UNKNOWN] * n
    extent, where = x.shape[axis], f"axis {axis} of {x.name!r}"
    sizes: list[Known] = [None] * n
    known = argument(op, inputs, 1, "split", 13)
    if known is not None and len(known) == n:
        facts.demand(
            "equal", extent, constant(sum(known)), "sizes do not add up", where, "the sum of the parts"
        )
        sizes = [constant(k) for k in known]
    elif op.version < 18 and not given(op, 1):
        facts.demand(
            "divides", extent, constant(n), "an extent does not split", where, "the number of equal parts"
        )
        sizes = [floordiv(extent, constant(n))] * n
    return [Fact((*x.shape[:axis], k, *x.shape[axis + 1 :])) for k in sizes]


def pad(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Pad by known numbers."""
    x = inputs[0]
    pads = argument(op, inputs, 1, "pads", 11)
    if x.shape is None:
        return [UNKNOWN]
    named = inputs[3].integers() if given(op, 3) else tuple(range(len(x.shape)))
    axes = None if named is None else axes_in(named, len(x.shape))
    if pads is None or axes is None or len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        return [Fact((None,) * len(x.shape))]
    found = list(x.shape)
    for k, axis in enumerate(axes):
        found[axis] = add(found[axis], constant(pads[k] + pads[k + len(axes)]))
    return [Fact(tuple(found))]


def tile(facts: Facts, op: Operation, inputs: Facts_) -> Facts_:
    """Tile."""
    x, repeats = inputs[0], inputs[1].value if len(inputs) > 1 else None
    if x.shape is None or repeats is None or len(repeats) != len(x.shape):
        return [UNKNOWN]
    return [Fact(tuple(multiply(d, r) for d, r in zip(x.shape, repeats, strict=True)))]
