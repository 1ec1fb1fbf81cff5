"""Every node case of onnx's backend suite."""

from __future__ import annotations

import pytest

from tests.conformance.suite import Case, passing


@pytest.mark.parametrize("case", passing("Node"), ids=str)
def test_the_node_gives_what_onnx_expects(case: Case) -> None:
    case.run()
