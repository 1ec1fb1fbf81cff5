"""Loops in normal form: what a body hands on as it came is no carried value, but a captured one."""

from __future__ import annotations

import onnx_ir as ir

from hetero.model.check import DEFAULT_DOMAINS
from hetero.model.source import bodies


def complete_loops(graph: ir.Graph) -> None:
    """Give each Loop both of its optional operands again, left out or not.

    onnx-ir's pass drops those that are left out at the end, and onnx's inference counts on two: Loop is the only
    operator with optional operands before a list of others.
    """
    for node in graph.all_nodes():
        if _is_loop(node) and len(node.inputs) < 2:
            node.resize_inputs(2)


def capture_handed_on(graph: ir.Graph, main: bool = True) -> None:
    """Take every carried value that no iteration changes out of its Loop; `main`: outputs of `graph` keep their names.

    Some exporters carry all weights of a loop's body through it. As captured values they are constants there, so that
    what follows from them (transposed and packed weights) is made once, not in each iteration. Inner loops come first:
    what they no longer return may then be handed on by the loop around them.
    """
    for node in list(graph):
        for body in bodies(node):
            capture_handed_on(body, main=False)
        if _is_loop(node):
            _capture(node, graph, main)


def _is_loop(node: ir.Node) -> bool:
    return node.op_type == "Loop" and node.domain in DEFAULT_DOMAINS


def _capture(loop: ir.Node, graph: ir.Graph, main: bool) -> None:
    attribute = loop.attributes.get("body")
    if attribute is None or attribute.type != ir.AttributeType.GRAPH:
        return
    body, n_carried = attribute.as_graph(), len(loop.inputs) - 2
    if len(body.inputs) != 2 + n_carried or not n_carried < len(body.outputs) <= len(loop.outputs) + 1:
        return  # damaged; whoever checks it says how
    handed_on: list[int] = []
    for k in range(n_carried):
        initial, final = loop.inputs[2 + k], loop.outputs[k]
        formal, returned = body.inputs[2 + k], body.outputs[1 + k]
        if initial is None or _origin(returned) is not formal:
            continue
        if final.is_graph_output() and (main or initial.graph is not graph or initial.is_graph_output()):
            continue  # what a graph returns is a value of its own
        if (
            sum(output in (formal, returned) for output in body.outputs) == 1
        ):  # and not gathered as a scan output too
            handed_on.append(k)
    if not handed_on:
        return
    initials = [loop.inputs[2 + k] for k in handed_on]
    formals = [body.inputs[2 + k] for k in handed_on]
    for k in reversed(handed_on):
        body.outputs.pop(1 + k)
        body.inputs.pop(2 + k)
    for k, formal, initial in zip(handed_on, formals, initials, strict=True):
        assert initial is not None
        formal.replace_all_uses_with(initial)
        loop.outputs[k].replace_all_uses_with(initial, replace_graph_outputs=True)
    _without(loop, set(handed_on), graph)


def _origin(value: ir.Value) -> ir.Value:
    """What `value` is a copy of by way of Identity."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.domain in DEFAULT_DOMAINS:
        source = producer.inputs[0] if len(producer.inputs) == 1 else None
        if source is None:
            break
        value, producer = source, source.producer()
    return value


def _without(loop: ir.Node, carried: set[int], graph: ir.Graph) -> None:
    """Put a Loop in the place of `loop` that lacks these carried values."""
    kept = [output for k, output in enumerate(loop.outputs) if k not in carried]
    new = ir.Node(
        loop.domain,
        loop.op_type,
        [value for k, value in enumerate(loop.inputs) if k - 2 not in carried],
        list(loop.attributes.values()),
        num_outputs=len(kept),
        version=loop.version,
        name=loop.name,
        doc_string=loop.doc_string,
        metadata_props=dict(loop.metadata_props),
        device_configurations=loop.device_configurations,
    )
    for old, output in zip(kept, new.outputs, strict=True):
        output.name, output.type, output.shape = old.name, old.type, old.shape
        output.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(output, replace_graph_outputs=True)
    graph.insert_before(loop, new)
    graph.remove(loop, safe=True)
