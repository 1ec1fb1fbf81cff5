"""Damage: a random change to a node, an array, a protobuf message or a tree of plain lists; the same for one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, numpy_helper

INTEGERS = (-1, 0, 1, 2, 3, -2, 7, 100, 65537, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e38, 1e-38, 2.5)
TEXTS = (
    "",
    "x",
    "linear",
    "add",
    "SAME_UPPER",
    "reverse",
    "ii->i",
    "\0",
    "é" * 50,
    "a b",
    "ai.onnx",
    "x" * 5000,
)
_MESSAGE, _BYTES, _STRING, _BOOL, _ENUM, _INT32, _UINT64 = 11, 12, 9, 8, 14, 5, 4


def array(r: random.Random, x: Any) -> Any:
    """`x` of another rank, extent or value, of the same dtype."""
    kind = r.randrange(9)
    if kind == 0:
        return x.reshape(-1)
    if kind == 1:
        return x[None]
    if kind == 2 and x.ndim:
        return np.take(x, [], axis=r.randrange(x.ndim))
    if kind == 3 and x.ndim and x.shape[0]:
        return x[:1].reshape(x.shape[1:])
    if kind == 4 and x.ndim:
        return np.concatenate([x, x], axis=r.randrange(x.ndim))
    if kind == 5 and x.ndim > 1:
        return x.swapaxes(0, -1)
    if kind == 6 and x.size:
        return x.reshape(-1)[:1].reshape(())
    return _values(r, x)


def _values(r: random.Random, x: Any) -> Any:
    flat = x.copy().reshape(-1)
    if not flat.size:
        return x
    at = r.randrange(flat.size)
    if x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        flat[at] = min(max(r.choice(INTEGERS), int(bounds.min)), int(bounds.max))
    elif x.dtype.kind == "f":
        with np.errstate(all="ignore"):
            flat[at] = r.choice(FLOATS)
    elif x.dtype.kind == "O":
        flat[at] = r.choice(TEXTS)
    return flat.reshape(x.shape)


def node(r: random.Random, row: onnx.NodeProto) -> None:
    """Change the node: mostly an attribute's value, else its operands."""
    kind = r.random()
    if kind < 0.7 and row.attribute:
        attribute(r, r.choice(row.attribute))
    elif kind < 0.78 and row.input:
        row.input[r.randrange(len(row.input))] = ""
    elif kind < 0.86 and row.input:
        row.input.append(r.choice(row.input))
    elif kind < 0.92 and row.input:
        row.input.pop()
    elif kind < 0.95:
        row.output.append("more")
    elif row.attribute:
        del row.attribute[r.randrange(len(row.attribute))]


def attribute(r: random.Random, a: AttributeProto) -> None:
    """Another value of the attribute's type."""
    if a.type == AttributeProto.INT:
        a.i = r.choice(INTEGERS)
    elif a.type == AttributeProto.FLOAT:
        a.f = r.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = r.choice((b"\xff\xfe", *(t.encode() for t in TEXTS)))
    elif a.type == AttributeProto.INTS:
        _resize(r, a.ints, r.choice(INTEGERS))
    elif a.type == AttributeProto.FLOATS:
        _resize(r, a.floats, r.choice(FLOATS))
    elif a.type == AttributeProto.TENSOR:
        a.t.CopyFrom(numpy_helper.from_array(array(r, numpy_helper.to_array(a.t)), a.t.name))
    elif a.type == AttributeProto.GRAPH and a.g.node:
        node(r, r.choice(a.g.node))


def _resize(r: random.Random, values: Any, value: Any) -> None:
    kind = r.randrange(3)
    if kind == 0 and len(values):
        values[r.randrange(len(values))] = value
    elif kind == 1 and len(values):
        del values[r.randrange(len(values))]
    else:
        values.append(value)


def message(r: random.Random, root: Message) -> None:
    """Change one field somewhere in a protobuf message, to another value of its type; or drop or repeat it."""
    owner, field = r.choice(list(_fields(root)))
    if field.is_repeated:
        items = getattr(owner, field.name)
        at = r.randrange(len(items))
        kind = r.randrange(4)
        if kind == 0:
            del items[at]
        elif field.type == _MESSAGE:
            items.add().CopyFrom(items[at] if kind < 3 else r.choice(items))
        elif kind == 1:
            items.append(items[at])
        else:
            items[at] = _scalar(r, field, items[at])
    elif field.type == _MESSAGE or r.random() < 0.15:
        owner.ClearField(field.name)
    else:
        setattr(owner, field.name, _scalar(r, field, getattr(owner, field.name)))


def _fields(root: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field, value in root.ListFields():
        yield root, field
        if field.type == _MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _scalar(r: random.Random, field: FieldDescriptor, old: Any) -> Any:
    if field.type == _STRING:
        return r.choice((*TEXTS, old + "_", old))
    if field.type == _BYTES:
        return r.choice((old[:-1], old + b"\0", b"", bytes(reversed(old))))
    if field.type == _BOOL:
        return not old
    if field.type == _ENUM:
        return r.choice([v.number for v in field.enum_type.values])
    if isinstance(old, float):
        return r.choice(FLOATS)
    low, high = (-(2**31), 2**31 - 1) if field.type == _INT32 else (-(2**63), 2**63 - 1)
    if field.type == _UINT64:
        low, high = 0, 2**64 - 1
    return min(max(r.choice((*INTEGERS, old + 1, old - 1)), low), high)


def tree(r: random.Random, root: list[Any]) -> None:
    """Change one item somewhere in nested lists: another value, another kind, dropped, repeated or swapped."""
    at = root
    while True:
        index = r.randrange(len(at))
        inner = at[index]
        if not isinstance(inner, list) or not inner or r.random() < 0.15:
            break
        at = inner
    kind = r.randrange(8)
    if kind == 0 and len(at) > 1:
        del at[index]
    elif kind == 1:
        at.insert(index, at[r.randrange(len(at))])
    elif kind == 2:
        other = r.randrange(len(at))
        at[index], at[other] = at[other], at[index]
    elif kind == 3:
        at[index] = r.choice((None, True, 1.5, [], [[]], b"", "x", r.choice(INTEGERS)))
    else:
        at[index] = _like(r, at[index])


def _like(r: random.Random, old: Any) -> Any:
    if isinstance(old, bytes) and old:
        changed = bytearray(old)
        changed[r.randrange(len(changed))] = r.choice((0, 1, 2, 127, 255, r.randrange(256)))
        return bytes(changed)
    if isinstance(old, str):
        return r.choice(TEXTS)
    if isinstance(old, int):
        return r.choice((*INTEGERS, old + 1, old - 1))
    return r.choice((None, 0, "x", b"\1\0", []))
