"""A model that is sent elsewhere arrives with its data files, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from hetero.errors import ModelError
from hetero.model import load_model
from hetero.model.shipping import MODEL_FILE, packed, unpacked


def saved(directory: Path, location: str) -> Path:
    """A model with weights in `location`, some of them in a body."""
    text = (
        '<ir_version: 9, opset_import: ["": 17]> g (float[n] x, bool c) => (float[n] y) { z = Add(x, w)'
        " y = If(c) <then_branch = t () => (float[n] u) { u = Neg(z) }, else_branch = e () => (float[n] v)"
        " { k = Constant<value = float[2] {1, 2}>() v = Mul(z, k) }> }"
    )
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(2, dtype=np.float32), "w"))
    options = {"location": location, "size_threshold": 0, "convert_attribute": True}
    onnx.save_model(proto, directory / "m.onnx", save_as_external_data=True, **options)
    return directory / "m.onnx"


def test_it_arrives_with_the_files_of_its_weights_those_of_bodies_included(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    path = saved(tmp_path, "w.bin")
    (tmp_path / "other.bin").write_bytes(b"secret")
    files = packed(path)
    assert files.keys() == {MODEL_FILE, "w.bin"}
    path = unpacked(files, there)
    assert load_model(path).digest == load_model(tmp_path / "m.onnx").digest


def test_data_outside_the_directory_are_not_sent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = saved(home, "w.bin")
    proto = onnx.load_model(path, load_external_data=False)
    (tmp_path / "w.bin").write_bytes(bytes(64))
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../w.bin"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="not in the model's directory"):
        packed(path)
    with pytest.raises(ModelError, match="not in the model's directory"):
        unpacked({"../w.bin": np.zeros(4, np.uint8)}, home)


def test_what_is_no_file_is_sent_as_bytes_and_what_has_data_elsewhere_by_its_path(tmp_path: Path) -> None:
    path = saved(tmp_path, "w.bin")
    whole = onnx.load_model(path)
    want = whole.SerializeToString()
    for source in (whole, want):
        assert packed(source)[MODEL_FILE].tobytes() == want
    assert packed(ir.from_proto(whole)).keys() == {MODEL_FILE}
    with pytest.raises(ModelError, match="give the path of its file"):
        packed(ir.load(path))
    with pytest.raises(ModelError, match="cannot be read"):
        packed(tmp_path / "nothing.onnx")
