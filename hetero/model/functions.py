"""Inlining, one level at a time: a call becomes the body of the model's own function, or of the operator's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.external import DataFiles
from hetero.model.inference import value_type
from hetero.model.normalise import nodes_of, normalise, sort
from hetero.model.source import bodies, library, op_id, own_tensors

if TYPE_CHECKING:
    from hetero.model.model import Model

_SAME_IN_ALL = frozenset({"Constant", "If", "Loop"})
"""Operators whose versions differ in the types they admit, and in nothing else that a model can say."""
MAX_NODES = 1_000_000
"""What the calls of a model may expand to. Functions that each call the next one twice double with every level."""
MAX_CALLS = 64
"""How deep calls may nest: the time to infer types grows with the square of it, and so do the levels of inlining."""


def inline(model: Model, keep: Callable[[ir.Node], bool]) -> bool:
    """Replace each call for which `keep(node)` is False by its body; nodes inside bodies of control flow included.

    One level: calls in what was put in are looked at by the next call of `inline`. Calls are nodes of a function of
    the model, and operators whose schema has a body for the model's opset (a body that depends on input types is
    skipped while a type is unknown). What is no call stays, whatever `keep` says. New nodes and values get fresh
    names, constants are lifted, and types inferred once at the end. Where a function imports another opset than the
    model, and an operator differs between the two, its node keeps the version it was written for (`ir.Node.version`).

    Returns: whether anything changed.
    Raises: ModelError for recursion, or too many inputs or outputs. The model is then left as it was, or with some
    calls replaced.
    """
    check_calls(model.ir)
    expander = _Expander(model.ir)
    if not expander.graph(model.ir.graph, keep):
        return False
    tidy(model.ir)
    model.opsets.update(model.ir.opset_imports)
    model.refresh()
    return True


def inline_shadowing(model: ir.Model) -> None:
    """Inline the calls of functions that bear a standard operator's name, which they take the place of, or that are
    overloads: nobody may take such a call for the operator. `model` must be in normal form, and still is afterwards.

    Raises: what `inline` raises.
    """
    shadows = {
        (domain, name, overload)
        for domain, name, overload in model.functions
        if overload or onnx.defs.has(name, domain)
    }
    if not shadows:
        return
    expander = _Expander(model)
    while expander.graph(model.graph, lambda node: node.op_identifier() not in shadows):
        tidy(model)


def expand_calls(model: ir.Model, calls: Collection[ir.Node]) -> bool:
    """Inline these nodes, where they are calls; whether any was. The model is to be tidied then."""
    return _Expander(model).graph(model.graph, lambda node: node not in calls)


def tidy(model: ir.Model) -> None:
    """Bring a model into normal form again after nodes were put in."""
    with library("the inlined model cannot be normalised"):
        own_tensors(model.graph, DataFiles(None))
        normalise(model)


def check_calls(model: ir.Model) -> None:
    """Raises: ModelError naming a function that calls itself, directly or through others, or whose calls expand beyond
    MAX_NODES or nest deeper than MAX_CALLS. onnx's shape inference walks into every call, with a recursion of its own,
    so this must be known before anything is inferred."""
    calls = {
        identifier: Counter(node.op_identifier() for node in nodes_of(function))
        for identifier, function in model.functions.items()
    }
    sizes: dict[ir.OperatorIdentifier, int] = {}
    depths: dict[ir.OperatorIdentifier, int] = {}
    for start in calls:
        path: dict[ir.OperatorIdentifier, Iterator[ir.OperatorIdentifier]] = {}
        if start not in sizes:
            path[start] = iter(calls[start])
        while path:
            current = next(reversed(path))
            called = next((c for c in path[current] if c in calls), None)
            if called is None:
                sizes[current] = _expanded(current, calls[current], sizes)
                depths[current] = 1 + max((depths[c] for c in calls[current] if c in depths), default=0)
                if depths[current] > MAX_CALLS:
                    raise ModelError(
                        f"the calls in function {_id(current)} nest deeper than {MAX_CALLS}", op=_id(current)
                    )
                del path[current]
            elif called in path:
                raise ModelError(f"function {_id(called)} calls itself", op=_id(called))
            elif called not in sizes:
                path[called] = iter(calls[called])
    if calls:
        _expanded(None, Counter(node.op_identifier() for node in nodes_of(model.graph)), sizes)


def _expanded(
    caller: ir.OperatorIdentifier | None,
    calls: Counter[ir.OperatorIdentifier],
    sizes: dict[ir.OperatorIdentifier, int],
) -> int:
    """Nodes of a body when every call in it is inlined to the end."""
    total = sum(count * (1 + sizes.get(called, 0)) for called, count in calls.items())
    inlined = sum(count * sizes.get(called, 0) for called, count in calls.items())
    if inlined > MAX_NODES:
        what = "the graph" if caller is None else f"function {_id(caller)}"
        raise ModelError(f"the calls in {what} expand to more than {MAX_NODES} nodes")
    return total


def _id(identifier: ir.OperatorIdentifier) -> str:
    domain, name, overload = identifier
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


class _Expander:
    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.schema_bodies: dict[tuple[str, str, int, int], ir.Function | None] = {}

    def graph(self, graph: ir.Graph, keep: Callable[[ir.Node], bool]) -> bool:
        changed = False
        for node in list(graph):
            for body in bodies(node):
                changed = self.graph(body, keep) or changed
            if keep(node):
                continue
            function = self._body_of(node)
            if function is not None:
                self._replace(graph, node, function)
                changed = True
        return changed

    def _body_of(self, node: ir.Node) -> ir.Function | None:
        own = self.model.functions.get(node.op_identifier())
        if own is not None:
            sort(own.graph)
            self._import(own)
            return own
        version = node.version or self.model.opset_imports.get(node.domain)
        if version is None or not onnx.defs.has(node.op_type, version, node.domain):
            return None
        schema: Any = onnx.defs.get_schema(
            node.op_type, version, node.domain
        )  # onnx's stubs lack the functions
        if schema.has_context_dependent_function:
            return self._read(self._context_dependent(schema, node, version), node, schema)
        if not schema.has_function:
            return None
        opset = self._opset(node)
        key = (node.domain, node.op_type, version, opset)
        if key not in self.schema_bodies:
            fitting = _fitting(schema.function_opset_versions, opset)
            data = schema.get_function_with_opset_version(fitting) if fitting is not None else b""
            self.schema_bodies[key] = self._read(data, node, schema)
        return self.schema_bodies[key]

    def _opset(self, node: ir.Node) -> int:
        """The version of the ONNX domain that the body of the node's schema is to be written in."""
        if node.domain == "" and node.version is not None:
            return node.version
        return self.model.opset_imports.get("") or onnx.defs.onnx_opset_version()

    def _context_dependent(self, schema: Any, node: ir.Node, version: int) -> bytes:
        opset = self._opset(node)
        fitting = _fitting(schema.context_dependent_function_opset_versions, opset)
        if fitting is None:
            return b""
        types: list[bytes] = []
        for value in node.inputs:
            if value is None:
                types.append(onnx.TypeProto().SerializeToString())
            elif value.type is None or value_type(value) is None:
                return b""
            else:
                types.append(ir.serde.serialize_value(value).type.SerializeToString())
        with library(f"the function body of {op_id(node)} cannot be built"):
            proto = ir.serde.serialize_node(node).SerializeToString()
            body: bytes = schema.get_context_dependent_function_with_opset_version(fitting, proto, types)
        return body

    def _read(self, data: bytes, node: ir.Node, schema: Any) -> ir.Function | None:
        if not data:
            return None
        with library(f"the function body of {op_id(node)} cannot be read"):
            proto = onnx.FunctionProto.FromString(data)
            if not proto.node:
                return None
            _bind_names(proto)
            function = ir.serde.deserialize_function(proto)
            for name, attribute in schema.attributes.items():  # the body counts on the operator's defaults
                declared = function.attributes.get(name)
                if attribute.default_value.name and (declared is None or declared.value is None):
                    function.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)
        # The body names the oldest opset it holds for; it was picked to fit the call's.
        own = dict.fromkeys(self.model.opset_imports.keys() & function.opset_imports.keys())
        function.opset_imports.update({d: self.model.opset_imports[d] for d in own})
        function.opset_imports[""] = self._opset(node)
        self._import(function)
        return function

    def _import(self, function: ir.Function) -> None:
        """Add the domains that the body brings along."""
        for domain, version in function.opset_imports.items():
            self.model.opset_imports.setdefault("" if domain == "ai.onnx" else domain, version)

    def _versions(self, function: ir.Function) -> dict[ir.Node, int]:
        """The nodes of the body, inner ones included, that mean something else under the model's opsets, and the
        version they were written for."""
        imports = {"" if d == "ai.onnx" else d: v for d, v in function.opset_imports.items()}
        found: dict[ir.Node, int] = {}
        for node in nodes_of(function):
            domain = "" if node.domain == "ai.onnx" else node.domain
            version, have = node.version or imports.get(domain), self.model.opset_imports.get(domain)
            if version is None or version == have or node.op_identifier() in self.model.functions:
                continue
            if have is None or (not domain and node.op_type in _SAME_IN_ALL):
                continue
            if _since(node, version) != _since(node, have):
                found[node] = version
        return found

    def _captured(self, function: ir.Function, call: ir.Node) -> dict[ir.Value, ir.Value]:
        """The values outside that a schema's body names (see _bind_names); a model's own function captures nothing."""
        if function.identifier() in self.model.functions:
            return {}
        names = {v.name: v for v in function.inputs[len(call.inputs) :] if v.name}
        if not names or not bodies(call):
            return {}
        found: dict[ir.Value, ir.Value] = {}
        for body in bodies(call):
            for inner in nodes_of(body):
                found.update({names[v.name]: v for v in inner.inputs if v is not None and v.name in names})
        return found

    def _replace(self, graph: ir.Graph, node: ir.Node, function: ir.Function) -> None:
        if len(node.inputs) > len(function.inputs):
            raise ModelError(
                f"{len(node.inputs)} inputs are given, the function takes {len(function.inputs)}",
                node=node.name,
                op=op_id(node),
            )
        if len(node.outputs) > len(function.outputs):
            raise ModelError(
                f"{len(node.outputs)} outputs are wanted, the function has {len(function.outputs)}",
                node=node.name,
                op=op_id(node),
            )
        copier = _Copier(function, node, self._captured(function, node), self._versions(function))
        new_nodes = [copier.node(inner) for inner in function]
        for old, formal in zip(node.outputs, function.outputs, strict=False):
            if old.name == "" and not old.uses():
                continue
            new = copier.values.get(formal)
            if new is None:
                raise ModelError(
                    f"output {old.name!r} is an input of the function that was left out",
                    node=node.name,
                    op=op_id(node),
                    operand=old.name,
                )
            if new.producer() is None or new.producer() not in copier.made or new in copier.taken:
                # An input handed through, or one value for two outputs: the output needs a value of its own.
                identity = ir.Node("", "Identity", [new], num_outputs=1, name=f"{node.name}/identity")
                new_nodes.append(identity)
                new = identity.outputs[0]
            copier.taken.add(new)
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.insert_after(node, new_nodes)
        graph.remove(node, safe=True)


def _bind_names(proto: onnx.FunctionProto) -> None:
    """Turn names that a schema's body uses or returns without making them into inputs that no call gives.

    Such are optional outputs that this call does not want, and what a body taken over from the call's attributes
    captures (FlexAttention's): the latter are found again among the model's values, whose names are unique.
    """
    made = {name for node in proto.node for name in node.output} | set(proto.input)
    wanted = [name for node in proto.node for name in _used(node)]
    proto.input.extend(name for name in dict.fromkeys((*wanted, *proto.output)) if name and name not in made)


def _used(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node, with its bodies, takes from outside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own.update(name for inner in graph.node for name in inner.output)
            yield from (name for inner in graph.node for name in _used(inner) if name not in own)


def _fitting(versions: Iterable[int], opset: int) -> int | None:
    """The newest of `versions` that holds at `opset`."""
    return max((v for v in versions if v <= opset), default=None)


def _since(node: ir.Node, version: int) -> int | None:
    if not onnx.defs.has(node.op_type, version, node.domain):
        return None
    since: int = onnx.defs.get_schema(node.op_type, version, node.domain).since_version
    return since


class _Copier:
    """Copies a function's nodes for one call: inputs become the call's, attribute references its attributes."""

    def __init__(
        self,
        function: ir.Function,
        call: ir.Node,
        captured: dict[ir.Value, ir.Value],
        versions: dict[ir.Node, int],
    ) -> None:
        self.call = call
        self.versions = versions
        given = {name: a for name, a in function.attributes.items() if a.value is not None or a.is_ref()}
        self.attributes: dict[str, ir.Attr] = {**given, **call.attributes}
        self.values: dict[ir.Value, ir.Value | None] = dict.fromkeys(function.inputs)
        self.values.update(captured)
        self.values.update(zip(function.inputs, call.inputs, strict=False))
        self.made: set[ir.Node] = set()
        self.taken: set[ir.Value] = set()

    def node(self, old: ir.Node) -> ir.Node:
        inputs = [None if v is None else self.values.get(v, v) for v in old.inputs]
        attributes = [a for k, v in old.attributes.items() if (a := self._attribute(k, v)) is not None]
        new = ir.Node(
            "" if old.domain == "ai.onnx" else old.domain,
            old.op_type,
            inputs,
            attributes,
            overload=old.overload,
            version=self.versions.get(old),
            num_outputs=len(old.outputs),
            name=f"{self.call.name}/{old.name or old.op_type}",
            metadata_props={**self.call.metadata_props, **old.metadata_props},
        )
        for before, after in zip(old.outputs, new.outputs, strict=True):
            after.name = f"{self.call.name}/{before.name}" if before.name else ""
            after.type, after.shape = before.type, before.shape
            self.values[before] = after
        # Where the call runs, all that replaces it does; what was said of a value of its is said of one of these.
        new.device_configurations = tuple(
            replace(
                c,
                sharding_specs=tuple(
                    replace(s, value=after) for s in c.sharding_specs for after in new.outputs[:1]
                ),
            )
            for c in self.call.device_configurations
        )
        self.made.add(new)
        return new

    def _attribute(self, name: str, old: ir.Attr) -> ir.Attr | None:
        if old.is_ref():
            found = self.attributes.get(old.ref_attr_name or "")
            if found is None:  # an attribute that the call leaves out is left out inside
                return None
            # A graph given by the call captures the caller's values: it is copied too, since it may be used twice.
            return self._with_name(name, found)
        return self._with_name(name, old)

    def _with_name(self, name: str, old: ir.Attr) -> ir.Attr:
        if old.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(name, self._graph(old.as_graph()))
        if old.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(name, [self._graph(g) for g in old.as_graphs()])
        return ir.Attr(name, old.type, old.value)

    def _graph(self, old: ir.Graph) -> ir.Graph:
        inputs = [self._formal(v) for v in old.inputs]
        initializers = [self._formal(v) for v in old.initializers.values()]
        nodes = [self.node(n) for n in old]
        outputs = [self.values.get(v, v) for v in old.outputs]
        if any(v is None for v in outputs):
            raise ModelError(
                "a body returns an input of the function that was left out",
                node=self.call.name,
                op=op_id(self.call),
            )
        return ir.Graph(
            inputs,
            [v for v in outputs if v is not None],
            nodes=nodes,
            initializers=initializers,
            name=old.name,
        )

    def _formal(self, old: ir.Value) -> ir.Value:
        name = f"{self.call.name}/{old.name}"
        new = ir.Value(name=name, type=old.type, shape=old.shape, const_value=old.const_value)
        self.values[old] = new
        return new
