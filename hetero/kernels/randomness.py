"""Random operators: counter-based draws, so that one step of one node draws the same numbers wherever it runs.

A draw is Philox keyed by (the `seed` attribute or 0, a hash of the node's name), counted by (the run's seed, its step,
draws of this kernel within the run). Where nobody sets a run, a kernel's draws count on from its compilation.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import dtype_attribute, fail
from hetero.program.operation import Operation
from hetero.types import FLOATS, HostArray, Spec, TensorSpec


class Run:
    """A run of a program, or one run after the other: random operators draw the numbers of its `step` (None: of none)
    under its `seed`, which sets one executor's draws apart from another's. Each `number` begins with its first draw."""

    __slots__ = ("number", "seed", "step")

    def __init__(self, seed: int = 0, step: int | None = None) -> None:
        self.seed, self.step, self.number = seed, step, 0


RUN: ContextVar[Run] = ContextVar("RUN", default=Run())  # noqa: B039 - nobody changes that one
"""The run under way. A thread or context that makes many sets it once, and then changes the object: a fifth of the time
that it takes to set a variable."""


class drawing:  # noqa: N801 - a context manager: a class costs half of what a generator does, and every run enters it
    """Random operators in the block draw the numbers of `step` under `seed`."""

    __slots__ = ("_run", "_token")

    def __init__(self, seed: int, step: int) -> None:
        self._run = Run(seed, step)

    def __enter__(self) -> None:
        self._token = RUN.set(self._run)

    def __exit__(self, *error: object) -> None:
        RUN.reset(self._token)


class Draws:
    """The generators of one compiled node, a fresh one per draw."""

    def __init__(self, op: Operation) -> None:
        seed = struct.unpack("<Q", struct.pack("<d", float(op.attr("seed", 0.0))))[0]
        name = hashlib.blake2b(f"{op.id}\0{op.name}".encode(), digest_size=8).digest()
        self._key = np.array([seed, int.from_bytes(name, "little")], np.uint64)
        given = op.attr("seed")
        self._seed = given if isinstance(given, int) and 0 <= given < 1 << 32 else None
        self._run: Run | None = None
        self._number = self._drawn = 0

    def uniform(self, shape: Sequence[int]) -> HostArray:
        """Numbers in [0, 1) for the next draw. Where the node has a seed, the first draw of the first step is what
        ONNX's own definition of the operator draws with it; all others follow from the counter."""
        generator = self.next()
        run = RUN.get()
        if self._seed is not None and self._drawn == 1 and run.step in (None, 1) and not run.seed:
            return np.asarray(np.random.RandomState(self._seed).uniform(size=tuple(shape)))
        return np.asarray(generator.random(tuple(shape), np.float32))

    def next(self) -> np.random.Generator:
        """The generator of the next draw."""
        run = RUN.get()
        if run is not self._run or run.number != self._number:
            self._run, self._number, self._drawn = run, run.number, 0
        step, seed = run.step, run.seed & 0xFFFF_FFFF_FFFF_FFFF
        # the first word is the generator's own: it counts blocks of numbers within a draw
        counter = np.array([0, seed, self._drawn, 0 if step is None else step + 1], np.uint64)
        self._drawn += 1
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))


def _filled(
    op: Operation, out: TensorSpec, draw: Callable[[np.random.Generator, Sequence[Any]], HostArray]
) -> Compiled:
    draws = Draws(op)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        target = outputs[0]

        def call() -> None:
            with np.errstate(over="ignore"):
                target[...] = draw(draws.next(), inputs)

        return call

    return computed([out], bind)


def _dtype(op: Operation, default: np.dtype[Any]) -> np.dtype[Any]:
    return dtype_attribute(op, "dtype") or default


def _target(op: Operation, specs: Sequence[Spec]) -> TensorSpec:
    """What RandomX fills: its `shape` attribute, or the input's shape for RandomXLike."""
    if op.op_type.endswith("Like"):
        x = tensor(op, specs, 0)
        shape, default = x.shape, x.dtype
    else:
        shape, default = tuple(op.attr("shape", ())), np.dtype(np.float32)
    dtype = _dtype(op, default)
    if dtype not in FLOATS:
        raise UnsupportedError(f"does not draw {dtype}", op=op.id, node=op.name, operand="dtype")
    if any(d < 0 for d in shape):
        fail(op, f"{list(shape)} is no shape", "shape")
    return bounded(op, dtype, shape)


@kernel("RandomNormal", "RandomNormalLike", versions=(1, 22), portable=False, deterministic=False)
def random_normal(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Draws of a normal distribution of `mean` and standard deviation `scale`."""
    out = _target(op, specs)
    mean, scale = op.attr("mean", 0.0), op.attr("scale", 1.0)
    wide = np.float64 if out.dtype == np.float64 else np.float32
    return _filled(
        op, out, lambda generator, _: generator.standard_normal(out.shape, wide) * wide(scale) + wide(mean)
    )


@kernel("RandomUniform", "RandomUniformLike", versions=(1, 22), portable=False, deterministic=False)
def random_uniform(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Draws of a uniform distribution over [low, high)."""
    out = _target(op, specs)
    low, high = op.attr("low", 0.0), op.attr("high", 1.0)
    wide = np.float64 if out.dtype == np.float64 else np.float32
    return _filled(
        op, out, lambda generator, _: generator.random(out.shape, wide) * wide(high - low) + wide(low)
    )


@kernel("Bernoulli", versions=(15, 22), portable=False, deterministic=False)
def bernoulli(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """1 with the probability that the input gives, else 0; in the input's dtype or `dtype`."""
    x = tensor(op, specs, 0)
    dtype = _dtype(op, x.dtype)
    if dtype.kind == "O":
        raise UnsupportedError("does not draw strings", op=op.id, node=op.name, operand="dtype")
    return _filled(
        op, TensorSpec(dtype, x.shape), lambda generator, inputs: generator.random(x.shape) < inputs[0]
    )


@kernel("Multinomial", versions=(7, 22), portable=False, deterministic=False)
def multinomial(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """`sample_size` classes per row, drawn by the row's unnormalised log-probabilities."""
    x = tensor(op, specs, 0)
    size = op.attr("sample_size", 1)
    dtype = _dtype(op, np.dtype(np.int32))
    if len(x.shape) != 2 or x.shape[1] == 0 or size < 0:
        fail(op, f"needs [batch, classes] and a sample size, has {list(x.shape)} and {size}", "input")
    if dtype not in (np.int32, np.int64):
        raise UnsupportedError(f"does not draw {dtype}", op=op.id, node=op.name, operand="dtype")

    def draw(generator: np.random.Generator, inputs: Sequence[Any]) -> HostArray:
        logits = inputs[0].astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        if not all(math.isfinite(t) for t in top[:, 0].tolist()):
            fail(op, "a row holds no finite log-probability", "input")
        edges = np.exp(logits - top).cumsum(axis=1)
        points = generator.random((x.shape[0], size)) * edges[:, -1:]
        picked: HostArray = np.empty(points.shape, dtype)
        for row, edge, point in zip(picked, edges, points, strict=True):
            row[...] = edge.searchsorted(point, side="right")
        return picked

    return _filled(op, bounded(op, dtype, (x.shape[0], size)), draw)
