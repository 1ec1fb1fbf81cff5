"""What extensions tell planning: the types of their outputs, from which inference goes on."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from hetero.errors import HeteroError, KernelError
from hetero.extensions.contract import Extension
from hetero.extensions.registry import failed, find, serves
from hetero.model.inference import value_type
from hetero.model.model import Model
from hetero.model.source import bodies
from hetero.program.lower import operation_of
from hetero.program.operation import Operation
from hetero.program.schema import canonical_domain
from hetero.types import TensorType, ValueType


def declare_types(model: Model) -> None:
    """Give the outputs of extension nodes the types that their rules say, and infer on from there, until nothing new
    comes of it. What a rule says goes before what the model declares; where it says nothing, the model's word stays.

    Raises: KernelError (of phase plan) where a rule fails on the declared inputs, or gives too many or too few types.
    """
    served = frozenset(domain for domain in model.opsets if serves(domain))
    told: dict[ir.Value, TensorType] = {}
    while served and _declare(model, served, told):
        model.refresh()


def _declare(model: Model, served: frozenset[str], told: dict[ir.Value, TensorType]) -> bool:
    """One round; `told` is what earlier rounds declared. Returns whether a rule said anything new."""
    changed = False
    for node in model.ir.graph.all_nodes():
        if canonical_domain(node.domain) not in served or bodies(node):
            continue
        op = operation_of(node, model.opsets)
        extension = find(op)
        if extension is None or node.op_identifier() in model.ir.functions:
            continue
        for value, type_ in zip(node.outputs, _types(extension, op, node), strict=True):
            if not value.name or not isinstance(type_, TensorType) or type_.dtype is None:
                continue
            if told.get(value) != type_:
                told[value] = type_
                _set(value, type_)
                changed = True
    return changed


def _set(value: ir.Value, type_: TensorType) -> None:
    declared = value.shape
    shape: list[Any] | None = None if type_.shape is None else list(type_.shape)
    if shape is None:
        shape = None if declared is None else list(declared.dims)
    elif declared is not None and len(declared) == len(shape):
        shape = [was if dim is None else dim for dim, was in zip(shape, declared.dims, strict=True)]
    assert type_.dtype is not None
    value.type = ir.TensorType(ir.DataType(type_.dtype))
    value.shape = None if shape is None else ir.Shape(shape, frozen=True)


def _types(extension: Extension, op: Operation, node: ir.Node) -> list[ValueType | None]:
    try:
        found = list(extension.types(op, [None if v is None else value_type(v) for v in node.inputs]))
    except HeteroError:
        raise
    except Exception as error:
        failed(error, op, "the type rule", phase="plan")
    if len(found) != len(node.outputs):
        raise KernelError(
            f"the type rule of extension {op.id} gives {len(found)} outputs, the node has {len(node.outputs)}",
            op=op.id,
            node=op.name or None,
            phase="plan",
        )
    return found
