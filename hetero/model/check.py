"""Structure of a model as protobuf has it: versions, names, scopes, depth, tensors; refused before it is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
import onnx.defs

from hetero.errors import ModelError
from hetero.model.maps import check_map
from hetero.model.tensors import check_tensor

MAX_DEPTH = 30
"""Bodies inside bodies. Protobuf parsers stop at 100 nested messages, and one level of bodies takes three."""
MAX_TYPE_DEPTH = 8

_MAX_VERSION = 2**31 - 1
"""Of domains that onnx does not know: versions cross into it as a C int."""

DEFAULT_DOMAINS = ("", "ai.onnx")
"""Two spellings of one domain."""


def check_proto(proto: onnx.ModelProto) -> None:
    """Raises: ModelError, naming the node and the value, for whatever makes `proto` no well-formed model."""
    if not proto.HasField("graph"):
        raise ModelError("the model has no graph")
    check_ir_version(proto.ir_version)
    opsets = _opsets(proto.opset_import, "the model")
    functions: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        identifier = (function.domain, function.name, function.overload)
        if not function.name:
            raise ModelError(f"a function of domain {function.domain!r} has no name")
        if identifier in functions:
            raise ModelError(f"two functions are named {function.domain}::{function.name}")
        functions.add(identifier)
    called = {(domain, name) for domain, name, _ in functions}
    _Checker(opsets, called, "").graph(proto.graph, (), 0)
    for function in proto.functions:
        where = f"function {function.domain}::{function.name}"
        _Checker(_opsets(function.opset_import, where, optional=True) or opsets, called, where).function(
            function
        )


def check_ir_version(version: int) -> None:
    """Raises: ModelError unless the installed onnx knows this version of the format."""
    if version < 1:
        raise ModelError("the model has no ir_version")
    if version > onnx.IR_VERSION:
        raise ModelError(
            f"ir_version {version} of the model is newer than {onnx.IR_VERSION}, the newest that onnx here knows"
        )


def check_opsets(opsets: Mapping[str, int], where: str = "the model") -> None:
    """Raises: ModelError for no opset at all, or a version that the installed onnx does not have."""
    if not opsets:
        raise ModelError(f"{where} imports no opset")
    known = onnx.defs.C.schema_version_map()
    for domain, version in opsets.items():
        first, last = known.get("" if domain in DEFAULT_DOMAINS else domain, (1, _MAX_VERSION))
        if not 1 <= version <= last:
            raise ModelError(
                f"{where} imports opset {version} of domain {domain or 'ai.onnx'!r}; onnx here knows {first} to {last}"
            )
    if len({opsets[d] for d in DEFAULT_DOMAINS if d in opsets}) > 1:
        raise ModelError(f"{where} imports two opsets of domain 'ai.onnx'")


def attribute_fault(
    given: Mapping[str, int], domain: str, op_type: str, version: int
) -> tuple[str, str] | None:
    """The attribute that contradicts the operator in this opset, and how; None where onnx knows no such operator.

    `given`: name -> AttributeProto type. An attribute that the operator lacks is most often what an earlier opset had
    (Squeeze's `axes`), so to run without it would be to run something else. Names with two leading underscores are an
    exporter's own notes.
    """
    known = _attributes("" if domain in DEFAULT_DOMAINS else domain, op_type, version)
    if known is None:
        return None
    kinds, required = known
    for name, kind in given.items():
        wanted = kinds.get(name)
        if wanted is None:
            if not name.startswith("__"):
                return name, f"has no attribute {name!r} in opset {version}"
        elif kind != wanted:
            have, want = (onnx.AttributeProto.AttributeType.Name(k) for k in (kind, wanted))
            return name, f"wants attribute {name!r} as {want}, not {have}, in opset {version}"
    missing = next((name for name in required if name not in given), None)
    return None if missing is None else (missing, f"needs attribute {missing!r} in opset {version}")


@lru_cache(maxsize=4096)
def _attributes(domain: str, op_type: str, version: int) -> tuple[dict[str, int], tuple[str, ...]] | None:
    """The types of the operator's attributes, and the names of those it cannot do without."""
    if not onnx.defs.has(op_type, version, domain):
        return None
    schema = onnx.defs.get_schema(op_type, version, domain)
    if schema.deprecated:
        return None
    # Any: onnx's stubs do not know that `type` is an enumeration.
    declared: dict[str, Any] = dict(schema.attributes)
    kinds = {name: int(a.type.value) for name, a in declared.items()}
    return kinds, tuple(name for name, a in schema.attributes.items() if a.required)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str, optional: bool = False) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in imports:
        if opsets.setdefault(entry.domain, entry.version) != entry.version:
            raise ModelError(f"{where} imports two opsets of domain {entry.domain or 'ai.onnx'!r}")
    if opsets or not optional:
        check_opsets(opsets, where)
    return opsets


class _Checker:
    """Walks one graph or function body. `called`: (domain, name) of the model's own functions."""

    def __init__(self, opsets: Mapping[str, int], called: set[tuple[str, str]], where: str) -> None:
        self.opsets = {"" if d in DEFAULT_DOMAINS else d: v for d, v in opsets.items()}
        self.called = called
        self.where = f" in {where}" if where else ""

    def graph(self, graph: onnx.GraphProto, scopes: tuple[set[str], ...], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ModelError(f"bodies are nested more than {MAX_DEPTH} deep{self.where}")
        names: set[str] = set()
        for info in graph.input:
            if not info.name:
                raise ModelError(f"an input of graph {graph.name!r} has no name{self.where}")
            if info.name in names:
                raise ModelError(
                    f"two inputs of graph {graph.name!r} are named {info.name!r}", operand=info.name
                )
            names.add(info.name)
            if depth == 0 and _untyped(info):
                raise ModelError(f"input {info.name!r} has no type", operand=info.name)
        constants: set[str] = set()
        named = [(t.name, t) for t in graph.initializer] + [
            (s.values.name, s.values) for s in graph.sparse_initializer
        ]
        for name, tensor in named:
            if not name:
                raise ModelError(f"an initializer of graph {graph.name!r} has no name{self.where}")
            if name in constants:
                raise ModelError(f"two initializers are named {name!r}{self.where}", operand=name)
            check_tensor(tensor)
            constants.add(name)
        names |= constants
        self._nodes(graph.node, names, scopes, depth)
        visible = (*scopes, names)
        for info in (*graph.input, *graph.output, *graph.value_info):
            _check_type(info.type, info.name)
        for info in graph.output:
            if not info.name:
                raise ModelError(f"an output of graph {graph.name!r} has no name{self.where}")
            if not any(info.name in scope for scope in visible):
                raise ModelError(
                    f"output {info.name!r} of graph {graph.name!r} is produced by no node{self.where}",
                    operand=info.name,
                )

    def function(self, function: onnx.FunctionProto) -> None:
        names: set[str] = set()
        for name in function.input:
            if not name or name in names:
                raise ModelError(f"input {name!r} is unnamed or named twice{self.where}", operand=name)
            names.add(name)
        self._nodes(function.node, names, (), 0)
        for name in function.output:
            if name not in names:
                raise ModelError(f"output {name!r} is produced by no node{self.where}", operand=name)

    def _nodes(
        self, nodes: Sequence[onnx.NodeProto], names: set[str], scopes: tuple[set[str], ...], depth: int
    ) -> None:
        """Two rounds: a node may stand before its producer (normalising sorts), so names are collected first."""
        for node in nodes:
            for k, name in enumerate(node.output):
                if not name:
                    self._may_be_omitted(node, k)
                elif name in names:
                    raise ModelError(
                        f"value {name!r} is produced twice{self.where}",
                        node=node.name,
                        op=_op(node),
                        operand=name,
                    )
                else:
                    names.add(name)
        visible = (*scopes, names)
        for node in nodes:
            if not node.op_type:
                raise ModelError(f"a node has no op_type{self.where}", node=node.name)
            domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
            if domain not in self.opsets and (node.domain, node.op_type) not in self.called:
                raise ModelError(
                    f"domain {domain or 'ai.onnx'!r} is used but not imported{self.where}",
                    node=node.name,
                    op=_op(node),
                )
            for name in node.input:
                if name and not any(name in scope for scope in visible):
                    raise ModelError(
                        f"value {name!r} is used but never defined{self.where}",
                        node=node.name or _first(node.output),
                        op=_op(node),
                        operand=name,
                    )
            self._attributes(node, visible, depth)

    def _attributes(self, node: onnx.NodeProto, visible: tuple[set[str], ...], depth: int) -> None:
        seen: set[str] = set()
        for attribute in node.attribute:
            name = attribute.name
            if not name or name in seen:
                raise ModelError(
                    f"attribute {name!r} is unnamed or given twice{self.where}",
                    node=node.name,
                    op=_op(node),
                    operand=name,
                )
            seen.add(name)
            kind = attribute.type
            if kind == onnx.AttributeProto.UNDEFINED:
                raise ModelError(
                    f"attribute {name!r} has no type{self.where}", node=node.name, op=_op(node), operand=name
                )
            if attribute.ref_attr_name:
                continue
            if kind == onnx.AttributeProto.GRAPH:
                self.graph(attribute.g, visible, depth + 1)
            elif kind == onnx.AttributeProto.GRAPHS:
                for body in attribute.graphs:
                    self.graph(body, visible, depth + 1)
            elif kind == onnx.AttributeProto.TENSOR:
                check_tensor(attribute.t, attribute.t.name or name)
            elif kind == onnx.AttributeProto.TENSORS:
                for tensor in attribute.tensors:
                    check_tensor(tensor, tensor.name or name)
            elif kind == onnx.AttributeProto.TYPE_PROTO:
                _check_type(attribute.tp, name)
            elif kind == onnx.AttributeProto.TYPE_PROTOS:
                for type_ in attribute.type_protos:
                    _check_type(type_, name)
        version = self.opsets.get("" if node.domain in DEFAULT_DOMAINS else node.domain)
        if version is not None and (node.domain, node.op_type) not in self.called:
            given = {a.name: a.type for a in node.attribute}
            fault = attribute_fault(given, node.domain, node.op_type, version)
            if fault is not None:
                raise ModelError(
                    f"{_op(node)} {fault[1]}{self.where}",
                    node=node.name or _first(node.output),
                    op=_op(node),
                    operand=fault[0],
                )

    def _may_be_omitted(self, node: onnx.NodeProto, index: int) -> None:
        """An empty output name means "left out", which only an optional output may be."""
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        version = self.opsets.get(domain)
        if version is None or not onnx.defs.has(node.op_type, version, domain):
            return
        outputs = onnx.defs.get_schema(node.op_type, version, domain).outputs
        if index < len(outputs) and outputs[index].option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(
                f"the required output {outputs[index].name!r} has no name{self.where}",
                node=node.name,
                op=_op(node),
                operand=outputs[index].name,
            )


def _op(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def _first(names: Sequence[str]) -> str | None:
    return next((n for n in names if n), None)


def _untyped(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not info.type.tensor_type.elem_type)


def _check_type(type_: onnx.TypeProto, name: str) -> None:
    """Raises: ModelError for types that nest without end, are opaque or maps of anything but scalars, or name
    an unknown dtype."""
    known = onnx.TensorProto.DataType.values()
    for _ in range(MAX_TYPE_DEPTH):
        kind = type_.WhichOneof("value")
        if kind == "sequence_type":
            type_ = type_.sequence_type.elem_type
        elif kind == "optional_type":
            type_ = type_.optional_type.elem_type
        elif kind == "map_type":
            check_map(type_.map_type, name)
            return
        elif kind == "opaque_type":
            raise ModelError(f"value {name!r} is opaque, which cannot be run", operand=name)
        else:
            if kind is not None and getattr(type_, kind).elem_type not in known:
                raise ModelError(
                    f"value {name!r} has the unknown dtype {getattr(type_, kind).elem_type}", operand=name
                )
            return
    raise ModelError(f"the type of value {name!r} nests more than {MAX_TYPE_DEPTH} deep", operand=name)
