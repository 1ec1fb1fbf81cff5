"""The one file that touches hetero: a model split over providers, and what it tells of itself afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

import hetero
from actors import chaos
from examples.ocr.runners import Arrays
from hetero.providers.registry import cuda_device_count

Provider = str | tuple[str, dict[str, Any]]
Children = Literal["ray", "inline"]

# Without a GPU the simulated device stands in for one. Left alone it would take every node and nothing would
# be split, so a few op types are kept off it: they lie all through both models.
REHEARSAL: list[Provider] = [("sim:0", {"except_ops": ["Softmax", "Resize", "GlobalAveragePool"]}), "cpu"]


def default_providers() -> list[Provider]:
    """The first GPU and the CPU where hetero can use a GPU, else the simulated device and the CPU."""
    return ["cuda:0", "cpu"] if cuda_device_count() > 0 else list(REHEARSAL)


@dataclass(frozen=True, slots=True)
class Outage:
    """An actor that was killed in a call: seconds from then until the outputs were there, and whether they are, to the
    bit, what the same call gives afterwards."""

    device: str
    pid: int
    call: int
    seconds: float
    same_bits: bool


class SplitModel:
    """A model on a `HeterogeneousExecutor`, as a Runner. Use it as a context manager."""

    def __init__(
        self, model: Path, providers: list[Provider], children: Children, outage_at: int | None = None
    ) -> None:
        """`outage_at`: the call, counted from 1, in which an actor is killed."""
        self.outage: Outage | None = None
        self._outage_at, self._calls = outage_at, 0
        self._executor = hetero.HeterogeneousExecutor(
            model, providers=providers, children=children, options=hetero.RuntimeOptions(trace=True)
        )

    def __enter__(self) -> Self:
        self._executor.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.__exit__(kind, error, traceback)

    def run(self, feeds: Arrays) -> Arrays:
        self._calls += 1
        step = self._through_an_outage if self._calls == self._outage_at else self._executor.run
        return {name: np.asarray(value) for name, value in step(feeds).items()}

    def _through_an_outage(self, feeds: Arrays) -> Arrays:
        """Run a step whose first partition has been computed, but not sent, when its actor is killed."""
        plan = self._executor.plan
        first = plan.partitions[0]
        device = plan.providers[first.child].name
        with chaos.gate(f"partition {first.id}, before send") as gate:
            future = self._executor.submit(feeds)
            process = gate.wait_reached()["pid"]
            began_s = time.perf_counter()
            chaos.kill(device, self._executor)
            gate.open()
            outputs: Arrays = future.result()
        took_s = time.perf_counter() - began_s
        again = self._executor.run(feeds)
        same = all(np.asarray(again[name]).tobytes() == value.tobytes() for name, value in outputs.items())
        self.outage = Outage(device, process, self._calls, took_s, same)
        return outputs

    def explanation(self) -> str:
        return str(self._executor.plan.explain())

    def statistics(self) -> Mapping[str, Any]:
        return self._executor.stats()

    def write_trace(self, path: Path) -> Path:
        """Write the timeline of all runs so far, one that Perfetto opens; returns the path."""
        self._executor.write_trace(path)
        return path
