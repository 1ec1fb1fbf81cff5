"""What a model is, as a number: SHA-256 over the normalised graph and the bytes of its constants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx_ir as ir

from hetero.mapped import let_go
from hetero.model.tensors import HostConstant, HostStrings, HostTensor

_PARALLEL_BYTES = 1 << 26
"""From this size on several threads hash tensors (hashing leaves the interpreter lock)."""


def structure_digest(model: ir.Model) -> bytes:
    """Digest of the graph: names, operators, attributes, types, metadata of nodes; no weights, no paths, no doc texts.

    The same on every machine and for every protobuf spelling of the model.
    """
    state = hashlib.sha256()
    chunk: list[str] = []
    for text in _model(model):
        # The length in front keeps ("ab", "c") and ("a", "bc") apart.
        chunk.append(f"{len(text)}:{text}")
        if len(chunk) > 10_000:
            state.update("".join(chunk).encode("utf-8", "surrogatepass"))
            chunk.clear()
    state.update("".join(chunk).encode("utf-8", "surrogatepass"))
    return state.digest()


def model_digest(structure: bytes, tensors: Iterable[HostConstant]) -> str:
    """Hex digest of the structure and of every constant's name, dtype, shape and bytes. Reads all of the weights."""
    tensors = sorted(tensors, key=lambda t: t.name or "")
    if sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING) > _PARALLEL_BYTES:
        with ThreadPoolExecutor(max_workers=4, thread_name_prefix="digest") as pool:
            parts = list(pool.map(tensor_digest, tensors))
    else:
        parts = [tensor_digest(t) for t in tensors]
    state = hashlib.sha256(structure)
    for tensor, part in zip(tensors, parts, strict=True):
        name = (tensor.name or "").encode("utf-8", "surrogatepass")
        state.update(len(name).to_bytes(8, "little") + name + part)
    return state.hexdigest()


def tensor_digest(tensor: HostConstant) -> bytes:
    """Digest of dtype, shape and elements."""
    array = tensor.numpy()
    state = hashlib.sha256(f"{tensor.dtype.name}{list(array.shape)}".encode())
    if tensor.dtype == ir.DataType.STRING:
        for text in array.ravel():
            data = text.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little") + data)
    elif array.size:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        state.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
        let_go(array)
    return state.digest()


def _model(model: ir.Model) -> Iterator[str]:
    yield "model-1"
    for domain, version in sorted(model.opset_imports.items()):
        yield f"{domain} {version}"
    yield from _graph(model.graph)
    for identifier, function in sorted(model.functions.items()):
        yield from ("function", *identifier)
        for domain, version in sorted(function.opset_imports.items()):
            yield f"{domain} {version}"
        for _, attribute in sorted(function.attributes.items()):
            yield from _attribute(attribute)
        yield from _graph(function.graph)


def _graph(graph: ir.Graph) -> Iterator[str]:
    yield f"graph {len(graph.inputs)} {len(graph.outputs)} {len(graph)}"
    for value in (*graph.inputs, *graph.outputs):
        yield value.name or ""
        yield f"{value.type!r} {_shape(value.shape)}"
    for node in graph:
        yield node.domain
        yield node.op_type
        yield node.overload
        yield node.name or ""
        yield f"{len(node.inputs)} {len(node.outputs)} {len(node.attributes)}"
        for operand in node.inputs:
            yield "" if operand is None else operand.name or ""
        for output in node.outputs:
            yield output.name or ""
        for _, attribute in sorted(node.attributes.items()):
            yield from _attribute(attribute)


def _shape(shape: ir.Shape | None) -> str:
    return "?" if shape is None else repr([d if isinstance(d, int) else d.value for d in shape.dims])


def _attribute(attribute: ir.Attr) -> Iterator[str]:
    yield attribute.name
    yield str(attribute.type)
    kinds = ir.AttributeType
    if attribute.is_ref():
        yield f"ref {attribute.ref_attr_name}"
    elif attribute.type == kinds.GRAPH:
        yield from _graph(attribute.as_graph())
    elif attribute.type == kinds.GRAPHS:
        for graph in attribute.as_graphs():
            yield from _graph(graph)
    elif attribute.type in (kinds.TENSOR, kinds.TENSORS):
        tensors = [attribute.value] if attribute.type == kinds.TENSOR else attribute.value
        for tensor in tensors:
            yield (
                tensor_digest(tensor) if isinstance(tensor, HostTensor | HostStrings) else tensor.tobytes()
            ).hex()
    elif attribute.type == kinds.FLOAT:
        yield float(attribute.value).hex()
    elif attribute.type == kinds.FLOATS:
        yield " ".join(float(f).hex() for f in attribute.value)
    elif attribute.type in (kinds.TYPE_PROTO, kinds.TYPE_PROTOS):
        types = [attribute.value] if attribute.type == kinds.TYPE_PROTO else attribute.value
        for type_ in types:
            yield f"{type_.type!r} {_shape(type_.shape)}"
    else:
        yield repr(attribute.value)
