"""The page on decoding says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.decoder import Config, build

PAGE = Path(__file__).parent.parent.parent / "docs" / "decode.md"


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "decoder.onnx").write_bytes(build().SerializeToString())
    (tmp_path / "small.onnx").write_bytes(build(Config(layers=1), "scatter").SerializeToString())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    for name in ("ex", "small_ex"):
        names[name].close()  # type: ignore[attr-defined]
    printed = capsys.readouterr().out.split()
    assert 1 <= len(printed) <= 64
    assert all(0 <= int(token) < 500 for token in printed)
