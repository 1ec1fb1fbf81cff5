"""Random nested control flow: graphs over vectors, counts, conditions, growing vectors and sequences."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = "fibgs"
"""f: float32[3]; i: int64 scalar; b: bool scalar; g: float32[n] that may grow; s: sequence of float32[3]."""
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def port(name: str, kind: str) -> onnx.ValueInfoProto:
    """The declaration of a value."""
    if kind == "s":
        element = helper.make_tensor_type_proto(FLOAT, [3])
        return helper.make_value_info(name, helper.make_sequence_type_proto(element))
    shapes: dict[str, tuple[int, list[int | None]]] = {
        "f": (FLOAT, [3]),
        "i": (INT64, []),
        "b": (BOOL, []),
        "g": (FLOAT, [None]),
        "m": (FLOAT, [None, 3]),
    }
    return helper.make_tensor_value_info(name, *shapes[kind])


@dataclass
class Scope:
    """A graph under construction. `known`: the values it may read, those of enclosing graphs included."""

    rng: random.Random
    prefix: str
    known: dict[str, list[str]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    count: int = 0

    def inner(self, tag: str) -> Scope:
        """A body. Bodies beside each other use the same names, as ONNX allows."""
        return Scope(self.rng, f"{self.prefix}{tag}", {k: list(v) for k, v in self.known.items()})

    def name(self, kind: str) -> str:
        """A new value."""
        self.count += 1
        return f"{self.prefix}{kind}{self.count}"

    def add(self, op: str, inputs: list[str], kind: str, **attributes: object) -> str:
        """A node of one output."""
        output = self.name(kind)
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        self.known[kind].append(output)
        return output

    def constant(self, value: object, kind: str) -> str:
        """A Constant."""
        dtype = {"f": np.float32, "i": np.int64, "b": np.bool_}[kind]
        return self.add("Constant", [], kind, value=numpy_helper.from_array(np.array(value, dtype)))

    def pick(self, kind: str) -> str:
        """Some value of that kind."""
        return self.rng.choice(self.known[kind])


def simple(scope: Scope) -> None:
    """One plain node."""
    pick, add = scope.pick, scope.add
    steps: list[Callable[[], object]] = [
        lambda: add(scope.rng.choice(["Add", "Sub", "Max"]), [pick("f"), pick("f")], "f"),
        lambda: add("Neg", [pick("f")], "f"),
        lambda: add("Mul", [pick("f"), scope.constant([0.5, -1.5, 1.0], "f")], "f"),
        lambda: add("Add", [pick("i"), pick("i")], "i"),
        lambda: add("Less", [pick("i"), pick("i")], "b"),
        lambda: add("Not", [pick("b")], "b"),
        lambda: add("Concat", [pick("g"), pick("f")], "g", axis=0),
        lambda: add("Add", [pick("f"), add("ReduceMax", [pick("g")], "x", keepdims=0)], "f"),
        lambda: add("Size", [pick("g")], "i"),
        lambda: add("Identity", [pick("s")], "s"),
        lambda: add("SequenceInsert", [pick("s"), pick("f")], "s"),
        lambda: add("SequenceInsert", [pick("s"), pick("f"), scope.constant(0, "i")], "s"),
        lambda: add("SequenceErase", [add("SequenceInsert", [pick("s"), pick("f")], "s")], "s"),
        lambda: add("SequenceAt", [add("SequenceInsert", [pick("s"), pick("f")], "s"), scope.constant(-1, "i")], "f"),
        lambda: add("SequenceLength", [pick("s")], "i"),
    ]  # fmt: skip
    scope.rng.choice(steps)()


def fill(scope: Scope, depth: int, size: int) -> None:
    """Random nodes."""
    for _ in range(size):
        if depth and scope.rng.random() < 0.45:
            scope.rng.choice([branch, loop, scan])(scope, depth - 1)
        else:
            simple(scope)


def _end(scope: Scope, kinds: str) -> list[str]:
    """Values to return: of the body, or an enclosing graph's, or the same one twice."""
    return [scope.pick(kind) for kind in kinds]


def _outputs(scope: Scope, kinds: str, *, omit: bool = False) -> list[str]:
    names = []
    for kind in kinds:
        if omit and kind == "m" and scope.rng.random() < 0.3 and any(names):
            names.append("")
            continue
        names.append(scope.name(kind))
        scope.known[kind].append(names[-1])
    return names


def branch(scope: Scope, depth: int) -> None:
    """An If."""
    kinds = "".join(scope.rng.choices(KINDS, k=scope.rng.randint(1, 3)))
    bodies = {}
    for attribute in ("then_branch", "else_branch"):
        body = scope.inner("t")
        fill(body, depth, scope.rng.randint(0, 3))
        ends = _end(body, kinds)
        bodies[attribute] = helper.make_graph(
            body.nodes, attribute, [], [port(n, k) for n, k in zip(ends, kinds, strict=True)]
        )
    cond = scope.pick("b")
    scope.nodes.append(helper.make_node("If", [cond], _outputs(scope, kinds), **bodies))


def loop(scope: Scope, depth: int) -> None:
    """A Loop of up to three trips."""
    rng = scope.rng
    kinds = "".join(rng.choices(KINDS, k=rng.randint(0, 3)))
    n_scans = rng.randint(0 if kinds else 1, 2)
    start = [scope.pick(k) for k in kinds]
    trips = scope.constant(rng.randint(-1, 3), "i")
    cond = rng.choice(["", scope.pick("b"), scope.constant(True, "b")])
    body = scope.inner("l")
    number, said = body.name("i"), body.name("b")
    formal = [body.name(k) for k in kinds]
    for kind, name in zip("ib" + kinds, [number, said, *formal], strict=True):
        body.known[kind].append(name)
    endless = bool(cond) and rng.random() < 0.3
    fill(body, depth, rng.randint(0, 3))
    go = (
        body.add("Less", [number, body.constant(1, "i")], "b")
        if endless
        else rng.choice([said, body.pick("b")])
    )
    ends = [go, *_end(body, kinds), *_end(body, "f" * n_scans)]
    graph = helper.make_graph(
        body.nodes,
        "body",
        [port(n, k) for n, k in zip([number, said, *formal], "ib" + kinds, strict=True)],
        [port(n, k) for n, k in zip(ends, "b" + kinds + "f" * n_scans, strict=True)],
    )
    outputs = _outputs(scope, kinds + "m" * n_scans, omit=True)
    scope.nodes.append(
        helper.make_node("Loop", ["" if endless else trips, cond, *start], outputs, body=graph)
    )


def scan(scope: Scope, depth: int) -> None:
    """A Scan over the rows of one or two matrices of the same length."""
    rng = scope.rng
    kinds = "".join(rng.choices("fgi", k=rng.randint(0, 2)))
    matrix = scope.pick("m")
    sources = [matrix] * rng.randint(1, 2)
    n_scans = rng.randint(0 if kinds else 1, 2)
    start = [scope.pick(k) for k in kinds]
    body = scope.inner("n")
    formal = [body.name(k) for k in kinds + "f" * len(sources)]
    for kind, name in zip(kinds + "f" * len(sources), formal, strict=True):
        body.known[kind].append(name)
    fill(body, depth, rng.randint(0, 3))
    ends = [*_end(body, kinds), *_end(body, "f" * n_scans)]
    graph = helper.make_graph(
        body.nodes,
        "body",
        [port(n, k) for n, k in zip(formal, kinds + "f" * len(sources), strict=True)],
        [port(n, k) for n, k in zip(ends, kinds + "f" * n_scans, strict=True)],
    )
    scope.nodes.append(
        helper.make_node(
            "Scan",
            [*start, *sources],
            _outputs(scope, kinds + "m" * n_scans),
            body=graph,
            num_scan_inputs=len(sources),
            scan_input_axes=[rng.choice([0, -2]) for _ in sources],
            scan_input_directions=[rng.randint(0, 1) for _ in sources],
            **(
                {
                    "scan_output_axes": [rng.choice([0, -2]) for _ in range(n_scans)],
                    "scan_output_directions": [rng.randint(0, 1) for _ in range(n_scans)],
                }
                if n_scans
                else {}
            ),
        )
    )


INPUTS = {"x": "f", "y": "f", "n": "i", "c": "b", "v": "g", "seq": "s", "rows": "m"}


def random_model(seed: int) -> onnx.ModelProto:
    """A model of up to three levels of control flow, with up to six outputs."""
    rng = random.Random(seed)
    known: dict[str, list[str]] = {k: [] for k in (*KINDS, "m", "x")}
    for name, kind in INPUTS.items():
        known[kind].append(name)
    scope = Scope(rng, "", known)
    rng.choice([branch, loop, scan])(scope, 2)
    fill(scope, 3, 6)
    made = [(n, k) for k in (*KINDS, "m") for n in scope.known[k] if n not in INPUTS]
    chosen = rng.sample(made, min(6, len(made)))
    graph = helper.make_graph(
        scope.nodes,
        f"random{seed}",
        [port(n, k) for n, k in INPUTS.items()],
        [port(n, k) for n, k in chosen],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def random_feeds(seed: int) -> dict[str, object]:
    """Feeds for any of the models."""
    rng = np.random.default_rng(seed)

    def vector(*shape: int) -> np.ndarray:
        return rng.integers(-8, 8, shape).astype(np.float32) / 4

    return {
        "x": vector(3),
        "y": vector(3),
        "n": np.array(rng.integers(0, 4), np.int64),
        "c": np.array(bool(rng.integers(0, 2))),
        "v": vector(int(rng.integers(1, 4))),
        "seq": [vector(3) for _ in range(int(rng.integers(0, 3)))],
        "rows": vector(int(rng.integers(0, 4)), 3),
    }
