"""What a verb feeds a model: files as they are, and else drawn numbers of the declared dtype and shape."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hetero.cli.feeding import Asked, asked, feeds
from hetero.errors import OptionError
from hetero.program.program import Port
from hetero.types import DataType, MapType, OptionalType, SequenceType, TensorType, ValueType, numpy_dtype


def port(name: str, type_: ValueType | None) -> Port:
    return Port(name, 0, type_)


@pytest.mark.parametrize(
    "dtype", [d for d in DataType if d not in (DataType.UNDEFINED,)], ids=lambda d: d.name
)
def test_every_dtype_is_drawn_in_its_range(dtype: DataType) -> None:
    drawn = feeds([port("x", TensorType(dtype, (3, 5)))], Asked(), 0)["x"]
    assert drawn.dtype == numpy_dtype(dtype)
    assert drawn.shape == (3, 5)
    if drawn.dtype.kind in "iu" and drawn.dtype.itemsize > 1:
        assert set(drawn.reshape(-1).tolist()) <= {0, 1}


def test_the_same_seed_draws_the_same_numbers_and_another_seed_others() -> None:
    ports = [port("x", TensorType(DataType.FLOAT, (8,))), port("y", TensorType(DataType.BFLOAT16, (8,)))]
    first, again, other = (feeds(ports, Asked(), seed) for seed in (3, 3, 4))
    assert first["x"].tobytes() == again["x"].tobytes() != other["x"].tobytes()
    assert first["y"].dtype == ml_dtypes.bfloat16


def test_a_single_integer_is_one_so_that_a_loop_runs() -> None:
    assert feeds([port("n", TensorType(DataType.INT64, ()))], Asked(), 0)["n"] == 1


def test_a_symbol_is_what_dim_a_shape_or_a_file_says_and_a_batch_is_one(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.zeros((7, 2), np.float32))
    ports = [
        port("a", TensorType(DataType.FLOAT, ("batch", "rows"))),
        port("b", TensorType(DataType.FLOAT, ("cols", "2*rows + 1"))),
        port("c", TensorType(DataType.FLOAT, ("depth", 2))),
        port("d", TensorType(DataType.FLOAT, ("depth", "cols"))),
    ]
    wish = asked([f"c={tmp_path / 'c.npy'}"], ["b=5x9"], ["rows=4"])
    values = feeds(ports, wish, 0)
    assert [v.shape for v in values.values()] == [(1, 4), (5, 9), (7, 2), (7, 5)]
    assert not values["c"].any()


def test_sequences_optionals_and_maps_are_drawn_too() -> None:
    tensor = TensorType(DataType.FLOAT, (2,))
    ports = [
        port("s", SequenceType(tensor)),
        port("o", OptionalType(tensor)),
        port("m", MapType(DataType.STRING, TensorType(DataType.FLOAT, ()))),
        port("k", MapType(DataType.INT64, TensorType(DataType.INT64, ()))),
    ]
    values = feeds(ports, Asked(), 0)
    assert [e.shape for e in values["s"]] == [(2,), (2,)]
    assert values["o"] is None
    assert list(values["m"]) == ["a", "b"]
    assert list(values["k"]) == [0, 1]


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (TensorType(DataType.FLOAT, ("batch", "tokens")), r"'x' .*axis 1 .*--dim tokens=… or --shape x=1x\?"),
        (TensorType(DataType.FLOAT, (3, None)), r"'x' .*axis 1 .*--shape x=3x\?"),
        (TensorType(DataType.FLOAT, (3, "2*k")), r"'x' .*axis 1 .*--shape x=3x\?"),
        (TensorType(DataType.FLOAT, None), r"'x' .*--shape x="),
        (None, r"'x' .*--input x=file.npy"),
    ],
)
def test_a_shape_that_nobody_says_is_an_error_with_the_option_that_says_it(
    type_: ValueType | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        feeds([port("x", type_)], Asked(), 0)


@pytest.mark.parametrize(
    ("inputs", "shapes", "dims", "message"),
    [
        (["x"], [], [], "--input 'x' must be like"),
        ([], ["x="], [], "--shape 'x=' must be like"),
        ([], ["x=1x-3"], [], "'-3' is no extent"),
        ([], ["x=1x"], [], "'' is no extent"),
        ([], [], ["batch=two"], "'two' is no extent"),
        ([], ["x=1", "x=2"], [], "given twice"),
        (["x=a.npy"], ["x=2"], [], "exclude each other"),
        (["=a.npy"], [], [], "must be like"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    inputs: list[str], shapes: list[str], dims: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        asked(inputs, shapes, dims)


def test_a_fill_is_every_element_of_an_input() -> None:
    ports = [port("rate", TensorType(DataType.INT64, ())), port("x", TensorType(DataType.FLOAT16, (2, 3)))]
    values = feeds(ports, asked([], [], [], ["rate=16000", "x=-0.5"]), 0)
    assert values["rate"] == 16000
    assert values["rate"].dtype == np.int64
    assert values["x"].dtype == np.float16
    assert (values["x"] == -0.5).all()


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (TensorType(DataType.INT8, ()), "x=300", "int8 does not hold 300"),
        (TensorType(DataType.INT64, ()), "x=0.5", "int64 does not hold 0.5"),
        (TensorType(DataType.INT32, ()), "x=nan", "int32 does not hold nan"),
        (TensorType(DataType.STRING, ()), "x=1", "no array of numbers"),
        (SequenceType(TensorType(DataType.FLOAT, (1,))), "x=1", "no array of numbers"),
        (TensorType(DataType.FLOAT, ()), "x=one", "'one' is no number"),
        (TensorType(DataType.FLOAT, ()), "y=1", r"--fill y: the model's inputs are \['x'\]"),
    ],
)
def test_a_fill_that_the_input_does_not_hold_is_refused(type_: ValueType, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        feeds([port("x", type_)], asked([], [], [], [text]), 0)


def test_a_scalar_shape_has_a_name() -> None:
    assert asked([], ["x=scalar", "y=2X3"], []).shapes == {"x": (), "y": (2, 3)}


def test_an_input_that_the_model_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(OptionError, match=r"--shape y: .*\['x'\]"):
        feeds([port("x", TensorType(DataType.FLOAT, (1,)))], Asked(shapes={"y": (1,)}), 0)


def test_a_file_with_pickles_several_arrays_or_nothing_is_refused(tmp_path: Path) -> None:
    ports = [port("x", TensorType(DataType.FLOAT, (1,)))]
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.zeros(1), b=np.zeros(1))
    (tmp_path / "empty.npy").write_bytes(b"")
    for name, message in (("objects.npy", "no .npy"), ("many.npz", "several"), ("empty.npy", "is empty")):
        with pytest.raises(OptionError, match=message):
            feeds(ports, Asked(files={"x": tmp_path / name}), 0)
