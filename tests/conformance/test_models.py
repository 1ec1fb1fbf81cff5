"""Every model that comes with onnx's backend suite: simple ones, PyTorch's, image networks with dummy weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.suite import Case, passing


@pytest.mark.parametrize("case", passing("Simple", "PyTorchConverted", "PyTorchOperator"), ids=str)
def test_the_model_gives_what_onnx_expects(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("case", passing("Real"), ids=str)
def test_the_image_network_gives_what_onnx_expects(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # where the suite puts the inputs that it makes
    case.run()
