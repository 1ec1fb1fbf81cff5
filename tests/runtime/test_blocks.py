"""Operands of which only the matrices must be contiguous: parts of a buffer are read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetero.runtime.operands import has_blocks
from tests.kernels.harness import compile_op
from tests.runtime.harness import rig

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
CONSTANTS = "<int64[1] low = {1}, int64[1] high = {4}, int64[1] one = {1}>"


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bound(a: Any, b: Any) -> Any:
    _, compiled = compile_op("MatMul", [a, b], opset=13)
    assert compiled.bind is not None
    (spec,) = compiled.outputs
    out = np.empty(spec.shape, spec.dtype)  # type: ignore[union-attr]
    compiled.bind([a, b], [out], None)()
    return out


@given(
    st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(1, 9), st.integers(1, 40), st.integers(1, 9)),
    st.integers(0, 3),
)
def test_bits_of_products_do_not_depend_on_how_far_matrices_lie_apart(
    shape: tuple[int, int, int, int, int], gap: int
) -> None:
    b, h, m, k, n = shape
    left, right = numbers(b, h + gap, m + gap, k), numbers(b, h + gap, k + gap, n, seed=1)
    views = left[:, :h, :m], right[:, :h, :k]
    _, compiled = compile_op("MatMul", list(views), opset=13)
    assert compiled.blocks == {0, 1}
    assert bound(*views).tobytes() == bound(*(np.ascontiguousarray(v) for v in views)).tobytes()


def test_rows_that_are_one_product_must_be_contiguous() -> None:
    for right in (numbers(5, 3), numbers(1, 5, 3), numbers(1, 1, 5, 3)):
        _, compiled = compile_op("MatMul", [numbers(2, 4, 5), right], opset=13)
        assert compiled.blocks == frozenset()


def test_a_part_of_a_buffer_is_not_copied_for_a_product_and_a_turned_one_is() -> None:
    shapes = "g (float[2, 5, 3, 4] a, float[2, 5, 4, 4] b) => (float[2, 3, 3, 4] y)"
    parts = "s = Slice(x, low, high, one) t = Slice(z, low, high, one)"
    plain = rig(HEAD + f"{shapes} {CONSTANTS} {{ x = Neg(a) z = Neg(b) {parts} y = MatMul(s, t) }}")
    turned = rig(
        HEAD + f"{shapes} {CONSTANTS} {{ x = Neg(a) z = Neg(b) {parts} u = Transpose<perm=[0, 1, 3, 2]>(t)"
        " y = MatMul(s, u) }"
    )
    a, b = numbers(2, 5, 3, 4), numbers(2, 5, 4, 4, seed=1)
    np.testing.assert_allclose(plain(a, b)[0], -a[:, 1:4] @ -b[:, 1:4], rtol=1e-5)
    np.testing.assert_allclose(turned(a, b)[0], a[:, 1:4] @ b[:, 1:4].swapaxes(-1, -2), rtol=1e-5, atol=1e-6)
    assert plain.runner.statistics.contiguous_copies == 0
    assert turned.runner.statistics.contiguous_copies == 1


def test_what_has_blocks() -> None:
    cpu = rig(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }").provider
    x = numbers(4, 5, 6, 7)
    assert has_blocks(cpu, x)
    assert has_blocks(cpu, x[:, 1:3, 2:4])
    assert has_blocks(cpu, np.broadcast_to(x[:1], x.shape))
    assert has_blocks(cpu, x[::-1])
    assert not has_blocks(cpu, x[..., :3])
    assert not has_blocks(cpu, x[:, :, ::2])
    assert not has_blocks(cpu, x.swapaxes(-1, -2))
    assert not has_blocks(cpu, x[0, 0, :, :3])
