"""Images of jitted functions: the same bits as numba's calls, kept on disk, and refused where they would not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.kernels import jit_store
from hetero.kernels import tape_layout as layout
from hetero.kernels.jit import Jitted, _object_of, enabled, jit, prange
from hetero.kernels.jit_call import Native, bound, words_of
from hetero.kernels.jit_runtime import address, has_pool, pool_size
from hetero.kernels.jit_signature import operands_of
from hetero.kernels.machine_code import Image, UnfitError, image_of, load
from hetero.kernels.tape import TapeWriter
from hetero.kernels.tape import address as address_of
from hetero.kernels.tape_loops import run_tape

pytestmark = pytest.mark.skipif(
    not enabled() or sys.platform != "linux" or os.uname().machine != "x86_64", reason="no images here"
)


@jit("f4[2], f4[2]!", twin=lambda x, y: np.copyto(y, x.T))
def allocating(x: Any, y: Any) -> None:
    spare = np.empty(x.shape, np.float32)
    spare[:] = x
    y[:] = spare.T


@jit("i8[1], f4[1]!", twin=lambda *_: None)
def spread(words: Any, y: Any) -> None:
    for i in prange(y.shape[0]):
        y[i] = words[i] + 1


@jit("i8[1], f4[1]!, i8, i8, i8, i8, i8", twin=lambda *_: None)
def scaled(words: Any, y: Any, a: int, b: int, c: int, d: int, e: int) -> None:
    for i in range(y.shape[0]):
        y[i] = words[i] * (a + 10 * b + 100 * c + 1000 * d + 10000 * e)


def test_operands_arrive_whether_in_registers_or_on_the_stack() -> None:
    y = np.zeros(2, np.float32)
    function = scaled.variant(np.array([1, 2]))
    assert isinstance(function, Native)
    function(np.array([1, 2]), y, 1, 2, 3, 4, 5)
    assert y.tolist() == [54321, 2 * 54321]


def test_numbas_own_call_gives_the_same_bits() -> None:
    x = np.linspace(-3, 3, 60, dtype=np.float32)
    results = []
    for make in (lambda words: run_tape.variant(words), lambda words: run_tape._compiled(False, ["i8[1]"])):
        writer, y = TapeWriter(x.shape), np.zeros_like(x)
        tape = writer.finish([writer.emit(layout.ERF, writer.emit(layout.TANH, writer.input(x.shape)))])
        assert tape is not None
        words = tape.words_at([address_of(x), address_of(y)], np.zeros(tape.scratch_bytes + 64, np.uint8))
        make(words)(words)
        results.append(y)
    assert results[0].any()
    assert results[0].tobytes() == results[1].tobytes()


def test_code_that_makes_arrays_of_its_own_finds_numbas_runtime() -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
    function = allocating.variant(x, y)
    assert isinstance(function, Native)
    call = bound(function, x, y)
    for _ in range(100):
        call()
    assert (y == x.T).all()


@pytest.mark.skipif(not has_pool() or pool_size() < 2, reason="loops stay on one thread")
def test_loops_of_an_image_run_on_threads() -> None:
    spread.variant(np.zeros(1, np.int64), parallel=True)  # compiled by now, if it was not before
    done = subprocess.run([sys.executable, "-c", ON_THREADS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3


def nothing(name: str) -> int:
    raise KeyError(name)


def test_code_that_calls_what_is_not_there_stays_with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = allocating._compiled(False, list(allocating.signatures))
    with pytest.raises(UnfitError, match="there is no NRT_"):
        image_of(*_object_of(compiled), words_of(operands_of("f4[2], f4[2]!")), nothing)
    monkeypatch.setattr("hetero.kernels.jit.address", nothing)
    again = Jitted(allocating.function, allocating.signatures, allocating.twin)
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
    function = again.variant(x, y)
    assert not isinstance(function, Native)
    bound(function, x, y)()
    assert (y == x.T).all()


def test_numbers_other_than_int64_are_not_for_images() -> None:
    with pytest.raises(UnfitError, match="int64"):
        words_of(operands_of("f4[1], f4"))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100)])
def test_what_is_no_object_file_is_refused(data: bytes) -> None:
    with pytest.raises(UnfitError):
        image_of(data, "f", 1, nothing)


def test_a_bound_call_reads_its_operands_when_it_is_made() -> None:
    y, numbers = np.zeros(3, np.float32), np.array([3, 0, 2])
    call = bound(scaled.variant(numbers), numbers, y, 1, 0, 0, 0, 0)
    call()
    assert y.tolist() == [3, 0, 2]
    numbers[:] = 7
    call()
    assert y.tolist() == [7, 7, 7]


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_operands_of_another_kind_are_refused(wrong: int) -> None:
    words, y = np.array([1, 2]), np.zeros(2, np.float32)
    function = scaled.variant(words)
    assert isinstance(function, Native)
    read_only = y.copy()
    read_only.flags.writeable = False
    others: list[tuple[Any, ...]] = [
        (words.astype(np.int32), y, 1, 2, 3, 4, 5),
        (np.arange(4)[::2], y, 1, 2, 3, 4, 5),
        (words, read_only, 1, 2, 3, 4, 5),
        (words, y, 1, 2, 3, 4),
    ]
    with pytest.raises(TypeError):
        function.bind(*others[wrong])


def test_an_image_is_the_same_after_its_way_through_a_file(tmp_path: Path) -> None:
    image = Image(b"code" * 5, (0, 8), ((3, "memset"),))
    source = tmp_path / "source.py"
    source.write_text("")
    stamp = jit_store.stamp_of([str(source)], "f4[1]")
    assert jit_store.read("f", str(source), stamp) is None
    jit_store.write("f", str(source), stamp, image)
    assert jit_store.read("f", str(source), stamp) == image
    assert jit_store.read("f", str(source), stamp + "x") is None
    source.write_text("changed")
    assert jit_store.stamp_of([str(source)], "f4[1]") != stamp
    (file,) = (tmp_path / "__pycache__").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert jit_store.read("f", str(source), stamp) is None


def test_a_folder_that_cannot_be_written_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file" / "folder"))
    (tmp_path / "a file").write_text("")
    jit_store.write("f", __file__, "stamp", Image(b"", (), ()))
    assert jit_store.read("f", __file__, "stamp") is None


def test_an_unknown_function_is_not_called() -> None:
    with pytest.raises(UnfitError):
        load(Image(bytes(64), (), ((0, "no_such_function_at_all"),)), address)


ON_THREADS = """
import os
os.environ["NUMBA_NUM_THREADS"] = "3"
import sys
import numpy as np
from tests.kernels.test_machine_code import spread
from hetero.kernels.jit_call import Native
from hetero.kernels.jit_runtime import _pool, limit_threads
import ctypes

words, seen = np.zeros(300, np.int64), np.zeros(300, np.float32)
function = spread.variant(words, parallel=True)
assert isinstance(function, Native)
function(words, seen)
assert seen.all() and "numba" not in sys.modules
get = ctypes.CFUNCTYPE(ctypes.c_int)(_pool().get_num_threads)
print(get())
limit_threads(2)
assert get() == 2
import numba  # which finds the same threads
assert numba.get_num_threads() in (2, 3)
"""


FRESH = """
import sys
import numpy as np
from hetero.kernels.tape_loops import run_tape
from hetero.kernels.jit_call import Native
assert isinstance(run_tape.variant(np.zeros(1, np.int64)), Native)
assert not {"numba", "llvmlite"} & set(sys.modules), "an image needs no numba"
"""


def test_a_fresh_process_finds_the_images_and_does_without_numba() -> None:
    run_tape.variant(np.zeros(1, np.int64))  # compiled by now, if it was not before
    subprocess.run([sys.executable, "-c", FRESH], check=True, timeout=60)
