"""Constants of every ONNX dtype survive their bytes, and any other number of bytes is refused."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import ProgramError
from hetero.program.constants import from_bytes, to_bytes
from hetero.types import DataType, HostArray, numpy_dtype

NUMERIC = [t for t in DataType if t not in (DataType.UNDEFINED, DataType.STRING)]


def _bits(array: HostArray) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes() if array.size else b""


def _sample(dtype: DataType, shape: tuple[int, ...], seed: int) -> HostArray:
    """Random bits of the dtype, NaNs and infinities included."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=int))
    item = numpy_dtype(dtype).itemsize
    raw = rng.integers(0, 256, size * item, dtype=np.uint8)
    if dtype == DataType.BOOL:
        raw &= 1
    elif dtype.bitwidth < 8:
        raw &= (1 << dtype.bitwidth) - 1
    return raw.view(numpy_dtype(dtype)).reshape(shape)


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5,), (2, 3, 4), (7, 0, 2)], ids=str)
def test_every_bit_of_every_dtype_survives(dtype: DataType, shape: tuple[int, ...]) -> None:
    array = _sample(dtype, shape, seed=len(shape))
    back = from_bytes(dtype, shape, to_bytes(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert _bits(back) == _bits(array)
    assert not back.flags.writeable


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda t: t.name)
def test_the_bytes_are_those_of_raw_data(dtype: DataType) -> None:
    array = _sample(dtype, (3, 3), seed=9)
    proto = onnx.numpy_helper.from_array(array)
    assert proto.data_type == int(dtype)
    assert to_bytes(array) == proto.raw_data


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda t: t.name)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_byte_more_or_less_is_refused(dtype: DataType, change: int) -> None:
    data = to_bytes(_sample(dtype, (3, 5), seed=1))
    wrong = data[:-1] if change < 0 else data + b"\x00"
    with pytest.raises(ProgramError, match=rf"takes {len(data)} bytes, got {len(wrong)}"):
        from_bytes(dtype, (3, 5), wrong)


def test_complex_numbers_are_pairs_of_little_endian_floats() -> None:
    assert to_bytes(np.array([1 + 2j], np.complex64)) == np.array([1, 2], "<f4").tobytes()
    assert from_bytes(DataType.COMPLEX128, (1,), np.array([3, -4], "<f8").tobytes())[0] == 3 - 4j


def test_narrow_integers_pack_the_first_value_into_the_low_bits() -> None:
    int4 = numpy_dtype(DataType.INT4)
    assert to_bytes(np.array([1, -1, 3], int4)) == b"\xf1\x03"
    assert from_bytes(DataType.INT4, (3,), b"\xf1\x03").astype(int).tolist() == [1, -1, 3]


def test_big_endian_and_strided_arrays_give_the_same_bytes() -> None:
    plain = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert to_bytes(plain.astype(">i4")) == to_bytes(plain)
    assert to_bytes(np.asfortranarray(plain)) == to_bytes(plain)
    assert to_bytes(plain.T) == to_bytes(plain.T.copy())


@given(st.lists(st.text(max_size=5).filter(lambda s: s.isprintable()), max_size=6))
def test_strings_survive(texts: list[str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    back = from_bytes(DataType.STRING, (len(texts),), to_bytes(array))
    assert back.tolist() == texts
    assert not back.flags.writeable


def test_text_arrays_of_any_kind_and_utf8_bytes_become_str() -> None:
    assert from_bytes(DataType.STRING, (2,), to_bytes(np.array(["a", "bé"]))).tolist() == ["a", "bé"]
    assert from_bytes(DataType.STRING, (1,), to_bytes(np.array([b"x\x00"], object))).tolist() == ["x\x00"]


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ((2,), b"\x01\x00\x00\x00a", "takes at least 8 bytes"),
        ((1,), b"\x02\x00\x00\x00a", "inside element 0"),
        ((2,), b"\x04\x00\x00\x00abcd", "before element 1"),
        ((1,), b"\x01\x00\x00\x00\xff", "not UTF-8"),
        ((1,), b"\x01\x00\x00\x00ab", "takes 5 bytes, got 6"),
        ((), b"", "takes at least 4"),
    ],
)
def test_damaged_string_bytes_are_refused(shape: tuple[int, ...], data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        from_bytes(DataType.STRING, shape, data)


def test_what_is_no_text_cannot_be_a_string_constant() -> None:
    for element in (3, None, b"\xff", "\ud800"):
        with pytest.raises(ProgramError, match="UTF-8 text"):
            to_bytes(np.array([element], object))


def test_a_bool_must_be_zero_or_one() -> None:
    with pytest.raises(ProgramError, match="0 or 1, got 2"):
        from_bytes(DataType.BOOL, (2,), b"\x01\x02")


def test_shapes_that_no_array_can_have_are_refused() -> None:
    with pytest.raises(ProgramError, match="at least 0"):
        from_bytes(DataType.FLOAT, (-1,), b"")
    with pytest.raises(ProgramError, match="no array can have this shape"):
        from_bytes(DataType.FLOAT, (0, *[2**40] * 3), b"")
    with pytest.raises(ProgramError, match="no array can have this shape"):
        from_bytes(DataType.UINT8, (1,) * 100, b"\x00")
    with pytest.raises(ProgramError, match="takes"):
        from_bytes(DataType.FLOAT, (2**40, 2**40), b"\x00" * 4)


def test_dtypes_without_a_name_in_onnx_are_refused() -> None:
    with pytest.raises(ProgramError, match="datetime64"):
        to_bytes(np.array(["2020-01-01"], "datetime64[D]"))
    with pytest.raises(ProgramError, match="must have a dtype"):
        from_bytes(DataType.UNDEFINED, (), b"")
