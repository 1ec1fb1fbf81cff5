"""An operator for benchmarks that sleeps: a stage that takes its time elsewhere. Importing this module registers it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import hetero
from hetero.extensions import ExtensionContext
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec

DOMAIN = "benchmarks"
SLEEP_S = 0.005


@hetero.register_extension
class Sleep(hetero.Extension):
    """y = x, SLEEP_S later."""

    domain, name = DOMAIN, "Sleep"
    in_session = True

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        """As the input."""
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        """Sleep, then copy."""
        time.sleep(SLEEP_S)
        context.xp.copyto(outputs[0], inputs[0])
