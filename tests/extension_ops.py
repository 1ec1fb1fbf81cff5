"""Extensions that other processes can import: importing this module registers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import hetero
from hetero.extensions import ExtensionContext
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec

DOMAIN = "tests.extensions"


@hetero.register_extension
class Scale(hetero.Extension):
    """y = factor · x, on the device's stream; counts in the child's cache how often it was prepared and run."""

    domain, name = DOMAIN, "Scale"
    kinds = ("cpu", "sim", "cuda")
    in_session = in_capture = True

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def prepare(self, op: Operation, context: ExtensionContext) -> Any:
        count(context, "prepared")
        return op.attr("factor", 2.0)

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        count(context, "run")
        context.xp.multiply(inputs[0], state, out=outputs[0])


@hetero.register_extension
class Count(hetero.Extension):
    """How often operations of this family were prepared and run on this child, this run included: int64[2]."""

    domain, name = DOMAIN, "Count"
    kinds = ("cpu", "sim")

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        return [TensorSpec(np.dtype(np.int64), (2,))]

    def prepare(self, op: Operation, context: ExtensionContext) -> Any:
        count(context, "prepared")

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> Any:
        count(context, "run")
        return context.xp.array([context.cache["prepared"], context.cache["run"]])


@hetero.register_extension
class Positive(hetero.Extension):
    """The positive elements of x: only the data tell how many."""

    domain, name = DOMAIN, "Positive"

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> None:
        return None

    def run(self, state: Any, inputs: Sequence[Any], outputs: None, context: ExtensionContext) -> Any:
        (x,) = inputs
        return [x[x > 0]]


def count(context: ExtensionContext, what: str) -> None:
    context.cache[what] = context.cache.get(what, 0) + 1
