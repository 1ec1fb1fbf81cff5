"""Normal form: constants lifted, unused nodes gone, nodes in order, every node and value with a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from hetero.errors import ModelError
from hetero.model.check import DEFAULT_DOMAINS
from hetero.model.loops import capture_handed_on, complete_loops
from hetero.model.source import bodies, check_scopes, library, op_id
from hetero.model.tensors import (
    HostConstant,
    HostStrings,
    HostTensor,
    constant,
    host_constant,
    renamed,
)
from hetero.types import HostArray


def normalise(model: ir.Model) -> None:
    """Bring `model` (changed in place) into normal form; linear in its size. A second call changes nothing.

    Afterwards: the main graph alone has initializers; no node is a Constant; nodes stand in topological order; every
    node output is used, a graph output, or left out (such an output keeps the empty name); no Loop carries a value that
    its body only hands on; all nodes, and all values of the graph and its bodies, have distinct names. Names of graph
    inputs and outputs never change.
    Model-local functions are left as they are until a call is inlined.

    Raises: ModelError for a cycle (naming a node on it), an undefined value, two graph inputs or outputs of one name.
    """
    graph = model.graph
    spell_domains(model)
    unique_names(graph)
    if lift(graph):
        unique_names(graph)
    with library("loops cannot be simplified"):
        capture_handed_on(graph)
    with library("unused nodes cannot be removed"):
        remove_unused(graph)
        functions = dict(model.functions)
        model.functions.clear()  # the pass fails where a function leaves a body to its callers
        RemoveUnusedNodesPass()(model)
        model.functions.update(functions)
    complete_loops(graph)
    sort(graph)
    check_scopes(graph)


def spell_domains(model: ir.Model) -> None:
    """ "ai.onnx" is spelt "" from here on."""
    for identifier, function in list(model.functions.items()):
        if identifier[0] == "ai.onnx":
            del model.functions[identifier]
            function.domain = ""
            model.functions[function.identifier()] = function
    for part in (model.graph, *(f.graph for f in model.functions.values())):
        if "ai.onnx" in part.opset_imports:
            part.opset_imports[""] = part.opset_imports.pop("ai.onnx")
        for node in nodes_of(part):
            if node.domain == "ai.onnx":
                node.domain = ""


def nodes_of(part: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes of a graph or function and of all bodies in it. onnx-ir's own walk fails where a function leaves a body
    to its callers."""
    for node in part:
        yield node
        for body in bodies(node):
            yield from nodes_of(body)


def sort(graph: ir.Graph) -> None:
    """Stable topological order, bodies included. Raises: ModelError naming a node of a cycle."""
    if _in_order(graph, set()):
        return
    try:
        graph.sort()
    except ValueError as error:
        node = _on_cycle(graph)
        raise ModelError("the graph has a cycle", node=node.name, op=op_id(node)) from error


def _in_order(graph: ir.Graph, known: set[ir.Value]) -> bool:
    """onnx-ir's sort costs more than finding out that there is nothing to sort, which is nearly always so."""
    known.update(graph.inputs)
    known.update(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                return False
        for body in bodies(node):
            if not _in_order(body, known):
                return False
        known.update(node.outputs)
    return True


def _on_cycle(graph: ir.Graph) -> ir.Node:
    """A node that lies on a cycle (one exists): peel what can run, then walk back among the rest until it repeats."""
    needs: dict[ir.Node, list[ir.Node]] = {}
    users: dict[ir.Node, list[ir.Node]] = {}
    for node in graph.all_nodes():
        producers = (v.producer() for v in node.inputs if v is not None)
        needs[node] = [p for p in producers if p is not None] + [
            inner for body in bodies(node) for inner in body
        ]
        for needed in needs[node]:
            users.setdefault(needed, []).append(node)
    waiting = {node: len(needed) for node, needed in needs.items()}
    ready = [node for node, count in waiting.items() if count == 0]
    while ready:
        node = ready.pop()
        del waiting[node]
        for user in users.get(node, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    node = next(iter(waiting))
    seen: set[ir.Node] = set()
    while node not in seen:
        seen.add(node)
        node = next(needed for needed in needs[node] if needed in waiting)
    return node


def unique_names(graph: ir.Graph) -> None:
    """Give every node and value of `graph` and its bodies a name that no other has; the main graph's own come first.

    Raises: ModelError for two graph inputs, or two graph outputs that are different values, of one name.
    """
    names = _Names()
    for group in (graph.inputs, graph.outputs):
        taken: dict[str, ir.Value] = {}
        for value in group:
            if not value.name:
                raise ModelError(f"an input or output of graph {graph.name!r} has no name")
            if taken.setdefault(value.name, value) is not value:
                raise ModelError(
                    f"two inputs or outputs of the graph are named {value.name!r}", operand=value.name
                )
            names.keep(value)
    names.values(graph.initializers.values())
    # Breadth first, so that a body's name gives way to the graph's around it.
    level = [graph]
    while level:
        below: list[ir.Graph] = []
        for part in level:
            names.values(part.inputs)
            names.values(part.outputs)
            names.values(list(part.initializers.values()))
            for node in part:
                names.node(node)
                for value in node.outputs:
                    if value.name != "" or value.uses() or value.is_graph_output():
                        names.value(value)
                below.extend(bodies(node))
        level = below


class _Names:
    def __init__(self) -> None:
        self._named: set[ir.Value] = set()
        self._values: set[str] = set()
        self._nodes: set[str] = set()
        self._counts: Counter[str] = Counter()

    def keep(self, value: ir.Value) -> None:
        if value not in self._named and value.name in self._values:
            raise ModelError(
                f"{value.name!r} names both an input and another output of the graph", operand=value.name
            )
        self.value(value)

    def values(self, values: Iterable[ir.Value]) -> None:
        for value in list(values):
            self.value(value)

    def value(self, value: ir.Value) -> None:
        if value in self._named:
            return
        self._named.add(value)
        if not value.name or value.name in self._values:
            value.name = self._fresh(value.name or "value", self._values)
        self._values.add(value.name)

    def node(self, node: ir.Node) -> None:
        if not node.name or node.name in self._nodes:
            node.name = self._fresh(node.name or node.op_type, self._nodes)
        self._nodes.add(node.name)

    def _fresh(self, base: str, taken: set[str]) -> str:
        while True:
            self._counts[base] += 1
            name = f"{base}_{self._counts[base]}"
            if name not in taken:
                return name


def lift(graph: ir.Graph) -> bool:
    """Turn Constant nodes, and initializers of bodies, into initializers of `graph`. Names must be unique already.

    A body's output stays a value of the body: an Identity in it hands the constant on. Returns whether that made
    names that may not be unique.
    Raises: ModelError for a Constant without exactly one value attribute.
    """
    handed_on = _lift_from(graph, graph)
    for node in list(graph):
        for body in bodies(node):
            handed_on = _lift_bodies(body, graph) or handed_on
    return handed_on


def _lift_bodies(body: ir.Graph, main: ir.Graph) -> bool:
    handed_on = False
    for name, value in list(body.initializers.items()):
        tensor = value.const_value
        del body.initializers[name]
        if value.is_graph_input():  # a body is always given all its inputs
            value.const_value = None
        elif value.is_graph_output():
            _hand_on(body, value, tensor, None, main)
            handed_on = True
        else:
            main.register_initializer(value)
    handed_on = _lift_from(body, main) or handed_on
    for node in list(body):
        for inner in bodies(node):
            handed_on = _lift_bodies(inner, main) or handed_on
    return handed_on


def _lift_from(graph: ir.Graph, main: ir.Graph) -> bool:
    handed_on = False
    lifted: list[ir.Node] = []
    for node in list(graph):
        if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS:
            continue
        old = node.outputs[0] if len(node.outputs) == 1 else None
        if old is None or not old.name:
            raise ModelError("a Constant has exactly one output", node=node.name, op="Constant")
        tensor = _constant_value(node, old.name)
        if graph is not main and old.is_graph_output():
            _hand_on(graph, old, tensor, node, main)
            handed_on = True
            continue
        new = _initializer(old.name, tensor)
        new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        main.register_initializer(new)
        lifted.append(node)
    if lifted:
        graph.remove(lifted, safe=True)
    return handed_on


def _initializer(name: str, tensor: ir.TensorProtocol | None) -> ir.Value:
    assert tensor is not None, "checked when the model was read"
    tensor.name = name
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy(), frozen=True)
    )
    value.const_value = tensor
    return value


def _hand_on(
    body: ir.Graph,
    output: ir.Value,
    tensor: ir.TensorProtocol | None,
    producer: ir.Node | None,
    main: ir.Graph,
) -> None:
    """Make `output`, a constant that `body` returns, the output of an Identity over an initializer of `main`."""
    name = f"{output.name}/constant"
    while name in main.initializers:
        name += "_"
    value = _initializer(name, tensor)
    main.register_initializer(value)
    identity = ir.Node("", "Identity", [value], num_outputs=1, name=f"{output.name}/identity")
    bound = identity.outputs[0]
    bound.name, bound.type, bound.shape = output.name, value.type, value.shape
    output.replace_all_uses_with(bound, replace_graph_outputs=True)
    if producer is None:
        # First, since nodes of the body may use the constant through the output's name.
        if len(body):
            body.insert_before(body[0], identity)
        else:
            body.append(identity)
    else:
        body.insert_after(producer, identity)
        body.remove(producer, safe=True)


def _constant_value(node: ir.Node, name: str) -> HostConstant:
    given = {k: a for k, a in node.attributes.items() if k.startswith("value") or k == "sparse_value"}
    if len(given) != 1:
        raise ModelError(
            f"a Constant has exactly one value, not {sorted(given)}", node=node.name, op="Constant"
        )
    ((key, attribute),) = given.items()
    with library(f"the value of Constant {node.name!r} cannot be read"):
        if key == "value":
            tensor = attribute.as_tensor()
            if isinstance(tensor, HostTensor | HostStrings):
                return renamed(tensor, name)
            return host_constant(name, tensor.dtype, tensor.shape.numpy(), tensor.numpy)
        if key in ("value_float", "value_floats"):
            return constant(name, np.asarray(attribute.value, dtype=np.float32), ir.DataType.FLOAT)
        if key in ("value_int", "value_ints"):
            return constant(name, np.asarray(attribute.value, dtype=np.int64), ir.DataType.INT64)
        if key in ("value_string", "value_strings"):
            return constant(name, _strings(attribute.value), ir.DataType.STRING)
    raise ModelError(f"a Constant has no attribute {key!r}", node=node.name, op="Constant")


def _strings(value: str | bytes | tuple[str | bytes, ...]) -> HostArray:
    items = [value] if isinstance(value, str | bytes) else list(value)
    array: HostArray = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(()) if isinstance(value, str | bytes) else array


def remove_unused(graph: ir.Graph) -> None:
    """Remove the nodes whose outputs nobody uses, from `graph` and its bodies.

    onnx-ir's pass does the same, but a removed If or Loop stays a user of the values its bodies capture.
    """
    for node in reversed(graph):
        if any(v.uses() or v.is_graph_output() for v in node.outputs):
            for body in bodies(node):
                remove_unused(body)
        else:
            detach(node)
            graph.remove(node)


def detach(node: ir.Node) -> None:
    """Make `node`, and everything in its bodies, no longer a user of any value."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for body in bodies(node):
        for inner in body:
            detach(inner)
