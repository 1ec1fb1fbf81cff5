"""onnx's own backend test suite as cases that pytest can name, on each kind of device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from hetero.backend import HeteroBackendRep, prepare, supports_device
from tests.dealing import shuffled

DEVICES = ("CPU", "SIM:0")
SPLIT = "SPLIT"
"""Stands for a device: the nodes dealt over cpu, sim:0 and sim:1. Only for models of several nodes."""

DRAWN = frozenset(
    {
        *(f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
        *(f"test_training_dropout{form}" for form in ("", "_default", "_mask", "_default_mask")),
    }
)
"""The expected values are draws of NumPy's generator, which the standard does not ask for: `test_drawn.py` judges them
by their distribution. (Those that draw nothing, or only into a shape, are ordinary cases.)"""

# The expected values were rounded to float16 after each step. Where the exact result lies between two float16 numbers,
# one unit in the last place is more than the suite's 0.1 %. Two of them, as the suite itself allows bfloat16:
ROUNDED = {f"test_attention_4d_causal_fp16{form}": {"rtol": 2.0**-9} for form in ("", "_expanded")}


@dataclass(frozen=True)
class Case:
    """One case of the suite on one device, or split. `group`: Node, Real (light models), Simple, PyTorchConverted…"""

    group: str
    name: str
    device: str
    _function: Callable[[Any], None] = field(repr=False)

    def run(self) -> None:
        """Raises: AssertionError where outputs differ, or none was compared; what the backend raises."""
        before = _Suite.compared
        self._function(None)
        assert _Suite.compared > before, "the case compares nothing"

    def __str__(self) -> str:
        return f"{self.name}-{self.device}"


class _Suite(BackendTest):
    """onnx's runner, which also compares sequences of scalars, and counts what it compares."""

    compared: ClassVar[int] = 0

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        # An element of a sequence comes as an array. onnx takes its rows for outputs; a scalar has none.
        if isinstance(outputs, np.ndarray):
            ref_outputs, outputs = [ref_outputs], [outputs]
        super().assert_similar_outputs(ref_outputs, outputs, rtol, atol, model_dir)
        _Suite.compared += len(outputs)


class _Repeated(BackendRep):
    """Runs again, over what the first run bound and its buffers: the same bits, and inputs as they were.

    With `whole`, which runs the model in one piece, every run gives its bits.
    """

    def __init__(self, rep: HeteroBackendRep, runs: int, whole: HeteroBackendRep | None = None) -> None:
        self._rep, self._runs, self._whole = rep, runs, whole

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = deepcopy(inputs)
        results = [self._rep.run(inputs, **kwargs) for _ in range(self._runs)]
        assert all(same_bits(results[0], later) for later in results[1:]), "a later run differs"
        assert same_bits(given, inputs), "an input was written"
        if self._whole is not None:
            assert same_bits(results[0], self._whole.run(inputs, **kwargs)), "the split gives other bits"
        return results[0]


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results (arrays, lists of them, None) are of the same types, shapes and bits."""
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same_bits, a, b))
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else bool(a.tobytes() == b.tobytes())


def _backend(device: str) -> type[Backend]:
    class OnDevice(Backend):
        """The suite knows the devices CPU and CUDA alone: its "CPU" is `device` here."""

        @classmethod
        def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
            return True  # otherwise what cannot be planned would be skipped, not failed

        @classmethod
        def prepare(cls, model: Any, asked: str = "CPU", **kwargs: Any) -> BackendRep:
            if device != SPLIT:
                return _Repeated(prepare(model, device, **kwargs), runs=2)
            split = prepare(model, providers=shuffled(model, seed=0), **kwargs)
            return _Repeated(split, runs=3, whole=prepare(model, "CPU", **kwargs))

        @classmethod
        def supports_device(cls, asked: str) -> bool:
            return asked == "CPU" and (device == SPLIT or supports_device(device))

    return OnDevice


@cache
def cases(*groups: str) -> tuple[Case, ...]:
    """The cases of these groups (none given: of all), on each device and split, sorted by name."""
    found = []
    for device in (*DEVICES, SPLIT):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # onnx computes the expected infinities while it is imported
            classes = _Suite(_backend(device), __name__, test_kwargs=ROUNDED).test_cases
            single = _single_nodes() if device == SPLIT else frozenset()
        for label, tests in classes.items():
            group = label.removeprefix("OnnxBackend").removesuffix("ModelTest")
            if groups and group not in groups:
                continue
            for name, function in vars(tests).items():
                if name.startswith("test_") and name.endswith("_cpu"):
                    case = Case(group, name.removesuffix("_cpu"), device, function)
                    if case.name not in single:
                        found.append(case)
    return tuple(sorted(found, key=lambda case: (case.group, case.name, case.device)))


def _single_nodes() -> frozenset[str]:
    """Node cases whose model is one node."""
    return frozenset(
        case.name for case in load_model_tests(kind="node") if case.model and len(case.model.graph.node) < 2
    )


def passing(*groups: str) -> list[Case]:
    """The cases that pass as they are."""
    return [case for case in cases(*groups) if case.name not in DRAWN]
