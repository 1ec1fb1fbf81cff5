"""Arrays in files: found again, refused where the file is another, and their pages let go of."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from hetero.mapped import let_go, map_file, open_ranges, range_of
from hetero.types import HostArray

NBYTES = 1 << 20


def mapped(path: Path) -> HostArray:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return map_file(descriptor, str(path))
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "w.bin"
    path.write_bytes(np.random.default_rng(0).bytes(NBYTES))
    return path


def resident_bytes(path: Path) -> int:
    """Of the file, in this process."""
    held, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            counts = line.endswith(str(path))
        elif counts and line.startswith("Rss:"):
            held += int(line.split()[1]) << 10
    return held


def test_a_part_of_a_file_is_found_again(path: Path) -> None:
    part = mapped(path)[4096:8192].view(np.float32).reshape(32, 32)[1:]
    place = range_of(part)
    assert place is not None
    assert (place.offset, place.nbytes) == (4096 + 128, 31 * 128)
    (again,) = open_ranges([place])
    assert again.tobytes() == part.tobytes()
    assert not np.shares_memory(again, part)
    assert not again.flags.writeable


def test_what_is_in_no_file_has_no_place_there(path: Path) -> None:
    data = mapped(path)
    assert range_of(data.copy()) is None
    assert range_of(np.frombuffer(data.tobytes(), np.uint8)) is None
    assert range_of(data.reshape(1024, -1).T) is None, "its bytes do not lie in its order"


def test_ranges_of_one_file_share_one_mapping(path: Path) -> None:
    data = mapped(path)
    places = [range_of(data[k : k + 100]) for k in (0, 5000)]
    first, second = open_ranges([place for place in places if place is not None])
    assert second.__array_interface__["data"][0] - first.__array_interface__["data"][0] == 5000


@pytest.mark.parametrize("change", ["replaced", "rewritten", "longer", "gone", "a pipe"])
def test_another_file_is_refused(path: Path, change: str) -> None:
    data = mapped(path)
    place = range_of(data)
    assert place is not None
    if change in ("gone", "a pipe", "replaced"):
        path.rename(path.with_suffix(".old"))  # which keeps its inode from being given to the next
    if change == "a pipe":
        os.mkfifo(path)
    elif change == "replaced":
        path.write_bytes(data.tobytes())
        os.utime(path, ns=(place.stamp.mtime_ns, place.stamp.mtime_ns))
    elif change == "rewritten":
        with path.open("r+b") as file:
            file.write(b"x")
        os.utime(path, ns=(place.stamp.mtime_ns + 1, place.stamp.mtime_ns + 1))
    elif change == "longer":
        with path.open("ab") as file:
            file.write(b"x")
        os.utime(path, ns=(place.stamp.mtime_ns, place.stamp.mtime_ns))
    with pytest.raises(FileNotFoundError):
        open_ranges([place])


def test_pages_that_are_let_go_of_leave_the_process_and_come_back(path: Path) -> None:
    data = mapped(path)
    want = path.read_bytes()
    assert data.tobytes() == want
    assert resident_bytes(path) == NBYTES
    matrix = data[8192 : 8192 + (NBYTES >> 1)].view(np.float32).reshape(512, -1)
    let_go(matrix.T)  # strided or not
    assert resident_bytes(path) == NBYTES >> 1
    let_go(data, None, np.zeros(NBYTES))
    assert resident_bytes(path) == 0
    assert data.tobytes() == want


def test_only_whole_pages_are_let_go_of(path: Path) -> None:
    data = mapped(path)
    data.tobytes()
    let_go(data[100 : 100 + (128 << 10)])
    assert resident_bytes(path) == NBYTES - (124 << 10)


def test_a_mapping_ends_with_the_last_array_of_it(path: Path) -> None:
    part = mapped(path)[:4096]
    part.tobytes()
    assert resident_bytes(path)
    del part
    gc.collect()
    assert not resident_bytes(path)
