"""An interpreter of If, Loop, Scan and sequences over model protos, written from ONNX's text; slow and plain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Env = dict[str, Any]


def interpret(graph: onnx.GraphProto, feeds: Mapping[str, Any]) -> list[Any]:
    """The graph's outputs. Sequences are lists of arrays."""
    return _graph(graph, {"": None, **feeds}, [feeds[p.name] for p in graph.input])


def _graph(graph: onnx.GraphProto, outer: Env, inputs: list[Any]) -> list[Any]:
    env = dict(outer)
    env.update({t.name: numpy_helper.to_array(t) for t in graph.initializer})
    assert len(inputs) == len(graph.input)
    env.update(zip([p.name for p in graph.input], inputs, strict=True))
    for node in graph.node:
        results = _node(node, env)
        env.update({name: value for name, value in zip(node.output, results, strict=True) if name})
    return [env[p.name] for p in graph.output]


def _node(node: onnx.NodeProto, env: Env) -> list[Any]:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [env[name] for name in node.input]
    if node.op_type == "If":
        return _graph(attributes["then_branch" if inputs[0].item() else "else_branch"], env, [])
    if node.op_type == "Loop":
        return _loop(attributes["body"], env, inputs)
    if node.op_type == "Scan":
        return _scan(attributes, env, inputs)
    return [_simple(node.op_type, attributes, inputs)]


def _loop(body: onnx.GraphProto, env: Env, inputs: list[Any]) -> list[Any]:
    trips, cond, *carried = inputs
    scans: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    go, k = (True if cond is None else bool(cond.item())), 0
    while go and (trips is None or k < trips.item()):
        said, *results = _graph(body, env, [np.array(k, np.int64), np.array(go), *carried])
        if cond is not None:  # "cond = ...; // ignored" where the node has no condition
            go = bool(said.item())
        carried = results[: len(carried)]
        for scan, value in zip(scans, results[len(carried) :], strict=True):
            scan.append(value)
        k += 1
    kinds = [p.type.tensor_type for p in body.output[1 + len(carried) :]]
    return [*carried, *[_stack(scan, 0, kind) for scan, kind in zip(scans, kinds, strict=True)]]


def _scan(attributes: dict[str, Any], env: Env, inputs: list[Any]) -> list[Any]:
    body, n_scanned = attributes["body"], attributes["num_scan_inputs"]
    n = len(inputs) - n_scanned
    state, sources = inputs[:n], inputs[n:]
    in_axes = attributes.get("scan_input_axes", [0] * n_scanned)
    backwards = attributes.get("scan_input_directions", [0] * n_scanned)
    length = sources[0].shape[in_axes[0]]
    outputs: list[list[Any]] = [[] for _ in body.output[n:]]
    for k in range(length):
        slices = [
            np.take(s, length - 1 - k if back else k, axis)
            for s, axis, back in zip(sources, in_axes, backwards, strict=True)
        ]
        results = _graph(body, env, [*state, *slices])
        state = results[:n]
        for k_out, (rows, value) in enumerate(zip(outputs, results[n:], strict=True)):
            prepends = attributes.get("scan_output_directions", [0] * len(outputs))[k_out]
            rows.insert(0 if prepends else len(rows), value)
    axes = attributes.get("scan_output_axes", [0] * len(outputs))
    kinds = [p.type.tensor_type for p in body.output[n:]]
    return [*state, *[_stack(rows, a, kind) for rows, a, kind in zip(outputs, axes, kinds, strict=True)]]


def _stack(rows: list[Any], axis: int, kind: Any) -> Any:
    if rows:
        return np.stack(rows, axis)
    extents = [d.dim_value for d in kind.shape.dim]
    extents.insert(axis if axis >= 0 else axis + len(extents) + 1, 0)
    return np.empty(extents, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _simple(op: str, attributes: dict[str, Any], inputs: list[Any]) -> Any:
    x = inputs[0] if inputs else None
    match op:
        case "Add":
            return np.add(x, inputs[1])
        case "Sub":
            return np.subtract(x, inputs[1])
        case "Max":
            return np.maximum(x, inputs[1])
        case "Mul":
            return np.multiply(x, inputs[1])
        case "Neg":
            return np.negative(x)
        case "Less":
            return np.less(x, inputs[1])
        case "Not":
            return np.logical_not(x)
        case "Identity":
            return x
        case "Concat":
            return np.concatenate(inputs, attributes["axis"])
        case "Size":
            return np.array(x.size, np.int64)
        case "ReduceMax":
            return np.max(x, keepdims=False)
        case "Constant":
            return numpy_helper.to_array(attributes["value"])
        case "SequenceConstruct":
            return list(inputs)
        case "SequenceEmpty":
            return []
        case "SequenceInsert":
            at = len(x) if len(inputs) < 3 or inputs[2] is None else int(inputs[2])
            at = at + len(x) if at < 0 else at
            return [*x[:at], inputs[1], *x[at:]]
        case "SequenceErase":
            at = -1 if len(inputs) < 2 or inputs[1] is None else int(inputs[1])
            return [e for k, e in enumerate(x) if k != at % len(x)]
        case "SequenceAt":
            return x[int(inputs[1])]
        case "SequenceLength":
            return np.array(len(x), np.int64)
    raise AssertionError(f"no {op} here")
