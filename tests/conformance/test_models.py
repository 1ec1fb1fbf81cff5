"""Every model that comes with onnx's backend suite: simple ones, PyTorch's, image networks with dummy weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.suite import Case, passing

ALL = os.environ.get("HETERO_ALL_MODELS", "0") != "0"
NETWORKS = [case for case in passing("Real") if ALL or case.device != "SIM:0"]
"""`make test` leaves out those that are large on the simulated device alone: split, they run on it too."""


@pytest.mark.parametrize("case", passing("Simple", "PyTorchConverted", "PyTorchOperator"), ids=str)
def test_the_model_gives_what_onnx_expects(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_the_image_network_gives_what_onnx_expects(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # where the suite puts the inputs that it makes
    case.run()
