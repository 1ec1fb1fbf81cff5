"""The one file that touches hetero: a model split over providers, and what it tells of itself afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

import hetero
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


class SplitModel:
    """A model on a `HeterogeneousExecutor`, as a Runner. Use it as a context manager."""

    def __init__(self, model: Path, providers: list[Provider], children: Children) -> None:
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
        return {name: np.asarray(value) for name, value in self._executor.run(feeds).items()}

    def explanation(self) -> str:
        return str(self._executor.plan.explain())

    def statistics(self) -> Mapping[str, Any]:
        return self._executor.stats()

    def write_trace(self, path: Path) -> Path:
        """Write the timeline of all runs so far, one that Perfetto opens; returns the path."""
        self._executor.write_trace(path)
        return path
