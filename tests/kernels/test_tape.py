"""Tapes: exact operations have NumPy's bits, transcendentals a few units in the last place, whatever the broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hetero.kernels import tape_layout as layout
from hetero.kernels.tape import Tape, TapeWriter, address
from hetero.kernels.tape_loops import run_tape
from hetero.kernels.tape_shape import collapse
from hetero.kernels.tape_twin import tape_twin
from tests.kernels.harness import compile_op

Floats = NDArray[np.float32]
SPECIAL = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-39,
        -1e-39,
        3.4e38,
        -3.4e38,
        1.0,
        -1.0,
        0.1,
        88.7,
        -87.4,
    ],
    np.float32,
)
LENGTHS = (1, 7, 16, 1023, 1024, 1025, 5000)
UNARY = {
    layout.NEG: np.negative,
    layout.ABS: np.absolute,
    layout.SQRT: np.sqrt,
    layout.RECIPROCAL: np.reciprocal,
    layout.COPY: np.positive,
}
BINARY = {
    layout.ADD: np.add,
    layout.SUB: np.subtract,
    layout.MUL: np.multiply,
    layout.DIV: np.divide,
    layout.MAX: np.maximum,
    layout.MIN: np.minimum,
}
FINE = np.concatenate(
    [
        np.linspace(-110, 95, 100001),
        np.linspace(-1, 1, 20001),
        np.logspace(-37, 1, 5000),
        -np.logspace(-37, 1, 5000),
    ]
).astype(np.float32)


def drawn(length: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(length) * 10.0 ** rng.integers(-6, 7, length)).astype(np.float32)
    x[rng.integers(0, length, length // 3)] = rng.choice(SPECIAL, length // 3)
    return x


def same_bits(a: Any, b: Any) -> bool:
    """Equal to the bit; of two NaN operands, hardware may take either's payload."""
    equal = (a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))
    return a.shape == b.shape and bool(equal.all())


def run(tape: Tape | None, inputs: list[Floats], outputs: list[Floats]) -> None:
    assert tape is not None
    arrays = [*inputs, *outputs]
    scratch = np.full(tape.scratch_bytes + 64, 0xFF, np.uint8)
    tape.bind(arrays, [address(x) for x in arrays], scratch)()


def words_of(tape: Tape, arrays: list[Floats], scratch: Any = None) -> Any:
    """The tape with its addresses."""
    return tape.words_at([address(x) for x in arrays], scratch)


def single(code: int, *operands: Floats) -> Floats:
    with np.errstate(all="ignore"):
        out = np.empty(np.broadcast_shapes(*(x.shape for x in operands)), np.float32)
    writer = TapeWriter(out.shape)
    values = [writer.input(x.shape) for x in operands]
    run(writer.finish([writer.emit(code, *values)]), list(operands), [out])
    return out


def ulps(got: Floats, exact: Any) -> float:
    """Largest distance in units of the last place of float32, where the exact value is a normal number."""
    there = (np.abs(exact) < 3.4e38) & (np.abs(exact) > 1.2e-38)
    unit = np.spacing(np.abs(exact[there]).astype(np.float32)).astype(np.float64)
    return float((np.abs(got[there].astype(np.float64) - exact[there]) / unit).max())


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("code", UNARY)
def test_exact_operations_on_one_operand_have_numpys_bits(code: int, length: int) -> None:
    x = drawn(length)
    with np.errstate(all="ignore"):
        assert same_bits(single(code, x), UNARY[code](x))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("code", BINARY)
def test_exact_operations_on_two_operands_have_numpys_bits(code: int, length: int) -> None:
    a, b, cell = drawn(length, 1), drawn(length, 2), drawn(1, 3)
    with np.errstate(all="ignore"):
        assert same_bits(single(code, a, b), BINARY[code](a, b))
        assert same_bits(single(code, a, cell), BINARY[code](a, cell))
        assert same_bits(single(code, cell, b), BINARY[code](cell, b))


@pytest.mark.parametrize("code", BINARY)
def test_every_pair_of_special_numbers_gives_numpys_result(code: int) -> None:
    a, b = np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    with np.errstate(all="ignore"):
        assert same_bits(single(code, a, b), BINARY[code](a, b))


@pytest.mark.parametrize(
    ("code", "exact", "low", "high", "limit"),
    [
        (layout.EXP, np.exp, -87, 88.7, 2),
        (layout.EXPM1, np.expm1, -110, 0, 3),
        (layout.TANH, np.tanh, -110, 95, 7),
        (layout.LOG1P, np.log1p, 0, 1, 3),
        (layout.SIGMOID, lambda x: 1 / (1 + np.exp(-x)), -86, 95, 3),
    ],
    ids=["exp", "expm1", "tanh", "log1p", "sigmoid"],
)
def test_transcendentals_are_right_to_a_few_units_in_the_last_place(
    code: int, exact: Any, low: float, high: float, limit: float
) -> None:
    x = FINE[(low <= FINE) & (high >= FINE)]
    assert ulps(single(code, x), exact(x.astype(np.float64))) <= limit


def test_erf_has_the_bits_of_the_chain_of_ufuncs() -> None:
    x = np.concatenate([FINE, drawn(5000)])
    writer = TapeWriter(x.shape)
    tape = writer.finish([writer.emit(layout.ERF, writer.input(x.shape))])
    ours, twins = np.empty_like(x), np.empty_like(x)
    run(tape, [x], [ours])
    assert tape is not None
    tape_twin(words_of(tape, [x, twins]))
    assert same_bits(ours, twins)


def test_the_ends_of_float32_are_those_of_the_functions() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 88.73, -103.0, -104.0, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        exp, tanh, sigmoid = (single(c, x) for c in (layout.EXP, layout.TANH, layout.SIGMOID))
    assert np.isnan([exp[0], tanh[0], sigmoid[0]]).all()
    assert exp[1] == exp[3] == np.inf
    assert exp[2] == exp[5] == 0
    assert 0 < exp[4] < 1e-44
    assert exp[6] == exp[7] == 1
    assert tanh[1] == 1
    assert tanh[2] == -1
    assert np.signbit(tanh[7])
    assert sigmoid[1] == 1
    assert sigmoid[2] == 0


def test_gelu_of_large_negative_numbers_is_nothing() -> None:
    x = np.array([-30, -1e10, -np.inf], np.float32)
    assert np.array_equal(single(layout.GELU, x)[:2], [0, 0])


@pytest.mark.parametrize("code", range(layout.EXP, layout.GELU_TANH + 1))
def test_a_number_gives_the_same_bits_wherever_it_stands(code: int) -> None:
    for value in (-0.7, -13.3, -1e-3):
        y = single(code, np.full(1100, value if code != layout.LOG1P else -value / 20, np.float32))
        assert same_bits(y, np.full_like(y, y[-1]))


SHAPES = st.lists(st.sampled_from((1, 1, 2, 3, 5, 40, 600)), min_size=1, max_size=4).filter(
    lambda s: np.prod(s) <= 200_000
)


@st.composite
def broadcasts(draw: Any) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A shape, and operands that together broadcast to it, the first one alone."""
    shape = tuple(draw(SHAPES))
    operands = [shape]
    for _ in range(draw(st.integers(0, 3))):
        mask = [draw(st.booleans()) for _ in shape]
        operand = tuple(d if m else 1 for d, m in zip(shape, mask, strict=True))
        operands.append(operand[draw(st.integers(0, len(shape))) if not any(mask) else 0 :])
    return shape, operands


@settings(max_examples=150, deadline=None)
@given(broadcasts())
def test_a_collapsed_broadcast_meets_the_elements_that_numpys_meets(
    drawn_: tuple[tuple[int, ...], list[tuple[int, ...]]],
) -> None:
    shape, operands = drawn_
    found = collapse(shape, operands)
    if found is None:
        return
    rows, cols, walks = found
    for operand, walk in zip(operands, walks, strict=True):
        numbers = np.arange(np.prod(operand, dtype=int)).reshape(operand)
        want = np.broadcast_to(numbers, shape).reshape(rows, cols)
        table = numbers.reshape(-1, cols if walk.wide else 1)
        r = np.arange(rows) // walk.div % walk.mod
        assert np.array_equal(np.broadcast_to(table[r], (rows, cols)), want)
        assert not walk.full or numbers.size == rows * cols


def test_an_operand_with_a_gap_among_its_rows_is_left_to_ufuncs() -> None:
    assert collapse((2, 3, 4, 5), [(2, 3, 4, 5), (2, 1, 4, 1)]) is None
    writer = TapeWriter((2, 3, 4, 5))
    value = writer.emit(layout.ADD, writer.input((2, 3, 4, 5)), writer.input((2, 1, 4, 1)))
    assert writer.finish([value]) is None


@settings(max_examples=120, deadline=None)
@given(broadcasts(), st.data())
def test_random_tapes_of_exact_operations_have_their_twins_bits(
    drawn_: tuple[tuple[int, ...], list[tuple[int, ...]]], data: Any
) -> None:
    shape, shapes = drawn_
    writer = TapeWriter(shape)
    inputs = [drawn(max(1, int(np.prod(s))), k)[: int(np.prod(s))].reshape(s) for k, s in enumerate(shapes)]
    values = [writer.input(s) for s in shapes]
    values += [writer.constant(v) for v in (0.5, -2.0)]
    made = []
    for _ in range(data.draw(st.integers(1, 12))):
        code = data.draw(st.sampled_from([*UNARY, *BINARY]))
        second = data.draw(st.sampled_from(values)) if code in BINARY else None
        value = writer.emit(code, data.draw(st.sampled_from(values)), second)
        values.append(value)
        made.append(value)
    outputs = [made[-1], *(v for v in made[:-1] if data.draw(st.booleans()))]
    tape = writer.finish(outputs)
    if tape is None:
        return
    ours = [np.empty(shape, np.float32) for _ in outputs]
    twins = [np.empty(shape, np.float32) for _ in outputs]
    run(tape, inputs, ours)
    tape_twin(words_of(tape, [*inputs, *twins]))
    for a, b in zip(ours, twins, strict=True):
        assert same_bits(a, b)
    shared = writer.finish(outputs, [0])  # the first output over the first input
    place = [inputs[0].copy(), *inputs[1:]]
    run(shared, place, [place[0], *ours[1:]])
    assert same_bits(place[0], twins[0])


def test_threads_do_not_change_bits() -> None:
    x, bias = drawn(300_000).reshape(300, 1000), drawn(1000, 5)
    writer = TapeWriter(x.shape)
    value = writer.emit(layout.TANH, writer.emit(layout.ADD, writer.input(x.shape), writer.input(bias.shape)))
    tape = writer.finish([value])
    assert tape is not None
    assert tape.words[layout.PARTS] > 1
    results = []
    for parallel in (False, True):
        out = np.empty_like(x)
        scratch = np.empty(tape.scratch_bytes + 64, np.uint8)
        words = words_of(tape, [x, bias, out], scratch)
        run_tape.variant(words, parallel=parallel)(words)
        results.append(out)
    assert same_bits(*results)


ACTIVATIONS: list[tuple[str, int, dict[str, Any], float]] = [
    ("Exp", 13, {}, 4), ("Tanh", 13, {}, 8), ("Sigmoid", 13, {}, 6), ("Erf", 13, {}, 0), ("Gelu", 20, {}, 0),
    ("Elu", 22, {}, 4), ("Celu", 12, {"alpha": 2.0}, 4), ("Selu", 22, {}, 5), ("Softplus", 22, {}, 6),
    ("Mish", 22, {}, 8), ("Swish", 24, {"alpha": 1.5}, 5), ("HardSwish", 22, {}, 0), ("HardSigmoid", 22, {}, 0),
    ("LeakyRelu", 16, {}, 0), ("LeakyRelu", 16, {"alpha": 2.0}, 0), ("Softsign", 22, {}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "opset", "attributes", "limit"), ACTIVATIONS)
def test_the_ufuncs_that_stand_in_for_a_tape_agree_with_it(
    op_type: str, opset: int, attributes: dict[str, Any], limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.concatenate([np.linspace(-80, 80, 5001).astype(np.float32), SPECIAL])
    results = []
    for jit in ("1", "0"):
        monkeypatch.setenv("HETERO_JIT", jit)
        _, compiled = compile_op(op_type, [x], opset=opset, **attributes)
        out = np.empty_like(x)
        compiled.bind([x], [out], np.empty(compiled.workspace_bytes, np.uint8))()  # type: ignore[misc]
        results.append(out)
    tape, ufuncs = results
    assert np.array_equal(np.isnan(tape), np.isnan(ufuncs))
    if limit == 0:
        assert same_bits(tape, ufuncs)
    else:
        assert ulps(tape, ufuncs.astype(np.float64)) <= limit


def test_an_operand_that_is_left_out_changes_no_bits() -> None:
    x = drawn(100)
    outputs = [np.empty_like(x), np.empty_like(x)]
    for inputs, out in (([x], outputs[0]), ([x, None], outputs[1])):
        _, compiled = compile_op("FastGelu", inputs, opset=1, domain="com.microsoft")
        assert compiled.bind is not None
        compiled.bind(inputs, [out], np.empty(compiled.workspace_bytes, np.uint8))()
    assert same_bits(*outputs)


@pytest.mark.parametrize("op_type", ["Sigmoid", "Gelu"])
def test_operands_that_are_not_aligned_or_are_overwritten_give_the_same_bits(op_type: str) -> None:
    x = drawn(3000)
    _, compiled = compile_op(op_type, [x], opset=20)
    assert compiled.bind is not None
    raw = np.zeros(4 * 3000 + 1, np.uint8)
    odd = raw[1:].view(np.float32)
    odd[...] = x
    assert not odd.flags.aligned
    place = x.copy()
    outputs = [np.empty_like(x), np.empty_like(x), place]
    for source, out in zip((x, odd, place), outputs, strict=True):
        compiled.bind([source], [out], np.empty(compiled.workspace_bytes, np.uint8))()
    assert same_bits(outputs[0], outputs[1])
    assert same_bits(outputs[0], outputs[2])


def test_a_read_only_operand_is_found_where_it_is() -> None:
    x = drawn(10)
    x.flags.writeable = False
    assert address(x) == x.ctypes.data
    assert address(x.copy()) != address(x)
