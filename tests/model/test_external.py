"""External data: mapped once, read-only, and confined to the model's directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from hetero.errors import ModelError
from hetero.model import load_model
from tests.model.build import external, info, model, node

DATA = np.arange(16, dtype=np.float32)


def with_tensors(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    proto = model(
        [node("Sum", [t.name for t in tensors], ["y"])],
        inputs=[],
        outputs=[info("y", None, tensors[0].data_type)],
    )
    proto.graph.initializer.extend(tensors)
    return proto


def saved(folder: Path, *tensors: onnx.TensorProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(with_tensors(*tensors).SerializeToString())
    (folder / "w.bin").write_bytes(DATA.tobytes())
    return path


def test_tensors_of_one_file_share_one_mapping(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        external("a", [8], location="w.bin", length=32),
        external("b", [2, 4], location="w.bin", offset=32),
    )
    weights = load_model(path).weights
    a, b = weights["a"], weights["b"]
    np.testing.assert_array_equal(np.concatenate([a, b.ravel()]), DATA)
    assert b.__array_interface__["data"][0] - a.__array_interface__["data"][0] == 32
    assert not a.flags.writeable
    assert weights["a"] is a


def test_external_narrow_types_unpack(tmp_path: Path) -> None:
    tensor = external("a", [3], onnx.TensorProto.INT4, location="w.bin")
    path = saved(tmp_path, tensor)
    (tmp_path / "w.bin").write_bytes(bytes([0x21, 0x0F]))
    assert load_model(path).weights["a"].astype(int).tolist() == [1, 2, -1]


def test_thousands_of_tensors_need_one_descriptor(tmp_path: Path) -> None:
    count = 2000
    path = saved(
        tmp_path, *(external(f"t{k}", [1], location="w.bin", offset=4 * (k % 16)) for k in range(count))
    )
    weights = load_model(path).weights
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    arrays = [weights[f"t{k}"] for k in range(count)]
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after - before <= 2
    assert [a[0] for a in arrays[:16]] == DATA.tolist()


@pytest.mark.parametrize(
    ("entries", "pattern"),
    [
        ({"location": "/etc/passwd"}, "not in the model's directory"),
        ({"location": "../w.bin"}, "not in the model's directory"),
        ({"location": "sub/../w.bin"}, "not in the model's directory"),
        ({"location": "C:\\w.bin"}, "not in the model's directory"),
        ({"location": "..\\w.bin"}, "not in the model's directory"),
        ({"location": "gone.bin"}, "missing"),
        ({"location": "w.bin", "offset": 40}, "ends at byte 72"),
        ({"location": "w.bin", "offset": 2**60}, "ends at byte"),
        ({"location": "w.bin", "length": 16}, "length 16"),
        ({"location": "w.bin", "offset": -4}, "bad external offset"),
        ({"location": "w.bin", "length": "1e3"}, "bad external length"),
        ({"location": "w.bin", "length": "9" * 5000}, "bad external length"),
        ({"offset": 0}, "without a location"),
        ({"location": "."}, "no regular file"),
        ({"location": "m.onnx\0"}, "not in the model's directory"),
    ],
)
def test_a_bad_place_is_refused_and_the_tensor_named(
    tmp_path: Path, entries: dict[str, Any], pattern: str
) -> None:
    path = saved(tmp_path / "dir", external("weight", [8], **entries))
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    with pytest.raises(ModelError, match=pattern) as caught:
        load_model(path)
    assert "'weight'" in str(caught.value)


def test_links_that_leave_the_directory_are_refused_others_are_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.bin").write_bytes(DATA.tobytes())
    folder = tmp_path / "dir"
    for location in ("file.bin", "folder/secret.bin"):
        path = saved(folder, external("weight", [8], location=location))
        for link, target in (("file.bin", outside / "secret.bin"), ("folder", outside)):
            if not (folder / link).is_symlink():
                (folder / link).symlink_to(target)
        with pytest.raises(ModelError, match=r"'weight'.*leaves the model's directory"):
            load_model(path)
    (folder / "inner.bin").symlink_to("w.bin")
    path = saved(folder, external("weight", [8], location="inner.bin"))
    np.testing.assert_array_equal(load_model(path).weights["weight"], DATA[:8])


def test_a_link_put_there_after_the_check_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "dir"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(4000))
    loaded = load_model(with_tensors(external("weight", [1000], location="w.bin")), base_dir=folder)
    (tmp_path / "secret.bin").write_bytes(bytes(4000))
    (tmp_path / "dir" / "w.bin").unlink()
    (tmp_path / "dir" / "w.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="'weight' cannot be read"):
        loaded.weights["weight"]


def test_a_file_cut_short_after_the_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(4000))
    loaded = load_model(with_tensors(external("weight", [1000], location="w.bin")), base_dir=tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(ModelError, match="'weight'"):
        loaded.weights["weight"]


def test_without_a_directory_external_data_are_refused_unless_it_is_given(tmp_path: Path) -> None:
    tensor = external("weight", [8], location="w.bin")
    path = saved(tmp_path, tensor)
    proto = with_tensors(tensor)
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(ModelError, match=r"'weight'.*base_dir"):
            load_model(source)
        np.testing.assert_array_equal(load_model(source, base_dir=tmp_path).weights["weight"], DATA[:8])
    np.testing.assert_array_equal(load_model(ir.load(path)).weights["weight"], DATA[:8])


def test_the_digest_is_that_of_the_bytes_wherever_they_lie(tmp_path: Path) -> None:
    path = saved(tmp_path, external("weight", [8], location="w.bin"))
    inline = with_tensors(onnx.numpy_helper.from_array(DATA[:8], "weight"))
    assert load_model(path).digest == load_model(inline).digest
