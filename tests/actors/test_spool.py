"""The unnamed file that weights of a model in memory move to."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from actors import spool as module
from actors.spool import Spool
from hetero.kernels.widen import is_constant
from hetero.mapped import range_of

ARRAYS: list[Any] = [
    np.arange(5000, dtype=np.float32).reshape(50, 100),
    np.array(3.5),
    np.ones((3, 7), ml_dtypes.bfloat16),
    np.arange(9000, dtype=np.int8)[::-1],
    np.zeros((2, 3), bool),
]


def test_arrays_come_back_as_they_were_and_constant() -> None:
    spool = Spool(1 << 20)
    loads = [spool.add(array) for array in ARRAYS]
    for load, array in zip(loads, ARRAYS, strict=True):
        got = load()
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert is_constant(got)
        address = got.__array_interface__["data"][0]
        assert address % (4096 if array.nbytes >= 4096 else 64) == 0


def test_what_is_added_after_the_first_look_is_seen_too() -> None:
    spool = Spool(1 << 20)
    first = spool.add(ARRAYS[0])
    early = first()
    second = spool.add(ARRAYS[3])
    assert second().tobytes() == ARRAYS[3].tobytes()
    assert early.tobytes() == first().tobytes()


def test_another_process_maps_it_and_it_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(1 << 20)
    spool.add(ARRAYS[3])
    place = range_of(spool.add(ARRAYS[0])())
    assert place is not None
    code = (
        "import sys; from hetero.mapped import *; "
        f"sys.stdout.buffer.write(open_ranges([{place!r}])[0].tobytes())"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True, cwd=root)
    assert done.stdout == ARRAYS[0].tobytes()
    assert not list(tmp_path.iterdir())


def test_it_is_closed_with_what_holds_it() -> None:
    spool = Spool(1 << 20)
    array = spool.add(ARRAYS[0])()
    path = spool.path
    assert os.path.exists(path)
    del spool
    gc.collect()
    assert not os.path.exists(path)
    assert array.tobytes() == ARRAYS[0].tobytes()


def test_memory_is_no_disk() -> None:
    assert module._is_memory("/dev/shm")
    assert not module._is_memory(str(Path(__file__).parent))


def test_a_disk_without_room_is_refused() -> None:
    with pytest.raises(OSError, match="no disk with room"):
        Spool(1 << 60)
