"""What the conformance tests stand on: kernels of their own domain, and a road from host arrays through a provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.base import Compiled, computed, dynamic, kernel, tensor, viewed
from hetero.program.operation import Operation
from hetero.providers.base import Provider
from hetero.types import Array, HostArray, Spec, TensorSpec, ValueType

DOMAIN = "hetero.conformance"
F32 = np.dtype(np.float32)
U8 = np.dtype(np.uint8)


@kernel("Scale", versions=[1], domain=DOMAIN)
def scale(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """y = factor · x, possibly in place."""
    x = tensor(op, specs, 0)
    factor = x.dtype.type(op.attr("factor", 2))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
        return lambda: xp.multiply(inputs[0], factor, out=outputs[0])

    return computed([TensorSpec(x.dtype, x.shape)], bind, overwrites=[(0, 0)])


@kernel("Twice", versions=[1], domain=DOMAIN)
def twice(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """y = x + x, by way of the workspace; x must be contiguous."""
    x = tensor(op, specs, 0)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
        scratch = workspace[: x.nbytes].view(x.dtype).reshape(x.shape)

        def call() -> None:
            xp.add(inputs[0], inputs[0], out=scratch)
            outputs[0][...] = scratch

        return call

    return computed([TensorSpec(x.dtype, x.shape)], bind, contiguous=[0], workspace_bytes=max(1, x.nbytes))


@kernel("Transpose", versions=[1], domain=DOMAIN)
def transpose(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """y = xᵀ: a view, or a copy where bound."""
    x = tensor(op, specs, 0)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
        return lambda: xp.copyto(outputs[0], inputs[0].T)

    return viewed([TensorSpec(x.dtype, x.shape[::-1])], lambda inputs: (inputs[0].T,), bind)


@kernel("Positive", versions=[1], domain=DOMAIN)
def positive(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The elements above zero: how many depends on the data."""
    return dynamic(lambda inputs: (inputs[0][inputs[0] > 0],))


@kernel("Fails", versions=[1], domain=DOMAIN)
def fails(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Compiles and binds, and fails whenever it is run."""
    x = tensor(op, specs, 0)

    def call() -> None:
        raise KernelError("it fails on purpose")

    return computed([TensorSpec(x.dtype, x.shape)], lambda inputs, outputs, workspace: call)


def _declined(op: Operation, types: Sequence[ValueType | None]) -> str:
    return "it declines on purpose"


@kernel("Declines", versions=[1], domain=DOMAIN, check=_declined)
def declines(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """Takes nothing, neither when planning nor when compiling."""
    raise UnsupportedError("it declines on purpose")


def operation(op_type: str, **attributes: Any) -> Operation:
    """An operation of the kit's domain, on a node named "node"."""
    return Operation(DOMAIN, op_type, 1, attributes, present_inputs=(True,), name="node", opset=1)


def sample(*shape: int, seed: int = 0) -> HostArray:
    """Random float32 of both signs."""
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def same_bits(a: HostArray, b: HostArray) -> bool:
    """Whether dtype, shape and every byte agree (NaNs too)."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def sibling(provider: Provider, **changes: Any) -> Provider:
    """Another instance of the same class; `changes` replace fields of its config."""
    return type(provider)(replace(provider.config, **changes))


def bound(provider: Provider, op: Operation, *inputs: Array) -> tuple[Any, list[Array]]:
    """`op` compiled and bound over device arrays: the call, and its fresh outputs."""
    compiled = provider.compile(op, [TensorSpec(x.dtype, x.shape) for x in inputs])
    outputs = [provider.empty(s) for s in compiled.outputs if isinstance(s, TensorSpec)]
    workspace = None
    if compiled.workspace_bytes:
        workspace = provider.empty(TensorSpec(U8, (compiled.workspace_bytes,)))
    return provider.bind(compiled, inputs, outputs, workspace), outputs


def compute(provider: Provider, op: Operation, *inputs: HostArray) -> list[HostArray]:
    """`op` over host arrays: up, run, down (copied, so that nothing of the provider is held)."""
    arrays = [provider.upload(x) for x in inputs]
    compiled = provider.compile(op, [TensorSpec(x.dtype, x.shape) for x in arrays])
    if compiled.run is not None:
        outputs = list(provider.run(compiled, arrays))
    else:
        call, outputs = bound(provider, op, *arrays)
        call()
    provider.synchronize()
    return [np.array(provider.download(y)) for y in outputs]


class ConformanceKit:
    """Holds the fixture that a provider's tests override."""

    @pytest.fixture
    def provider(self) -> Iterator[Provider]:
        """The instance under test; override it, and close the instance after the yield."""
        raise pytest.UsageError("override the provider fixture of ProviderConformance")
