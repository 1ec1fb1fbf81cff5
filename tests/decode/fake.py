"""A decoder without weights: its cache holds the tokens, and its logits are any function of the tokens so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.program.program import Port
from hetero.types import DataType, TensorType

Array = np.ndarray[Any, Any]
Logits = Callable[[tuple[int, ...]], Array]
"""The logits (vocab,) after these tokens."""


def port(name: str, dtype: DataType, *shape: int | str | None) -> Port:
    return Port(name, -1, TensorType(dtype, shape))


@dataclass
class Signature:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass
class FakeExecutor:
    """Drives `logits` like a model whose cache grows, or is a buffer of `capacity` steps; `steps` records each run's
    graph slot and new tokens."""

    logits: Logits
    vocab: int
    capacity: int | None = None
    steps: list[tuple[str, int]] = field(default_factory=list)

    @property
    def plan(self) -> Signature:
        past, present = ("past", "past + new") if self.capacity is None else (self.capacity, self.capacity)
        lengths = () if self.capacity is None else (port("write_indices", DataType.INT64, "batch"),)
        return Signature(
            (
                port("input_ids", DataType.INT64, "batch", "new"),
                *lengths,
                port("past_key_values.0.key", DataType.DOUBLE, "batch", 1, past, 1),
            ),
            (
                port("logits", DataType.DOUBLE, "batch", "new", self.vocab),
                port("present.0.key", DataType.DOUBLE, "batch", 1, present, 1),
            ),
        )

    def run(
        self,
        feeds: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        graph_slot: str = "primary",
    ) -> dict[str, Any]:
        ids, past = feeds["input_ids"], feeds["past_key_values.0.key"]
        self.steps.append((graph_slot, ids.shape[1]))
        if self.capacity is None:
            begin = past.shape[2]
            present = np.concatenate([past, ids[:, None, :, None]], axis=2, dtype=np.float64)
        else:
            begin = int(feeds["write_indices"][0])
            present = past.copy()
            present[:, :, begin : begin + ids.shape[1]] = ids[:, None, :, None]
            assert begin + ids.shape[1] <= self.capacity
        rows = [
            [self.logits(tuple(map(int, row[0, : begin + n + 1, 0]))) for n in range(ids.shape[1])]
            for row in present
        ]
        outputs = {"logits": np.array(rows), "present.0.key": present}
        assert output_names is not None
        return {name: outputs[name] for name in output_names}


def mixed(vocab: int, seed: int = 0, scale: float = 3.0) -> Logits:
    """Normally distributed logits that depend on all tokens so far."""

    def logits(tokens: tuple[int, ...]) -> Array:
        rng = np.random.default_rng([seed, *tokens])
        return np.asarray(rng.standard_normal(vocab) * scale)

    return logits


def rolled(logits: Logits, by: int) -> Logits:
    """Other greatest tokens than those of `logits`, always."""
    return lambda tokens: np.roll(logits(tokens), by)
