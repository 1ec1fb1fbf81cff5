"""What runs a model: anything with `run`. One is onnxruntime; another holds a third against it."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

RELATIVE = 1e-3
ABSOLUTE = 1e-4  # times the largest magnitude in the reference output


class Runner(Protocol):
    """A model ready to run: input name -> array in, output name -> array out. The inputs are not changed."""

    def run(self, feeds: Arrays) -> Arrays: ...


class OnnxRuntime:
    """The model whole, on onnxruntime's CPU provider: the reference every other runner is held against."""

    def __init__(self, model: Path) -> None:
        ort: Any = importlib.import_module("onnxruntime")  # it ships no types
        options = ort.SessionOptions()
        # Its threads would go on spinning for a while after each call, on the cores the other runner needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._names: list[str] = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Arrays) -> Arrays:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one call beside its reference. `problem` says why they disagree; None: they agree."""

    model: str
    call: int
    output: str
    shape: tuple[int, ...]
    max_abs: float
    problem: str | None


class Checked:
    """Runs a model on `runner`, repeats every call on `reference`, and keeps what came of it.

    The caller always gets the runner's own outputs, also where they disagree: a wrong answer is shown as
    it is, and `checks` says that it is wrong.
    """

    def __init__(self, model: str, runner: Runner, reference: Runner) -> None:
        self.model = model
        self.checks: list[Check] = []
        self.shapes: list[tuple[int, ...]] = []  # the first input of each call
        self.seconds: list[float] = []
        self.reference_seconds: list[float] = []
        self._runner = runner
        self._reference = reference

    def run(self, feeds: Arrays) -> Arrays:
        began_s = time.perf_counter()
        got = self._runner.run(feeds)
        between_s = time.perf_counter()
        want = self._reference.run(feeds)
        self.seconds.append(between_s - began_s)
        self.reference_seconds.append(time.perf_counter() - between_s)
        self.shapes.append(next(iter(feeds.values())).shape)
        call = len(self.seconds)
        self.checks += [compare(self.model, call, name, got.get(name), want[name]) for name in want]
        extra = sorted(got.keys() - want.keys())
        self.checks += [
            Check(self.model, call, name, got[name].shape, 0.0, "the model has no such output")
            for name in extra
        ]
        return got

    @property
    def agrees(self) -> bool:
        return all(check.problem is None for check in self.checks)

    @property
    def max_abs(self) -> float:
        """Largest absolute difference over all outputs of all calls; NaN if any difference is."""
        return float(np.max([check.max_abs for check in self.checks], initial=0.0))


def compare(model: str, call: int, name: str, got: NDArray[Any] | None, want: NDArray[Any]) -> Check:
    """Hold `got` against `want`: same dtype and shape, |difference| <= 1e-4 max|want| + 1e-3 |want|."""
    if got is None:
        return Check(model, call, name, want.shape, float("nan"), "missing")
    if got.shape != want.shape or got.dtype != want.dtype:
        mismatch = f"{got.dtype}{list(got.shape)} where {want.dtype}{list(want.shape)} is right"
        return Check(model, call, name, got.shape, float("nan"), mismatch)
    if want.size == 0:
        return Check(model, call, name, got.shape, 0.0, None)
    with np.errstate(invalid="ignore"):  # inf - inf: the NaN it leaves is the finding
        difference = np.abs(got - want)
        allowed = ABSOLUTE * np.abs(want).max() + RELATIVE * np.abs(want)
        beyond = ~((difference <= allowed) | (got == want))
    problem: str | None = None
    if beyond.any():
        at = np.unravel_index(int(beyond.argmax()), want.shape)
        place = list(map(int, at))
        problem = f"{int(beyond.sum())} of {want.size} differ, first at {place}: {got[at]} against {want[at]}"
    return Check(model, call, name, got.shape, float(difference.max()), problem)
