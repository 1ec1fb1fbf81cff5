"""From a path, bytes, a protobuf or an onnx_ir.Model to an onnx_ir.Model of our own, checked and sharing no names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.check import (
    DEFAULT_DOMAINS,
    MAX_DEPTH,
    attribute_fault,
    check_ir_version,
    check_opsets,
    check_proto,
)
from hetero.model.external import DataFiles
from hetero.model.maps import lift_maps, restore_maps
from hetero.model.tensors import densify, host_tensor

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"


@contextmanager
def library(what: str) -> Iterator[None]:
    """Turns whatever a library raises inside into one ModelError that says `what` failed and the innermost reason."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
            if isinstance(reason, ModelError):  # ours, from a tensor that the library asked for its data
                raise reason from reason.__cause__
        text = " ".join(str(reason).split())
        raise ModelError(f"{what}: {text[:400] or type(reason).__name__}") from error


def read(source: ModelSource, base_dir: str | os.PathLike[str] | None = None) -> ir.Model:
    """A checked onnx_ir.Model that may be changed freely: `source` and its tensors stay as they are.

    Every constant is a HostTensor; external data lie beside a path, or in `base_dir`.
    Raises: ModelError.
    """
    if isinstance(source, ir.Model):
        model = _copied(source)
    elif isinstance(source, onnx.ModelProto):
        model = _built(source)
    elif isinstance(source, bytes | bytearray | memoryview):
        model = _built(_parsed(bytes(source), "the model"))
    elif isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        model = _built(_parsed(_file_bytes(path), f"model file {path!r}"))
        if base_dir is None:
            base_dir = os.path.dirname(os.path.abspath(path))
    else:
        raise ModelError(
            f"a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__name__}"
        )
    files = DataFiles(base_dir)
    own_tensors(model.graph, files)
    for function in model.functions.values():
        own_tensors(function.graph, files)
    return model


def _file_bytes(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe or device would block or never end
            raise ModelError(f"model file {path!r} is no regular file")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ModelError(f"model file {path!r} cannot be read: {error}") from error


def _parsed(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{what} is empty")
    proto = onnx.ModelProto()
    with library(f"{what} is not ONNX, or damaged"):
        proto.ParseFromString(data)
    return proto


def _built(proto: onnx.ModelProto) -> ir.Model:
    with library("the model cannot be read"):
        check_proto(proto)
        lifted, maps = lift_maps(_dense(proto))
        model: ir.Model = ir.from_proto(lifted)
        restore_maps(model, maps)
    with library("the model's scopes cannot be resolved"):
        _bind_body_outputs(model.graph, ())
        for function in model.functions.values():
            _bind_body_outputs(function.graph, ())
    return model


def _copied(source: ir.Model) -> ir.Model:
    if source.ir_version is None:
        raise ModelError("the model has no ir_version")
    check_ir_version(source.ir_version)
    check_opsets(source.opset_imports)
    for value in source.graph.inputs:
        if value.type is None or value.type.dtype == ir.DataType.UNDEFINED:
            raise ModelError(f"input {value.name!r} has no type", operand=value.name)
    for part in (source.graph, *(f.graph for f in source.functions.values())):
        check_scopes(part)
        imported = {**source.opset_imports, **part.opset_imports}
        for node in part.all_nodes():
            if node.op_identifier() in source.functions:
                continue
            version = _imported(node.domain, imported)
            if version is None:
                raise ModelError(
                    f"domain {node.domain or 'ai.onnx'!r} is used but not imported",
                    node=node.name,
                    op=op_id(node),
                )
            given = {name: int(a.type) for name, a in node.attributes.items()}
            fault = attribute_fault(given, node.domain, node.op_type, version)
            if fault is not None:
                raise ModelError(
                    f"{op_id(node)} {fault[1]}", node=node.name, op=op_id(node), operand=fault[0]
                )
    with library("the onnx_ir.Model cannot be copied"):
        try:
            return source.clone()
        except RuntimeError:
            # clone() wants nodes in topological order. Sorting would change the caller's model, so go through protobuf.
            return ir.from_proto(ir.to_proto(source))


def _imported(domain: str, opsets: Mapping[str, int]) -> int | None:
    spellings = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((opsets[d] for d in spellings if d in opsets), None)


def check_scopes(graph: ir.Graph, scopes: tuple[set[ir.Value], ...] = ()) -> None:
    """Raises: ModelError naming node and value unless every value used is defined in this or an enclosing graph."""
    if len(scopes) > MAX_DEPTH:
        raise ModelError(f"bodies are nested more than {MAX_DEPTH} deep")
    own = set(graph.inputs)
    own.update(graph.initializers.values())
    for node in graph:
        own.update(node.outputs)
    visible = (*scopes, own)
    for node in graph:
        for value in node.inputs:
            if value is not None and not any(value in scope for scope in visible):
                raise ModelError(
                    f"value {value.name!r} is used but never defined",
                    node=node.name,
                    op=op_id(node),
                    operand=value.name,
                )
        for body in bodies(node):
            check_scopes(body, visible)
    for value in graph.outputs:
        if value not in own:
            raise ModelError(
                f"output {value.name!r} of graph {graph.name!r} is produced by no node", operand=value.name
            )


def op_id(node: ir.Node) -> str:
    """ "Add" or "com.microsoft::Gelu"."""
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs among the node's attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend(attribute.as_graphs())
    return found


def _dense(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto`, or a copy without sparse tensors (which onnx-ir does not read) where it has any."""
    if not (
        _has_sparse(proto.graph.node, proto.graph) or any(_has_sparse(f.node, None) for f in proto.functions)
    ):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _densify(copy.graph.node, copy.graph)
    for function in copy.functions:
        _densify(function.node, None)
    return copy


def _has_sparse(nodes: object, graph: onnx.GraphProto | None) -> bool:
    if graph is not None and len(graph.sparse_initializer):
        return True
    for node in nodes:  # type: ignore[attr-defined]
        for a in node.attribute:
            if a.type == onnx.AttributeProto.SPARSE_TENSOR and not a.ref_attr_name:
                return True
            if any(
                _has_sparse(g.node, g) for g in ([a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs)
            ):
                return True
    return False


def _densify(nodes: object, graph: onnx.GraphProto | None) -> None:
    if graph is not None and len(graph.sparse_initializer):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(densify(sparse, sparse.values.name))
        del graph.sparse_initializer[:]
    for node in nodes:  # type: ignore[attr-defined]
        for a in node.attribute:
            if (
                a.type == onnx.AttributeProto.SPARSE_TENSOR
                and node.op_type == "Constant"
                and a.name == "sparse_value"
            ):
                a.t.CopyFrom(densify(a.sparse_tensor, node.output[0] if node.output else a.name))
                a.ClearField("sparse_tensor")
                a.name, a.type = "value", onnx.AttributeProto.TENSOR
            for g in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
                _densify(g.node, g)


def _bind_body_outputs(graph: ir.Graph, scopes: tuple[dict[str, ir.Value], ...]) -> None:
    """A body may return a value of an enclosing graph; onnx-ir leaves such an output dangling. An Identity binds it."""
    own = {v.name: v for v in graph.inputs if v.name}
    own.update({v.name: v for v in graph.initializers.values() if v.name})
    for node in graph:
        own.update({v.name: v for v in node.outputs if v.name})
    known = set(own.values())
    for index, output in enumerate(graph.outputs):
        if output in known:
            continue
        outer = next((scope[output.name] for scope in reversed(scopes) if output.name in scope), None)
        if outer is not None:
            identity = ir.Node("", "Identity", [outer], num_outputs=1)
            bound = identity.outputs[0]
            bound.name, bound.type, bound.shape = output.name, output.type, output.shape
            graph.append(identity)
            graph.outputs[index] = bound
    visible = (*scopes, own)
    for node in graph:
        for body in bodies(node):
            _bind_body_outputs(body, visible)


def own_tensors(graph: ir.Graph, files: DataFiles) -> None:
    """Replace every constant of `graph` and its bodies by a HostTensor.

    Raises: ModelError naming the tensor for data that do not fit, external data out of bounds, or a missing constant.
    """
    for name, value in graph.initializers.items():
        if value.const_value is None:
            raise ModelError(f"initializer {name!r} has no data", operand=name)
        value.const_value = host_tensor(value.const_value, files, name)
    initializers = set(graph.initializers.values())
    for node in graph:
        for key, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                node.attributes[key] = ir.AttrTensor(key, host_tensor(tensor, files, tensor.name or key))
            elif attribute.type == ir.AttributeType.TENSORS:
                wrapped = [host_tensor(t, files, t.name or key) for t in attribute.as_tensors()]
                node.attributes[key] = ir.AttrTensors(key, wrapped)
        for output in node.outputs:
            if output not in initializers and output.const_value is not None:
                output.const_value = None  # renaming the value would rename the caller's tensor
        for body in bodies(node):
            own_tensors(body, files)
