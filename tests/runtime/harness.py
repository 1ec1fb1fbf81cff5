"""Programs from ONNX text, run on one provider without planner or executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hetero.model import load_model
from hetero.model.inference import value_type
from hetero.options import RuntimeOptions
from hetero.program.lower import Lowering, build_program
from hetero.program.operation import Operation
from hetero.program.program import Dispatch, Program
from hetero.providers.base import Provider
from hetero.providers.registry import ProviderLike, resolve
from hetero.runtime.kernel_cache import KernelCache
from hetero.runtime.runner import Context, Runner
from hetero.types import HostArray


@dataclass
class Rig:
    """A runner over one provider, with what tests look at."""

    runner: Runner
    provider: Provider
    program: Program

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run once; outputs come back on the host."""
        with np.errstate(all="ignore"):
            results = self.runner.run(list(inputs))
        host = [
            r if r is None or isinstance(r, np.ndarray | list | tuple) else self._host(r) for r in results
        ]
        self.provider.synchronize()
        return host

    def _host(self, value: Any) -> Any:
        return self.provider.download(value) if hasattr(value, "strides") else value


def rig(text: str, provider: ProviderLike = "cpu", **options: Any) -> Rig:
    """A runner for the model in onnx's text form; `options` are RuntimeOptions."""
    return rig_of(onnx.parser.parse_model(text), provider, **options)


def rig_of(proto: onnx.ModelProto, provider: ProviderLike = "cpu", **options: Any) -> Rig:
    """A runner for a model."""
    model = load_model(proto)
    (instance,) = resolve([provider])

    def classify(op: Operation) -> Dispatch:
        return instance.supports(op, [None] * len(op.present_inputs)).dispatch

    graph = model.ir.graph
    nodes = Lowering(model.opsets, value_type, classify).operations(graph)
    program = build_program(
        model.name,
        nodes,
        model.inputs,
        [name for name, _ in model.outputs],
        {name: value_type(value) for name, value in graph.initializers.items()},
        classify,
    )
    settings = RuntimeOptions(**options)
    weights: dict[str, HostArray] = {port.name: model.weights[port.name] for port in program.constants}
    host = instance if instance.is_host else resolve(["cpu"])[0]
    context = Context(instance, host, settings, KernelCache(settings.kernel_cache_size), weights)
    context.drive("primary")
    return Rig(Runner(program, context), instance, program)
