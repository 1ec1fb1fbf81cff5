"""Building nodes: standard operators of one opset, whatever the model's, and what the rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.source import op_id
from hetero.types import FLOATS, numpy_dtype

OPSET = 18
"""The opset in whose terms rules are written; nodes that the model's own would read otherwise keep this version."""


def is_float(value: ir.Value) -> bool:
    """Whether derivatives by the value exist: its type is a float, or unknown."""
    return value.dtype is None or (value.dtype != ir.DataType.STRING and numpy_dtype(value.dtype) in FLOATS)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The attribute's value."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def rank_of(node: ir.Node, value: ir.Value | None) -> int:
    """The value's rank. Raises: ModelError where it is not known."""
    if value is None or value.shape is None:
        raise ModelError(
            "its derivative needs the operand's rank, which is not known",
            node=node.name,
            op=op_id(node),
            operand=None if value is None else value.name,
        )
    return len(value.shape)


def known(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The value of a constant of the model."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return np.asarray(value.const_value.numpy())


class Emitter:
    """Collects `nodes`, all named after one Gradient."""

    def __init__(self, model: ir.Model, name: str) -> None:
        self.nodes: list[ir.Node] = []
        self._name = name
        self._opset = model.opset_imports.setdefault("", OPSET)

    def version(self, node: ir.Node) -> int:
        """The opset that a node of the ONNX domain is written in."""
        return node.version or self._opset

    def ops(
        self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        node = ir.node(op_type, inputs, attributes or None, num_outputs=outputs)
        if self._since(op_type, OPSET) != self._since(op_type, self._opset):
            node.version = OPSET
        return self.add(node)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        return self.ops(op_type, *inputs, **attributes)[0]

    def again(self, node: ir.Node, first: ir.Value, **changed: Any) -> ir.Value:
        """The same operation with another first input, and some attributes changed."""
        kept = [a for k, a in node.attributes.items() if k not in changed]
        new = ir.convenience.convert_attributes(changed)
        inputs = [first, *node.inputs[1:]]
        return self.add(
            ir.Node("", node.op_type, inputs, [*kept, *new], version=node.version, num_outputs=1)
        )[0]

    @staticmethod
    def _since(op_type: str, opset: int) -> int | None:
        return (
            onnx.defs.get_schema(op_type, opset, "").since_version
            if onnx.defs.has(op_type, opset, "")
            else None
        )

    def add(self, node: ir.Node) -> Sequence[ir.Value]:
        """Put in a node; returns its outputs, named."""
        node.name = f"{self._name}/{node.op_type}_{len(self.nodes)}"
        for k, output in enumerate(node.outputs):
            output.name = f"{node.name}/{k}"
        self.nodes.append(node)
        return node.outputs

    # -- constants -----------------------------------------------------------------------------------------------
    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant."""
        return self.add(ir.node("Constant", [], {"value": ir.tensor(array)}))[0]

    def ints(self, *values: int) -> ir.Value:
        """A vector of integers."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: float, like: ir.Value) -> ir.Value:
        """A scalar of the dtype of `like`. Raises: ModelError where that is not known."""
        if like.dtype is None:
            raise ModelError("a derivative needs a dtype that is not known", operand=like.name)
        return self.constant(np.array(value, numpy_dtype(like.dtype)))

    def full(self, like: ir.Value, value: float) -> ir.Value:
        """`value` everywhere, in the shape and dtype of `like`."""
        return self.op("Expand", self.scalar(value, like), self.op("Shape", like))

    # -- arithmetic ----------------------------------------------------------------------------------------------
    def mul(self, *factors: ir.Value) -> ir.Value:
        """The product of all."""
        total = factors[0]
        for factor in factors[1:]:
            total = self.op("Mul", total, factor)
        return total

    def times(self, value: ir.Value, factor: float, like: ir.Value) -> ir.Value:
        """`value`, of the dtype of `like`, times a number."""
        return value if factor == 1 else self.op("Mul", value, self.scalar(factor, like))

    def where(self, condition: ir.Value, value: ir.Value, like: ir.Value) -> ir.Value:
        """`value`, of the dtype of `like`, where the condition holds, else 0."""
        return self.op("Where", condition, value, self.scalar(0, like))

    # -- shapes --------------------------------------------------------------------------------------------------
    def reshape_like(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """`value` in the shape of `like`, which has as many elements."""
        # 0 is an extent here, and no wish to keep one
        return self.op("Reshape", value, self.op("Shape", like), allowzero=1)

    def unbroadcast(self, value: ir.Value, of: ir.Value | None, to: ir.Value) -> ir.Value:
        """`value` summed over the axes along which `to` was broadcast to `of`, whose shape it has (None: to whatever
        its shape is)."""
        axes = None if of is None else _summed(of, to)
        if axes is not None:
            if not axes:
                return value
            return self.reshape_like(self.op("ReduceSum", value, self.ints(*axes), keepdims=1), to)
        have, want = self.op("Shape", value), self.op("Shape", to)
        missing = self.op("Sub", self.op("Shape", have), self.op("Shape", want))
        ones = self.op("ConstantOfShape", missing, value=ir.tensor(np.ones(1, np.int64)))
        padded = self.op("Concat", ones, want, axis=0)
        differing = self.op(
            "Squeeze", self.op("NonZero", self.op("Not", self.op("Equal", have, padded))), self.ints(0)
        )
        total = self.op("ReduceSum", value, differing, keepdims=1, noop_with_empty_axes=1)
        return self.op("Reshape", total, want, allowzero=1)

    def scatter_back(self, x: ir.Value, places: ir.Value, grad: ir.Value, extra: int = 0) -> ir.Value:
        """A flat vector as long as x (and `extra` more) in which each element of `grad` is added at its place."""
        flat = self.ints(-1)
        size = self.op("Reshape", self.op("Size", x), flat)
        if extra:
            size = self.op("Add", size, self.ints(extra))
        zeros = self.op("Expand", self.scalar(0, x), size)
        places, grad = self.op("Reshape", places, flat), self.op("Reshape", grad, flat)
        return self.op("ScatterElements", zeros, places, grad, axis=0, reduction="add")

    def places(self, x: ir.Value) -> ir.Value:
        """The shape of x, each element its own number."""
        zero, one = (self.constant(np.array(k, np.int64)) for k in (0, 1))
        return self.reshape_like(self.op("Range", zero, self.op("Size", x), one), x)


def _summed(of: ir.Value, to: ir.Value) -> list[int] | None:
    """The axes along which `to` was broadcast, or None where the declared extents do not tell."""
    if of.shape is None or to.shape is None or len(of.shape) < len(to.shape):
        return None
    extra = len(of.shape) - len(to.shape)
    axes = list(range(extra))
    for k, (wide, narrow) in enumerate(zip(of.shape.dims[extra:], to.shape.dims, strict=True), extra):
        if isinstance(narrow, int):
            if narrow == 1 and wide != 1:
                axes.append(k)
        elif narrow.value is None or narrow != wide:
            return None
    return axes
