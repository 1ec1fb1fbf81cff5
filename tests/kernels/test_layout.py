"""Layout operators: exact clamping and reshaping rules, views that share memory, properties against NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import GuardError, KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels.base import lookup
from hetero.kernels.layout import keeps_strides
from hetero.types import TensorSpec
from tests.kernels.harness import assert_close, check_op, compile_op, operation, run_op

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def grid(*shape: int) -> Any:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def view_of(op_type: str, inputs: list[Any], **keywords: Any) -> Any:
    _, compiled = compile_op(op_type, inputs, **keywords)
    assert compiled.view is not None
    found = compiled.view(inputs)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("shape", "wanted", "allowzero", "expected"),
    [
        ((0, 8, 2), (4, 2, -1), 0, (4, 2, 0)),
        ((4, 2, 0), (0, 0, 4), 1, (0, 0, 4)),
        ((0, 8, 2), (0, 0, 4), 1, (0, 0, 4)),
        ((2, 2, 3, 2), (-1, 0, 0), 0, (4, 2, 3)),
        ((2, 3), (0, -1), 0, (2, 3)),
        ((2, 3), (3, 2), 0, (3, 2)),
        ((2, 3), (-1,), 0, (6,)),
        ((1,), (), 0, ()),
        ((), (1, 1), 0, (1, 1)),
        ((0, 3), (3, 0), 1, (3, 0)),
        ((0, 3), (0, 5), 0, (0, 5)),
        ((2, 0), (2, 0, 7), 1, (2, 0, 7)),
    ],
)
def test_reshape_copies_zeros_and_infers_minus_one(
    shape: tuple[int, ...], wanted: tuple[int, ...], allowzero: int, expected: tuple[int, ...]
) -> None:
    x = grid(*shape)
    (out,) = run_op("Reshape", [x, i64(*wanted)], opset=14, allowzero=allowzero)
    assert out.shape == expected
    assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize("opset", [7, 13, 14, 19, 21, 23, 24, 25])
def test_every_version_of_reshape_agrees_with_a_peer(opset: int) -> None:
    check_op("Reshape", [grid(2, 3, 4), i64(0, -1, 2)], opset=opset)


def test_a_reshape_that_cannot_divide_names_both_element_counts() -> None:
    with pytest.raises(GuardError, match=r"6 elements.*hold 4 elements") as caught:
        run_op("Reshape", [grid(2, 3), i64(4, -1)], opset=14)
    assert (caught.value.node, caught.value.op, caught.value.operand) == ("node", "Reshape", "shape")
    with pytest.raises(GuardError, match=r"\(6 elements\).*\(8 elements\)"):
        run_op("Reshape", [grid(2, 3), i64(4, 2)], opset=14)
    with pytest.raises(GuardError, match=r"0 elements.*hold 0 elements"):
        run_op("Reshape", [grid(0, 3), i64(0, -1)], opset=7)


@pytest.mark.parametrize(
    ("wanted", "allowzero", "message"),
    [
        ((-1, -1), 0, "more than one"),
        ((-2, 3), 0, "negative"),
        ((0, -1), 1, "both 0 and -1"),
        ((2, 3, 0), 0, "copies axis 2"),
    ],
)
def test_a_malformed_reshape_is_refused(wanted: tuple[int, ...], allowzero: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op("Reshape", [grid(2, 3), i64(*wanted)], opset=14, allowzero=allowzero)


def test_a_reshape_without_a_known_shape_is_declined() -> None:
    x = grid(2, 3)
    op = operation("Reshape", [x, i64(6)], opset=14)
    definition = lookup("", "Reshape", op.version)
    assert definition is not None
    with pytest.raises(UnsupportedError, match="known when compiling"):
        definition.compile(op, [TensorSpec(x.dtype, x.shape), TensorSpec(np.dtype(np.int64), (1,))], np)


def test_a_reshape_of_strides_that_do_not_fuse_has_no_view_but_a_copy() -> None:
    x = grid(4, 6).T
    assert view_of("Reshape", [x, i64(24)], opset=14) is None
    (out,) = run_op("Reshape", [x, i64(24)], opset=14)
    assert out.tolist() == x.reshape(24).tolist()
    strided = grid(4, 6)[:, ::2]
    shared = view_of("Reshape", [strided, i64(2, 2, 3, 1)], opset=14)
    assert shared is not None
    assert np.shares_memory(shared, strided)


@pytest.mark.parametrize(
    ("start", "end", "step", "extent", "expected"),
    [
        (0, 5, -1, 10, []),
        (9, 0, -3, 10, [9, 6, 3]),
        (-1, INT64_MIN, -1, 10, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (INT64_MAX, INT64_MIN, -3, 10, [9, 6, 3, 0]),
        (-1, -1, -1, 10, []),
        (-1, INT64_MIN, -1, 0, []),
        (0, INT64_MAX, INT64_MAX, 10, [0]),
        (INT64_MAX, INT64_MIN, INT64_MIN, 10, [9]),
        (-100, 3, 1, 10, [0, 1, 2]),
        (-3, INT64_MAX, 2, 10, [7, 9]),
        (3, -20, -1, 10, [3, 2, 1, 0]),
        (20, 30, 1, 10, []),
        (5, 2, 1, 10, []),
    ],
)
def test_slice_clamps_as_the_text_says(
    start: int, end: int, step: int, extent: int, expected: list[int]
) -> None:
    x = np.arange(extent)
    (out,) = run_op("Slice", [x, i64(start), i64(end), i64(0), i64(step)], opset=13)
    assert out.tolist() == expected


@pytest.mark.parametrize("opset", [10, 11, 13])
def test_slice_by_inputs_takes_negative_axes_and_defaults(opset: int) -> None:
    x = grid(4, 5, 6)
    check_op("Slice", [x, i64(1, -4), i64(-1, 3), i64(0, -1)], opset=opset)
    check_op("Slice", [x, i64(1, 0), i64(3, 2)], opset=opset)
    check_op("Slice", [x, i64(-1), i64(0), i64(1), i64(-2)], opset=opset)


def test_slice_by_attributes_serves_the_first_version() -> None:
    check_op("Slice", [grid(4, 5)], opset=9, starts=[1, -3], ends=[1000, -1])
    check_op("Slice", [grid(4, 5)], opset=9, starts=[2], ends=[5], axes=[1])


def test_slice_refuses_a_step_of_zero_and_axes_named_twice() -> None:
    x = grid(4, 5)
    with pytest.raises(KernelError, match="step along axis 1 is 0"):
        run_op("Slice", [x, i64(0), i64(1), i64(1), i64(0)], opset=13)
    with pytest.raises(KernelError, match="twice"):
        run_op("Slice", [x, i64(0, 0), i64(1, 1), i64(1, -1)], opset=13)
    with pytest.raises(KernelError, match="axis 2 is out of range for rank 2"):
        run_op("Slice", [x, i64(0), i64(1), i64(2)], opset=13)
    with pytest.raises(KernelError, match="do not agree"):
        run_op("Slice", [x, i64(0, 1), i64(1)], opset=13)


@pytest.mark.parametrize("opset", [7, 11])
def test_squeeze_and_unsqueeze_take_axes_as_attributes(opset: int) -> None:
    check_op("Squeeze", [grid(1, 3, 1)], opset=opset, axes=[2])
    check_op("Squeeze", [grid(1, 3, 1)], opset=opset)
    check_op("Unsqueeze", [grid(3, 4)], opset=opset, axes=[0, 3])


@pytest.mark.parametrize("opset", [13, 21, 25])
def test_squeeze_and_unsqueeze_take_axes_as_inputs(opset: int) -> None:
    check_op("Squeeze", [grid(1, 3, 1), i64(-1)], opset=opset, use_ort=False)
    check_op("Squeeze", [grid(1, 3, 1)], opset=opset, use_ort=False)
    check_op("Unsqueeze", [grid(3, 4), i64(3, 0, -3)], opset=opset, use_ort=False)
    (scalar,) = run_op("Unsqueeze", [np.array(3.0), i64(0)], opset=opset)
    assert scalar.shape == (1,)


def test_squeeze_refuses_an_axis_that_is_longer() -> None:
    with pytest.raises(KernelError, match=r"axis 1 of .* has extent 3, not 1"):
        run_op("Squeeze", [grid(1, 3), i64(1)], opset=13)
    with pytest.raises(KernelError, match="twice"):
        run_op("Unsqueeze", [grid(1, 3), i64(0, -4)], opset=13)


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2, 3])
def test_flatten_takes_every_axis(axis: int) -> None:
    check_op("Flatten", [grid(2, 3, 4)], opset=13, axis=axis)


def test_flatten_of_a_scalar_is_a_matrix_of_one() -> None:
    (out,) = run_op("Flatten", [np.array(2.0)], opset=13, axis=0)
    assert out.shape == (1, 1)
    with pytest.raises(KernelError, match="axis 1 is out of range for rank 0"):
        run_op("Flatten", [np.array(2.0)], opset=13)


def test_transpose_reverses_by_default_and_checks_its_permutation() -> None:
    check_op("Transpose", [grid(2, 3, 4)], opset=13)
    check_op("Transpose", [grid(2, 3, 4)], opset=7, perm=[1, 0, 2])
    check_op("Transpose", [np.array([["a", "b"]], object)], opset=13)
    with pytest.raises(KernelError, match="no permutation"):
        run_op("Transpose", [grid(2, 3)], opset=13, perm=[0, 0])


def test_expand_broadcasts_both_ways() -> None:
    check_op("Expand", [grid(3, 1), i64(2, 1, 4)], opset=13)
    check_op("Expand", [grid(3, 4), i64(1)], opset=8)
    (empty,) = run_op("Expand", [grid(3, 1), i64(3, 0)], opset=13)
    assert empty.shape == (3, 0)
    with pytest.raises(KernelError, match="cannot broadcast"):
        run_op("Expand", [grid(3, 2), i64(3, 4)], opset=13)


def test_an_expanded_view_cannot_be_written() -> None:
    x = grid(3, 1)
    shared = view_of("Expand", [x, i64(3, 4)], opset=13)
    assert np.shares_memory(shared, x)
    assert not shared.flags.writeable


def test_an_expansion_beyond_the_bound_is_refused_before_it_is_made() -> None:
    with pytest.raises(MemoryLimitError, match=r"would hold \d+ elements"):
        run_op("Expand", [grid(1), i64(2**62, 2**62)], opset=13)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "sizes"),
    [
        (7, [], {"split": [1, 2, 4]}, [1, 2, 4]),
        (11, [], {"axis": -1, "split": [7, 0, 0]}, [7, 0, 0]),
        (13, [i64(3, 0, 4)], {}, [3, 0, 4]),
        (18, [i64(1, 1, 5)], {}, [1, 1, 5]),
        (18, [], {"num_outputs": 3}, [3, 3, 1]),
    ],
)
def test_split_takes_sizes_as_each_version_says(
    opset: int, inputs: list[Any], attributes: dict[str, Any], sizes: list[int]
) -> None:
    x = grid(7)
    out = run_op("Split", [x, *inputs], opset=opset, n_outputs=3, **attributes)
    assert_close(out, np.split(x, np.cumsum(sizes)[:-1]))


def test_an_uneven_split_leaves_the_last_parts_short() -> None:
    out = run_op("Split", [grid(5)], opset=18, n_outputs=4, num_outputs=4)
    assert [p.shape[0] for p in out] == [2, 2, 1, 0]


def test_split_before_version_18_must_be_even_without_sizes() -> None:
    check_op("Split", [grid(6, 2)], opset=13, n_outputs=3)
    with pytest.raises(KernelError, match="does not split into 3 equal parts"):
        run_op("Split", [grid(7)], opset=13, n_outputs=3)


def test_split_refuses_sizes_that_do_not_fit() -> None:
    with pytest.raises(KernelError, match="do not sum to extent 7"):
        run_op("Split", [grid(7), i64(3, 3)], opset=13, n_outputs=2)
    with pytest.raises(KernelError, match="do not sum to extent 7"):
        run_op("Split", [grid(7), i64(9, -2)], opset=13, n_outputs=2)
    with pytest.raises(KernelError, match="3 sizes for 2 outputs"):
        run_op("Split", [grid(7), i64(3, 3, 1)], opset=13, n_outputs=2)
    with pytest.raises(KernelError, match="num_outputs is 3, but the node has 2"):
        run_op("Split", [grid(7)], opset=18, n_outputs=2, num_outputs=3)


def test_the_parts_of_a_split_are_views_and_may_be_left_out() -> None:
    x = grid(4, 6)
    _, compiled = compile_op("Split", [x, i64(2, 4)], opset=13, n_outputs=2, axis=1)
    assert compiled.view is not None
    parts = compiled.view([x])
    assert parts is not None
    assert all(np.shares_memory(part, x) for part in parts)
    first, second = run_op("Split", [x, i64(2, 4)], opset=13, n_outputs=2, omit=(0,), axis=1)
    assert first is None
    assert second.tolist() == x[:, 2:].tolist()


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        np.arange(6).reshape(2, 3).astype(ml_dtypes.int4),
        np.array([["a", "b", "c"], ["d", "e", "f"]], object),
        np.arange(6).reshape(2, 3) % 2 == 0,
    ],
    ids=lambda x: str(x.dtype),
)
def test_layout_does_not_care_what_the_elements_are(x: Any) -> None:
    assert run_op("Reshape", [x, i64(3, 2)], opset=21)[0].tolist() == x.reshape(3, 2).tolist()
    assert run_op("Transpose", [x], opset=21)[0].tolist() == x.T.tolist()
    assert run_op("Slice", [x, i64(1), i64(9)], opset=13)[0].tolist() == x[1:].tolist()
    assert run_op("Expand", [x, i64(2, 1, 1)], opset=13)[0].tolist() == [x.tolist()] * 2


@st.composite
def strided_arrays(draw: st.DrawFn) -> Any:
    """Arrays of up to four axes, sliced, reversed and transposed at will."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    x = grid(*shape)
    index = tuple(
        slice(None, None, draw(st.sampled_from([1, 2, -1]))) if draw(st.booleans()) else slice(None)
        for _ in shape
    )
    return x[(*index, ...)].transpose(draw(st.permutations(range(len(shape)))))


@settings(deadline=None, max_examples=200)
@given(x=strided_arrays(), data=st.data())
def test_a_reshape_is_a_view_exactly_where_numpy_needs_no_copy(x: Any, data: st.DataObject) -> None:
    factors = [f for f in (2, 2, 3, 3) if x.size % f == 0]
    target: list[int] = []
    rest = x.size
    for factor in factors:
        if rest and rest % factor == 0:
            target.append(factor)
            rest //= factor
    wanted = data.draw(st.permutations([*target, rest]))
    shared = np.shares_memory(x.reshape(wanted), x) if x.size else True
    assert keeps_strides(x.shape, x.strides, wanted) == shared
    out = run_op("Reshape", [x, i64(*wanted)], opset=14, allowzero=1)[0]
    assert out.tolist() == x.reshape(wanted).tolist()


@settings(deadline=None, max_examples=200)
@given(x=strided_arrays(), data=st.data())
def test_a_slice_is_what_numpy_slices(x: Any, data: st.DataObject) -> None:
    bound = st.one_of(st.integers(-6, 6), st.sampled_from([INT64_MIN, INT64_MAX]))
    axes = data.draw(st.lists(st.integers(0, max(0, x.ndim - 1)), unique=True, max_size=x.ndim))
    starts = [data.draw(bound) for _ in axes]
    ends = [data.draw(bound) for _ in axes]
    steps = [data.draw(st.sampled_from([1, 2, 3, -1, -2, 5, -5])) for _ in axes]
    expected = x
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # NumPy's own clamping agrees with the text, once an end below the axis is spelled None.
        if step < 0 and end < -x.shape[axis]:
            index = slice(start, None, step)
        else:
            index = slice(start, end, step)
        if step < 0 and start < -x.shape[axis] and x.shape[axis]:
            index = slice(0, index.stop, step)  # The text clamps such a start to the first element.
        expected = expected[(*(slice(None),) * axis, index)]
    out = run_op("Slice", [x, i64(*starts), i64(*ends), i64(*axes), i64(*steps)], opset=13)[0]
    assert out.tolist() == expected.tolist()


@settings(deadline=None, max_examples=100)
@given(x=strided_arrays(), data=st.data())
def test_a_chain_of_views_shares_memory_and_copies_alike(x: Any, data: st.DataObject) -> None:
    viewed: Any = x
    copied: Any = x
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["Transpose", "Unsqueeze", "Squeeze", "Slice", "Expand"]))
        more: list[Any] = []
        attributes: dict[str, Any] = {}
        if kind == "Transpose":
            attributes["perm"] = data.draw(st.permutations(range(copied.ndim)))
        elif kind == "Unsqueeze":
            more = [i64(data.draw(st.integers(-copied.ndim - 1, copied.ndim)))]
        elif kind == "Slice":
            if copied.ndim == 0:
                continue
            more = [i64(-1), i64(INT64_MIN), i64(data.draw(st.integers(0, copied.ndim - 1))), i64(-1)]
        elif kind == "Expand":
            more = [i64(2, *copied.shape)] if copied.ndim < 6 else [i64(1)]
        shared = view_of(kind, [viewed, *more], opset=13, **attributes)
        assert shared is not None
        assert not shared.size or np.shares_memory(shared, x)
        viewed = shared
        copied = run_op(kind, [copied, *more], opset=13, **attributes)[0]
    assert viewed.tolist() == copied.tolist()
