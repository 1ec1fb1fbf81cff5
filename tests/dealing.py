"""Dealing the nodes of a model to providers, whatever a provider would rather have."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import hetero
from hetero.executor import ModelLike
from hetero.program.operation import Operation
from hetero.providers.base import Match, Provider, ProviderConfig
from hetero.providers.cpu import CpuProvider
from hetero.providers.simulated import SimulatedProvider
from hetero.types import ValueType

WHERE = ("cpu", "sim:0", "sim:1")


class _Dealt(Provider):
    """A provider that takes no node that was dealt to another one. (Nodes inside bodies are dealt to nobody: they go
    with the node that they belong to.)"""

    others: frozenset[str]

    def supports(self, op: Operation, types: Sequence[ValueType | None]) -> Match:
        if op.name in self.others:
            return Match(False, "dealt to another provider")
        return super().supports(op, types)


class _DealtSimulated(_Dealt, SimulatedProvider):
    pass


class _DealtCpu(_Dealt, CpuProvider):
    pass


def dealt(shares: Mapping[str, Sequence[str]]) -> list[Provider]:
    """Provider instances ("cpu", "sim:0"…) of which each takes the nodes that are named for it, as far as it has
    kernels for them; a last "cpu:9" takes what it must."""
    providers: list[Provider] = []
    for name in shares:
        kind = _DealtCpu if name.startswith("cpu") else _DealtSimulated
        provider = kind(ProviderConfig(name))
        provider.others = frozenset(node for to, nodes in shares.items() if to != name for node in nodes)
        providers.append(provider)
    return [*providers, CpuProvider(ProviderConfig("cpu:9"))]


def shuffled(model: ModelLike, seed: int = 0, where: Sequence[str] = WHERE) -> list[Provider]:
    """`dealt` the nodes of the main graph in equal shares, by a shuffle that depends on the seed alone."""
    nodes = [p.node for p in hetero.plan(model, ["cpu"]).placements if not p.path]
    random.Random(seed).shuffle(nodes)
    return dealt({name: nodes[k :: len(where)] for k, name in enumerate(where)})
