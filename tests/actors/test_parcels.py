"""Parcels: every value comes back as it was, and array bytes stay out of the pickle stream."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import ray
from hypothesis import given, settings

from actors.cluster import RayLease
from actors.parcels import pack, unpack
from hetero.errors import TransportError
from hetero.types import DataType, MapValue, SequenceValue, numpy_dtype

DTYPES = sorted({numpy_dtype(t).name for t in DataType if t not in (DataType.UNDEFINED, DataType.STRING)})


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def array_of(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any bits that the dtype may hold (narrow integers use only some of their byte)."""
    rng = np.random.default_rng(seed)
    if "int" in dtype.name and dtype.isbuiltin == 2:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def assert_same(got: Any, want: Any) -> None:
    if want is None:
        assert got is None
    elif isinstance(want, MapValue):
        assert isinstance(got, MapValue)
        assert list(got.items()) == list(want.items())
        assert got.value_dtype == want.value_dtype
    elif isinstance(want, SequenceValue):
        assert isinstance(got, SequenceValue)
        assert got.dtype == want.dtype
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    else:
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.tolist() == want.tolist() if want.dtype == object else got.tobytes() == want.tobytes()


def over_the_wire(values: list[Any]) -> tuple[list[Any], int]:
    """The values after pickling with out-of-band buffers, as Ray does it, and the bytes that went in band."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(pack(values), protocol=5, buffer_callback=buffers.append)
    return unpack(pickle.loads(stream, buffers=[b.raw().toreadonly() for b in buffers])), len(stream)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
arrays = st.builds(
    lambda name, shape, seed: array_of(dtype_named(name), shape, seed),
    st.sampled_from(DTYPES),
    shapes,
    st.integers(0, 99),
)
strings = st.builds(
    lambda items: np.array(items, dtype=object), st.lists(st.text() | st.binary(max_size=5), max_size=4)
)
strided = arrays.filter(lambda a: a.ndim > 1).map(lambda a: a.T[::-1])
maps = st.builds(MapValue, st.dictionaries(st.text(), st.text()), st.just(np.dtype(object))) | st.builds(
    MapValue,
    st.dictionaries(st.integers(-5, 2**40), st.floats(allow_nan=False)),
    st.just(np.dtype(np.float32)),
)
plain = st.none() | arrays | strings | strided | maps
sequences = st.lists(arrays | strings | maps, max_size=3).map(SequenceValue) | st.sampled_from(DTYPES).map(
    lambda name: SequenceValue((), dtype_named(name))
)


@settings(deadline=None)
@given(st.lists(plain | sequences | st.lists(sequences, max_size=2).map(SequenceValue), max_size=5))
def test_values_come_back_as_they_were(values: list[Any]) -> None:
    got, _ = over_the_wire(values)
    assert len(got) == len(values)
    for a, b in zip(got, values, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("name", DTYPES)
def test_array_bytes_travel_out_of_band(name: str) -> None:
    (got,), in_band = over_the_wire([array_of(dtype_named(name), (300, 200))])
    assert in_band < 1000
    assert not got.flags.writeable


@pytest.mark.parametrize("name", DTYPES)
def test_packing_shares_memory_with_contiguous_arrays_only(name: str) -> None:
    whole = array_of(dtype_named(name), (4, 6))
    for array in (whole, whole.T, whole[1:3]):
        assert np.shares_memory(*unpack(pack([array])), array)
    (got,) = unpack(pack([whole[:, ::2]]))
    assert got.flags.c_contiguous
    assert_same(got, whole[:, ::2])


def test_scalars_of_numpy_become_arrays() -> None:
    (got,) = unpack(pack([np.float32(2.5)]))
    assert_same(got, np.array(2.5, np.float32))


def test_owned_values_share_nothing_and_can_be_written() -> None:
    values = [np.ones(3), np.ones(3, ml_dtypes.bfloat16), SequenceValue([np.ones(2)])]
    wire = pack(values)
    a, b, (c,) = unpack(wire, own=True)
    for array in (a, b, c):
        array[:] = 0
    assert_same(values[0], np.ones(3))
    assert_same(values[1], np.ones(3, ml_dtypes.bfloat16))
    assert_same(values[2][0], np.ones(2))


def test_a_memory_mapped_file_is_not_pickled_by_value(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "w", np.float32, "w+", shape=(5000,))
    mapped[:] = 3
    (got,), in_band = over_the_wire([mapped])
    assert in_band < 1000
    assert_same(got, np.full(5000, 3, np.float32))


@pytest.mark.parametrize("value", [3, "text", {"a": 1}, [np.ones(1)]])
def test_what_is_no_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TransportError, match=type(value).__name__):
        pack([value])


@pytest.mark.parametrize(
    "entry",
    [
        3,
        ("narrow", "bfloat17", np.zeros(1, np.uint16)),
        ("narrow", "bfloat16"),
        ("other", None, []),
        ("objects", 3, []),
        ("map", "<f4", [1, 2], [0.5]),
        ("map", "<f4", [[]], [0.5]),
    ],
)
def test_a_damaged_wire_form_is_refused(entry: Any) -> None:
    with pytest.raises(TransportError):
        unpack([entry])


@pytest.mark.ray
def test_the_object_store_gives_views_of_every_dtype(local_ray: RayLease) -> None:
    values = [array_of(dtype_named(name), (64, 1024)) for name in DTYPES]
    ref = ray.put(pack(values))
    first, second = unpack(ray.get(ref)), unpack(ray.get(ref))
    for a, b, want in zip(first, second, values, strict=True):
        assert_same(a, want)
        assert not a.flags.writeable
        assert np.shares_memory(a, b), want.dtype
