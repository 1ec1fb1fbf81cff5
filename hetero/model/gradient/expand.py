"""The walk: which nodes lie between xs and y, and their rules applied from y back."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.functions import expand_calls, tidy
from hetero.model.gradient.emit import Emitter, is_float
from hetero.model.gradient.resolve import Request, is_gradient, request_of
from hetero.model.gradient.rules import BLOCKED, RULES
from hetero.model.inference import infer
from hetero.model.normalise import nodes_of
from hetero.model.source import bodies, op_id

_MAX_ROUNDS = 10_000


def expand_gradients(model: ir.Model) -> None:
    """Replace every Gradient of the main graph and its bodies by nodes that compute it. `model` must be in normal form,
    its types inferred; both hold again afterwards.

    Derivatives are those of the sum of y. What y does not depend on has derivatives of 0, and so has what it depends on
    through integers, comparisons and rounding alone. Calls of functions on the way are inlined where no rule is known.
    A derivative of derivatives follows from the nodes that the inner one became.
    Raises: ModelError naming the node and the operator that has no rule.
    """
    for _ in range(_MAX_ROUNDS):
        node = next((n for n in nodes_of(model.graph) if is_gradient(n)), None)
        if node is None:
            return
        request = request_of(node)
        path = _path(request)
        if not _inlined(model, path) and not _moved(model, request, path):
            _differentiate(model, request, path)
        tidy(model)
        infer(model)
    raise ModelError("the derivatives of this model do not come to an end")


def _path(request: Request) -> list[ir.Node]:
    """The nodes that compute y from xs and zs, in order; each depends on one of them."""
    cut = {*request.xs, *request.zs}
    reached = set(cut)
    order: list[ir.Node] = []
    seen: set[ir.Node] = set()
    stack: list[tuple[ir.Value, bool]] = [(request.y, False)]
    while stack:
        value, done = stack.pop()
        node = value.producer()
        if node is None or value in cut or (node in seen and not done):
            continue
        if done:
            if any(v in reached for v in _reads(node)):
                reached.update(node.outputs)
                order.append(node)
            continue
        seen.add(node)
        stack.append((value, True))
        stack.extend((v, False) for v in _reads(node))
    return order


def _reads(node: ir.Node) -> list[ir.Value]:
    """What the node reads, in its bodies too."""
    inner = [v for body in bodies(node) for n in nodes_of(body) for v in n.inputs]
    return [v for v in (*node.inputs, *inner) if v is not None]


def _depends(request: Request, path: Sequence[ir.Node]) -> set[ir.Value]:
    """The values on the way that derivatives flow through: floats that depend on one of xs."""
    found = set(request.xs)
    for node in path:
        if any(v in found for v in _reads(node)) and not _blocks(node):
            found.update(v for v in node.outputs if is_float(v))
    return found


def _blocks(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in BLOCKED


def _has_rule(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in RULES


def _inlined(model: ir.Model, path: Sequence[ir.Node]) -> bool:
    """Inline the calls on the way that have no rule; whether there were any that could be."""
    calls = {node for node in path if not _has_rule(node) and not _blocks(node) and not bodies(node)}
    return bool(calls) and expand_calls(model, calls)


def _moved(model: ir.Model, request: Request, path: Sequence[ir.Node]) -> bool:
    """Where the values given are not the tensors named: copy the way for these values, and ask of the copy."""
    named = (*request.xs, *request.zs)
    if request.values == named:
        return False
    home = request.node.graph
    assert home is not None
    copies: dict[ir.Value, ir.Value] = {}
    nodes: list[ir.Node] = []
    for old, value in zip(named, request.values, strict=True):
        # of its own: one value may stand for several tensors
        nodes.append(ir.Node("", "Identity", [value], num_outputs=1))
        copies[old] = nodes[-1].outputs[0]
    for node in path:
        if bodies(node):
            raise ModelError(
                "a Gradient at other values cannot go through a node with bodies",
                node=node.name,
                op=op_id(node),
            )
        inputs = [None if v is None else copies.get(v, v) for v in node.inputs]
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            overload=node.overload,
            version=node.version,
            num_outputs=len(node.outputs),
        )
        copies.update(zip(node.outputs, copy.outputs, strict=True))
        nodes.append(copy)
    for k, node in enumerate(nodes):
        node.name = f"{request.node.name}/at/{node.op_type}_{k}"
        for j, output in enumerate(node.outputs):
            output.name = f"{node.name}/{j}"
    home.insert_before(request.node, nodes)
    moved = [copies[v] for v in named]
    for k, value in enumerate((*moved, *moved, copies.get(request.y, request.y))):
        request.node.replace_input_with(k, value)
    return True


def _no_rule(node: ir.Node) -> ModelError:
    return ModelError("the operator has no derivative here", node=node.name, op=op_id(node))


def _differentiate(model: ir.Model, request: Request, path: Sequence[ir.Node]) -> None:
    home = request.node.graph
    assert home is not None
    flowing = _depends(request, path)
    e = Emitter(model, request.node.name or "gradient")
    grads: dict[ir.Value, ir.Value] = {}
    if request.y in flowing:
        producer = request.y.producer()
        if producer is not None and request.y not in request.xs and not _has_rule(producer):
            raise _no_rule(producer)  # whose dtype may be unknown, too
        grads[request.y] = e.full(request.y, 1)
    for node in reversed(path):
        given = [grads.get(v) for v in node.outputs]
        if not any(g is not None for g in given) or not any(v in flowing for v in _reads(node)):
            continue
        if not _has_rule(node):
            raise _no_rule(node)
        for value, grad in zip(node.inputs, RULES[node.op_type](e, node, given), strict=False):
            if value is None or grad is None or value not in flowing:
                continue
            grads[value] = e.op("Add", grads[value], grad) if value in grads else grad
    for x, output in zip(request.xs, request.node.outputs, strict=False):
        if not output.name:
            continue
        if not is_float(x):
            raise ModelError(
                f"no derivative by {x.name!r}, which is no tensor of floats",
                node=request.node.name,
                operand=x.name,
            )
        found = e.op("Identity", grads[x] if x in grads else e.full(x, 0))
        found.name, found.type, found.shape = output.name, x.type, x.shape
        output.replace_all_uses_with(found, replace_graph_outputs=True)
    home.insert_before(request.node, e.nodes)
    home.remove(request.node, safe=True)
