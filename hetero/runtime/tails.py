"""Tails: how a section ends at an instruction whose results' shapes only the data tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hetero.kernels.base import Compiled
from hetero.program.program import NO_SLOT, Instruction
from hetero.providers.base import Provider
from hetero.runtime.operands import Gather, run_once
from hetero.runtime.section import Key, Tail, value_spec
from hetero.types import SequenceValue, Spec, TensorSpec

if TYPE_CHECKING:
    from hetero.runtime.control_flow import ControlFlow
    from hetero.runtime.runner import Runner

Publish: TypeAlias = Callable[[Sequence[Any]], Key]
"""Puts results into the run's table and returns their specs."""


def publisher(instruction: Instruction, table: list[Any]) -> Publish:
    """Publishes the instruction's results."""
    outputs = instruction.outputs
    last: Key = ()

    def publish(results: Sequence[Any]) -> Key:
        nonlocal last
        for index, result in zip(outputs, results, strict=False):
            if index != NO_SLOT:
                table[index] = result
        results = results[: len(outputs)]
        if not _are(results, last):
            last = tuple(value_spec(r) for r in results)
        return last

    return publish


def _are(results: Sequence[Any], key: Key) -> bool:
    """Whether these are arrays with the specs of `key`, which is then as good as one made of them."""
    if len(results) != len(key):
        return False
    for result, spec in zip(results, key, strict=True):
        if type(result) is not np.ndarray or type(spec) is not TensorSpec:
            return False
        if result.shape != spec.shape or result.dtype is not spec.dtype:
            return False
    return True


def dynamic_tail(provider: Provider, compiled: Compiled, gather: Gather, publish: Publish) -> Tail:
    """Run a data-dependent kernel."""

    def tail() -> Key:
        return publish(run_once(provider, compiled, gather()))

    return tail


def late_tail(
    runner: Runner,
    at: int,
    specs: Sequence[Spec],
    missing: Sequence[int],
    gather: Gather,
    publish: Publish,
    *,
    on_host: bool,
) -> Tail:
    """Compile in each run, when the values of the operands `missing` are there (kernels come from the cache).

    `on_host`: this device has no kernel; run it on the host, between a download and an upload.
    """
    provider = runner.provider
    target = runner.host if on_host else provider

    def tail() -> Key:
        inputs = gather()
        if on_host:
            inputs = [
                x if x is None or isinstance(x, SequenceValue) else provider.download(x) for x in inputs
            ]
        known = list(specs)
        for k in missing:
            value = inputs[k] if on_host else provider.download(inputs[k])
            # a copy: kernels outlive the run, and the array may be the caller's
            known[k] = TensorSpec(value.dtype, value.shape, value.copy())
        results = run_once(target, runner.compile(at, target, known), inputs)
        if on_host:
            results = tuple(provider.upload(r) if isinstance(r, np.ndarray) else r for r in results)
        return publish(results)

    return tail


def control_tail(flow: ControlFlow, gather: Gather, publish: Publish) -> Tail:
    """Run a control-flow instruction."""

    def tail() -> Key:
        return publish(flow.run(gather()))

    return tail
