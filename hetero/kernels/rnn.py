"""RNN, GRU and LSTM: one product projects the input for all time steps, then a loop of small ones carries the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.derived import Keeper
from hetero.kernels.fused import in_turn
from hetero.kernels.jit_call import bound
from hetero.kernels.matmul import bind_product
from hetero.kernels.operands import fail
from hetero.kernels.rnn_activation import activations_of, clipped
from hetero.kernels.rnn_cells import CellOperands, CellOptions, Step, gru_step, lstm_step, rnn_step
from hetero.kernels.rnn_sequence import gru_reset_sequence, gru_sequence, lstm_sequence, sequence_serves
from hetero.kernels.widen import NARROW, is_constant, widened
from hetero.kernels.workspace import Part, carve, carved_bytes
from hetero.program.operation import Operation
from hetero.types import Array, Spec, TensorSpec

FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents of a recurrent operator; `gates` per unit, `reversed` per direction."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    reversed: tuple[bool, ...]
    batch_first: bool

    @property
    def directions(self) -> int:
        """1, or 2 for bidirectional."""
        return len(self.reversed)


def sizes_of(
    op: Operation, x: TensorSpec, weights: Sequence[int], recurrence: Sequence[int], gates: int
) -> Sizes:
    """The extents, from X, W (D, G*H, I) and R (D, G*H, H). Raises: KernelError where they contradict each other."""
    value = op.attr("direction", "forward")
    direction = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    flags = DIRECTIONS.get(direction.lower())
    layout = int(op.attr("layout", 0))
    if flags is None or layout not in (0, 1):
        fail(op, f"direction {direction!r} or layout {layout} is unknown", "direction")
    if len(x.shape) != 3 or len(weights) != 3 or len(recurrence) != 3:
        fail(op, f"X {list(x.shape)}, W {list(weights)} and R {list(recurrence)} must have three axes")
    hidden = int(op.attr("hidden_size", recurrence[2]))
    steps, batch = x.shape[:2] if layout == 0 else x.shape[1::-1]
    found = Sizes(steps, batch, x.shape[2], hidden, gates, flags, bool(layout))
    n = found.directions
    if tuple(weights) != (n, gates * hidden, found.inputs) or tuple(recurrence) != (
        n,
        gates * hidden,
        hidden,
    ):
        fail(
            op,
            f"W {list(weights)} and R {list(recurrence)} do not fit {n} directions, {found.inputs} inputs and"
            f" {hidden} hidden units",
        )
    return found


def state_shape(s: Sizes) -> tuple[int, int, int]:
    """Shape of initial_h and Y_h."""
    return (s.batch, s.directions, s.hidden) if s.batch_first else (s.directions, s.batch, s.hidden)


def output_specs(op: Operation, s: Sizes, dtype: np.dtype[Any], states: int) -> tuple[TensorSpec | None, ...]:
    """Y and the final states, None where omitted."""
    if s.batch_first:
        y = (s.batch, s.steps, s.directions, s.hidden)
    else:
        y = (s.steps, s.directions, s.batch, s.hidden)
    specs = (TensorSpec(dtype, y), *(TensorSpec(dtype, state_shape(s)) for _ in range(states)))
    return tuple(spec if present else None for spec, present in zip(specs, op.present_outputs, strict=False))


Project = Callable[[int, Any, Any], Call]
"""(direction, input as (T, B, I), target (T, B, G*H)) -> a call that writes the input's share of the gates."""


Whole = Callable[[int, CellOperands, Any, Any], Call]
"""(direction, operands, pre (T, B, G*H), Y (T, D, B, H) or empty) -> a call that runs all steps of the direction."""


class Recurrence:
    """The loop over time steps, for one kind of cell."""

    def __init__(
        self, op: Operation, s: Sizes, dtype: np.dtype[Any], xp: Any, options: Sequence[CellOptions]
    ) -> None:
        self.op, self.s, self.dtype, self.xp, self.options = op, s, dtype, xp, options
        self.n_states = 2 if op.op_type.endswith("LSTM") else 1
        self.cell: Callable[[Any, CellOperands, CellOptions], Step] = (
            lstm_step if self.n_states == 2 else gru_step if op.op_type == "GRU" else rnn_step
        )
        wide = s.gates * s.hidden
        self.parts: tuple[Part, ...] = (
            ((s.steps, s.batch, wide), dtype),
            ((s.batch, wide), dtype),
            (((2 * self.n_states + 1) * s.batch, s.hidden), dtype),
            ((s.batch, 1), np.bool_),
        )

    def bind(
        self,
        x: Array,
        recur: Sequence[Callable[[Array, Array], object]],
        project: Project,
        outputs: Sequence[Array | None],
        workspace: Any,
        *,
        lengths: Array | None,
        initial: Sequence[Array | None],
        peepholes: Array | None = None,
        recurrent_bias: Sequence[Array | None] = (None, None),
        hidden: Sequence[Array | None] = (None, None),
        before: Sequence[Call] = (),
        recurrence: Sequence[Array] | None = None,
        whole: Whole | None = None,
    ) -> Call:
        """`recur` as in CellOperands, per direction; a None in `initial` means zeros; `before` calls run first.

        `recurrence` are the contiguous (H, G*H) behind `recur`, where that is a plain product. `whole`, where it is
        given, runs a direction in place of `recur`.
        """
        s, xp = self.s, self.xp
        pre, gates, block, active = carve(workspace, *self.parts)
        n, h = self.n_states, s.hidden
        rows = [block[k * s.batch : (k + 1) * s.batch] for k in range(2 * n + 1)]
        states, fresh, spare = tuple(rows[:n]), tuple(rows[n : 2 * n]), rows[-1]
        x = x.swapaxes(0, 1) if s.batch_first else x
        y = None if outputs[0] is None else outputs[0]
        if y is not None and s.batch_first:
            y = y.transpose(1, 2, 0, 3)
        lasts = [
            None if o is None else (o.swapaxes(0, 1) if s.batch_first else o) for o in outputs[1 : 1 + n]
        ]
        starts = [None if a is None else (a.swapaxes(0, 1) if s.batch_first else a) for a in initial]
        runs: list[Call] = []
        for d, backwards in enumerate(s.reversed):
            weights = None
            if peepholes is not None:
                weights = tuple(peepholes[d, k * h : (k + 1) * h] for k in range(3))
            operands = CellOperands(
                recur[d], states, fresh, gates, spare, weights, recurrent_bias[d], hidden[d]
            )
            firsts = [None if a is None else a[d] for a in starts]
            ends = [None if a is None else a[d] for a in lasts]
            plain = recurrence is not None and weights is None and lengths is None and not s.batch_first
            target = np.empty((0, 1, 1, 1), self.dtype) if y is None else y
            act: Call | None = None
            if whole is not None:
                act = whole(d, operands, pre, target)
            elif recurrence is not None and plain and self._whole(d):
                act = self._sequence(d, operands, recurrence[d], pre, target)
            if act is not None:
                runs.append(_one_call(act, project(d, x, pre), bool(s.steps), states, firsts, ends))
                continue
            step = self.cell(xp, operands, self.options[d])
            order = range(s.steps - 1, -1, -1) if backwards else range(s.steps)
            walk = [(t, pre[t], None if y is None else y[t, d]) for t in order]
            runs.append(
                self._direction(project(d, x, pre), step, walk, states, fresh, firsts, ends, lengths, active)
            )

        check = self._lengths_check(lengths)

        def call() -> None:
            check()
            for act in before:
                act()
            for run in runs:
                run()

        return call

    def _lengths_check(self, lengths: Array | None) -> Callable[[], object]:
        """A call that raises KernelError where a sequence is longer than X, or of negative length (on the host)."""
        if lengths is None or self.xp is not np or not lengths.size:
            return bool
        op, steps = self.op, self.s.steps

        def check() -> None:
            low, high = int(lengths.min()), int(lengths.max())
            if low < 0 or high > steps:
                fail(op, f"lengths {low} to {high} leave the {steps} steps of X", "sequence_lens")

        return check

    def _whole(self, d: int) -> bool:
        s = self.s
        usual = self.options[d].plain and self.cell is not rnn_step
        return usual and sequence_serves(s.gates, s.hidden, s.batch, self.dtype, self.xp)

    def _sequence(self, d: int, o: CellOperands, r: Array, pre: Array, y: Array) -> Call:
        """All steps of direction `d` in one compiled call."""
        backwards = int(self.s.reversed[d])
        if self.n_states == 2:
            return bound(lstm_sequence.variant(r), pre, r, *o.states, y, d, backwards, o.gates)
        if self.options[d].linear_before_reset:
            bias = np.zeros(self.s.hidden, self.dtype) if o.recurrent_bias is None else o.recurrent_bias
            return bound(gru_sequence.variant(r, bias), pre, r, bias, *o.states, y, d, backwards, o.gates)
        return bound(gru_reset_sequence.variant(r), pre, r, *o.states, y, d, backwards, o.gates)

    def _direction(
        self,
        project: Call,
        step: Step,
        walk: Sequence[tuple[int, Array, Array | None]],
        states: Sequence[Array],
        fresh: Sequence[Array],
        firsts: Sequence[Array | None],
        ends: Sequence[Array | None],
        lengths: Array | None,
        active: Array,
    ) -> Call:
        xp = self.xp
        copyto = xp.copyto
        column = None if lengths is None else lengths.reshape(-1, 1)
        pairs = list(zip(states, fresh, strict=True))
        moves = [(t, step(pre), y) for t, pre, y in walk]

        def call() -> None:
            if moves:
                project()
            for state, first in zip(states, firsts, strict=True):
                if first is None:
                    state.fill(0)
                else:
                    copyto(state, first)
            for t, move, y in moves:
                move()
                if column is None:
                    for state, new in pairs:
                        copyto(state, new)
                    if y is not None:
                        copyto(y, fresh[0])
                    continue
                # A sequence that is over keeps its state, and its output is zero.
                xp.greater(column, t, out=active)
                for state, new in pairs:
                    copyto(state, new, where=active)
                if y is not None:
                    y.fill(0) if y.flags.c_contiguous else copyto(y, 0)
                    copyto(y, fresh[0], where=active)
            for state, end in zip(states, ends, strict=True):
                if end is not None:
                    copyto(end, state)

        return call


def _one_call(
    act: Call,
    project: Call,
    any_steps: bool,
    states: Sequence[Array],
    firsts: Sequence[Array | None],
    ends: Sequence[Array | None],
) -> Call:
    """`act`, which runs a whole direction, between what it starts from and what it leaves."""
    calls: list[Call] = [project] if any_steps else []
    for state, first in zip(states, firsts, strict=True):
        calls.append(partial(state.fill, 0) if first is None else partial(np.copyto, state, first))
    calls.append(act)
    calls += [
        partial(np.copyto, end, state) for state, end in zip(states, ends, strict=True) if end is not None
    ]
    return in_turn(calls)


def _recurrent(
    op: Operation, specs: Sequence[Spec], xp: Any, gates: int, defaults: Sequence[str]
) -> Compiled:
    x, w, r = tensor(op, specs, 0), tensor(op, specs, 1), tensor(op, specs, 2)
    if x.dtype in NARROW:
        return widened(lambda o, s, m: _recurrent(o, s, m, gates, defaults), op, specs, xp)
    if x.dtype not in FLOATS:
        raise UnsupportedError(f"{op.op_type} of {x.dtype}", op=op.id, node=op.name)
    s = sizes_of(op, x, w.shape, r.shape, gates)
    n, wide = s.directions, gates * s.hidden
    lstm = op.op_type == "LSTM"
    expected: list[tuple[int, str, tuple[int, ...]]] = [
        (3, "B", (n, 2 * wide)),
        (4, "sequence_lens", (s.batch,)),
        (5, "initial_h", state_shape(s)),
    ]
    if lstm:
        expected += [(6, "initial_c", state_shape(s)), (7, "P", (n, 3 * s.hidden))]
    for index, operand, shape in expected:
        spec = given(specs, index)
        if spec is not None and spec.shape != shape:
            fail(op, f"of shape {list(spec.shape)}, expected {list(shape)}", operand)
    linear = bool(op.attr("linear_before_reset", 0)) and op.op_type == "GRU"
    options = [
        CellOptions(acts, clipped(op), bool(op.attr("input_forget", 0)) and lstm, linear)
        for acts in activations_of(op, defaults, n)
    ]
    loop = Recurrence(op, s, x.dtype, xp, options)
    keep, keepers = Keeper(), [Keeper() for _ in range(n)]
    parts: tuple[Part, ...] = (
        ((n, wide), x.dtype),
        ((n, s.hidden, wide), x.dtype),
        ((n, s.inputs, wide), x.dtype),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        def operand(index: int) -> Array | None:
            return inputs[index] if index < len(inputs) else None

        bias, recurrence, weights = carve(workspace, *parts)
        scratch = None if workspace is None else workspace[carved_bytes(*parts) :]
        both = operand(3)
        before: list[Call] = []
        shifts: list[Array | None] = [None] * n
        if both is not None:
            hidden_gate = slice(2 * s.hidden, None) if linear else slice(0, 0)

            def add_biases() -> None:
                xp.add(both[:, :wide], both[:, wide:], out=bias)
                # The hidden gate's recurrent bias goes inside the reset gate, not to the input's share.
                xp.copyto(bias[:, hidden_gate], both[:, :wide][:, hidden_gate])

            before.append(add_biases)
            if linear:
                shifts = [both[d, wide + 2 * s.hidden :] for d in range(n)]

        def laid_out(index: int, target: Array) -> Array:
            """Weights (D, G*H, K) as (D, K, G*H): products of a few rows are twice as fast so. Always laid out anew,
            constant or not: a product with a transposed view may differ in its last bits."""
            given_weights = inputs[index]
            turned = given_weights.swapaxes(1, 2)
            if is_constant(given_weights):
                return keep((index, "turned"), (given_weights,), lambda: np.ascontiguousarray(turned))
            before.append(partial(xp.copyto, target, turned))
            return target

        weights, recurrence = laid_out(1, weights), laid_out(2, recurrence)

        def project(d: int, sequence: Array, target: Array) -> Call:
            shift = None if both is None else bias[d]
            rows, results = sequence, target
            if not s.batch_first:
                rows, results = sequence.reshape(-1, s.inputs), target.reshape(-1, wide)
            multiply = bind_product(xp, keepers[d], rows, weights[d], results)

            def call() -> None:
                multiply()
                if shift is not None:
                    xp.add(target, shift, out=target)

            return call

        return loop.bind(
            inputs[0],
            [partial(_product, xp.matmul, a) for a in recurrence],
            project,
            [*outputs, None, None],
            scratch,
            lengths=operand(4),
            initial=[operand(5), operand(6)] if lstm else [operand(5)],
            peepholes=operand(7) if lstm else None,
            recurrent_bias=shifts,
            hidden=[a[:, 2 * s.hidden :] for a in recurrence] if op.op_type == "GRU" else (None, None),
            before=before,
            recurrence=recurrence,
        )

    return computed(
        output_specs(op, s, x.dtype, loop.n_states),
        bind,
        contiguous=(0, 3),
        workspace_bytes=carved_bytes(*parts, *loop.parts),
    )


def _product(matmul: Any, weights: Array, state: Array, target: Array) -> None:
    matmul(state, weights, out=target)


@kernel("RNN", versions=(7, 14, 22))
def rnn(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W, R, optional B, sequence_lens, initial_h -> Y, Y_h."""
    return _recurrent(op, specs, xp, 1, ("tanh",))


@kernel("GRU", versions=(7, 14, 22))
def gru(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W, R, optional B, sequence_lens, initial_h -> Y, Y_h."""
    return _recurrent(op, specs, xp, 3, ("sigmoid", "tanh"))


@kernel("LSTM", versions=(7, 14, 22))
def lstm(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X, W, R, optional B, sequence_lens, initial_h, initial_c, P -> Y, Y_h, Y_c."""
    return _recurrent(op, specs, xp, 4, ("sigmoid", "tanh", "tanh"))
