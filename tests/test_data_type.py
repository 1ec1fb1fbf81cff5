"""Our element types are ONNX's."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from hetero.data_type import NUMPY, STRING, DataType


@pytest.mark.parametrize("theirs", list(ir.DataType), ids=lambda t: t.name)
def test_each_is_what_onnx_ir_says(theirs: ir.DataType) -> None:
    ours = DataType(theirs)
    assert ours.name == theirs.name
    assert {theirs: 1}[ours] == 1
    if theirs in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        with pytest.raises(TypeError, match="no fixed size"):
            _ = ours.bitwidth
        return
    assert ours.bitwidth == theirs.bitwidth
    assert NUMPY[ours] == theirs.numpy()


def test_there_are_as_many() -> None:
    assert len(DataType) == len(ir.DataType)
    assert NUMPY[DataType.STRING] == STRING
