"""A model and the data files beside it, as bytes that another machine can load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.external import confined
from hetero.model.source import ModelSource
from hetero.types import HostArray

MODEL_FILE = "model.onnx"


def packed(source: ModelSource) -> dict[str, HostArray]:
    """The files of a model by name, as flat uint8 arrays: itself as MODEL_FILE, and those that its tensors lie in.

    Files are mapped, not read. Raises: ModelError for what cannot be read, data outside the model's directory, and an
    onnx_ir.Model with external data, whose path has to be given instead.
    """
    if isinstance(source, ir.Model):
        tensors = [v.const_value for v in source.graph.initializers.values()]
        if any(isinstance(t, ir.ExternalTensor) for t in tensors):
            raise ModelError("an onnx_ir.Model with external data cannot be sent: give the path of its file")
        source = ir.to_proto(source)
    if isinstance(source, onnx.ModelProto):
        return {MODEL_FILE: np.frombuffer(source.SerializeToString(), np.uint8)}
    if isinstance(source, bytes | bytearray | memoryview):
        return {MODEL_FILE: np.frombuffer(source, np.uint8)}
    path = Path(os.fsdecode(source))
    try:
        found = {MODEL_FILE: _mapped(path)}
        proto = onnx.ModelProto.FromString(found[MODEL_FILE].tobytes())
    except Exception as error:
        raise ModelError(f"model file {os.fspath(path)!r} cannot be read: {error}") from error
    base = os.path.realpath(path.parent)
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if location == MODEL_FILE:
                raise ModelError(f"tensor {tensor.name!r} lies in a file of the model's own name")
            if location not in found:
                found[location] = _mapped(Path(confined(tensor.name, base, location)[0]))
    return found


def unpacked(files: Mapping[str, HostArray], directory: Path) -> Path:
    """Write the files into an empty directory; the path of the model there. Raises: ModelError for a name that leaves
    it."""
    for name, content in files.items():
        path = (directory / name).resolve()
        if not path.is_relative_to(directory.resolve()):
            raise ModelError(f"the file {name!r} is not in the model's directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)
    return directory / MODEL_FILE


def _mapped(path: Path) -> HostArray:
    if not path.stat().st_size:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r")


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    todo: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while todo:
        part = todo.pop()
        if isinstance(part, onnx.GraphProto):
            yield from part.initializer
            for sparse in part.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in part.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                todo += [attribute.g, *attribute.graphs] if attribute.type in _GRAPHS else []


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
