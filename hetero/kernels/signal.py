"""Signal operators: window functions, mel weights, DFT, STFT; and Det, which is one library call like them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, given, kernel, tensor
from hetero.kernels.limits import bounded
from hetero.kernels.operands import axis_of, dtype_attribute, fail, host_reason, known_scalar
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import HostArray, Spec, TensorSpec

COSINES = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""a0 - a1·cos(2πn/N) + a2·cos(4πn/N), by operator."""


def _output_dtype(op: Operation) -> np.dtype[Any]:
    dtype = dtype_attribute(op, "output_datatype") or np.dtype(np.float32)
    if dtype.kind == "O":
        raise UnsupportedError("yields no strings", op=op.id, node=op.name, operand="output_datatype")
    return dtype


def _known(out: TensorSpec, value: HostArray, xp: Any) -> Compiled:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        return partial(xp.copyto, outputs[0], xp.asarray(value))

    return computed([out], bind)


def window(coefficients: Sequence[float], size: int, periodic: bool) -> HostArray:
    """A cosine window of `size` float64 samples; a symmetric window of one sample is 1."""
    period = size if periodic else size - 1
    if period <= 0:
        return np.ones(size)
    phase = np.arange(size) * (2 * math.pi / period)
    total = np.zeros(size)
    for i, a in enumerate(coefficients):
        total += (-1) ** i * a * np.cos(i * phase)
    return total


@kernel("HannWindow", "HammingWindow", "BlackmanWindow", versions=(17,), values=(0,))
def window_function(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """A window of `size` samples, periodic by default."""
    size = int(known_scalar(op, specs, 0, "size"))
    if size < 0:
        fail(op, f"{size} is negative", "size")
    out = bounded(op, _output_dtype(op), (size,))
    value = window(COSINES[op.op_type], size, bool(op.attr("periodic", 1)))
    return _known(out, value.astype(out.dtype), xp)


def mel_weights(bins: int, dft_length: int, sample_rate: int, low_hz: float, high_hz: float) -> HostArray:
    """Triangular filters [dft_length // 2 + 1, bins] with peak 1, evenly spaced in mel = 2595·log10(1 + f/700)."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (low_hz, high_hz))
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = ((dft_length + 1) * hertz // sample_rate).astype(np.int64)
    rows = np.arange(dft_length // 2 + 1)
    weights = np.zeros((len(rows), bins))
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rising, falling = (rows >= left) & (rows <= centre), (rows >= centre) & (rows < right)
        weights[rising, i] = 1 if left == centre else (rows[rising] - left) / (centre - left)
        if right > centre:
            weights[falling, i] = (right - rows[falling]) / (right - centre)
    return weights


@kernel("MelWeightMatrix", versions=(17,), values=(0, 1, 2, 3, 4))
def mel_weight_matrix(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The matrix that turns spectrogram bins into mel bins."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (known_scalar(op, specs, i, name) for i, name in enumerate(names))
    if bins < 0 or length < 0 or rate <= 0 or not 0 <= low <= high <= rate:
        fail(op, f"{bins} bins of {length} at {rate} Hz from {low} to {high} Hz make no filters")
    out = bounded(op, _output_dtype(op), (length // 2 + 1, bins))
    return _known(out, mel_weights(bins, length, rate, low, high).astype(out.dtype), xp)


def _wide(dtype: np.dtype[Any]) -> tuple[type[Any], type[Any]]:
    """The real and complex types to compute in."""
    return (np.float64, np.complex128) if dtype == np.float64 else (np.float32, np.complex64)


def _signal(op: Operation, x: TensorSpec) -> bool:
    """Whether it is complex. Raises: KernelError unless the last axis is [real] or [real, imaginary]."""
    if len(x.shape) < 2 or x.shape[-1] not in (1, 2):
        fail(op, f"the last axis of {list(x.shape)} must hold 1 or 2 parts", "input")
    return x.shape[-1] == 2


def _joined(x: Any, dtype: np.dtype[Any]) -> Any:
    """[…, 1] or [real, imaginary] parts as numbers, without the last axis."""
    wide, compound = _wide(dtype)
    if x.shape[-1] == 1:
        return x[..., 0].astype(wide, copy=False)
    numbers = x[..., 1].astype(compound)
    numbers *= compound(1j)
    numbers += x[..., 0].astype(wide, copy=False)
    return numbers


@kernel("DFT", versions=(17, 20), values=(1, 2), dispatch=Dispatch.LIBRARY)
def dft(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The discrete Fourier transform along `axis`: an attribute in 17 (default 1), an input since 20 (-2)."""
    x = tensor(op, specs, 0)
    _signal(op, x)
    rank = len(x.shape)
    axis = op.attr("axis", 1) if op.version < 20 else known_scalar(op, specs, 2, "axis")
    axis = axis_of(op, -2 if axis is None else int(axis), rank)
    if axis == rank - 1:
        fail(op, f"axis {axis} holds the parts of a number", "axis")
    inverse, onesided = bool(op.attr("inverse", 0)), bool(op.attr("onesided", 0))
    length = known_scalar(op, specs, 1, "dft_length")
    if length is None:
        length = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    length = int(length)
    if length < 1:
        fail(op, f"cannot transform {length} samples", "dft_length")
    extent = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if inverse and onesided else 2
    out = bounded(op, x.dtype, (*x.shape[:axis], extent, *x.shape[axis + 1 : -1], parts))
    kept = (*(slice(None),) * axis, slice(0, extent))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, target = inputs[0], outputs[0]
        real = x.shape[-1] == 1
        if inverse:
            transform = xp.fft.irfft if onesided else xp.fft.ifft
        else:
            transform = xp.fft.rfft if onesided and real else xp.fft.fft

        def call() -> None:
            result = transform(_joined(source, x.dtype), length, axis)
            if parts == 1:
                target[..., 0] = result
            else:
                target[..., 0], target[..., 1] = result.real[kept], result.imag[kept]

        return call

    return computed([out], bind, capture=host_reason(xp, "the FFT library plans and allocates"))


@kernel("STFT", versions=(17,), values=(1, 3), dispatch=Dispatch.LIBRARY)
def stft(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """[batch, frames, bins, 2]: the transform of each windowed frame of a signal [batch, length, 1 or 2].

    Exporters also write real signals as [batch, length], which onnxruntime takes.
    """
    x, shape = tensor(op, specs, 0), given(specs, 2)
    flat = len(x.shape) == 2
    is_complex = not flat and _signal(op, x)
    if len(x.shape) not in (2, 3):
        fail(op, f"must be [batch, length, parts], has shape {list(x.shape)}", "signal")
    step = int(known_scalar(op, specs, 1, "frame_step") or 0)
    wanted = known_scalar(op, specs, 3, "frame_length")
    if shape is not None and len(shape.shape) != 1:
        fail(op, f"must have one axis, has shape {list(shape.shape)}", "window")
    length = int(wanted) if wanted is not None else x.shape[1] if shape is None else shape.shape[0]
    if shape is not None and shape.shape[0] != length:
        fail(op, f"a window of {shape.shape[0]} does not suit frames of {length}", "window")
    if step < 1 or not 1 <= length <= x.shape[1]:
        fail(op, f"cannot cut frames of {length} every {step} from {x.shape[1]} samples", "frame_length")
    onesided = bool(op.attr("onesided", 1))
    frames = (x.shape[1] - length) // step + 1
    bins = length // 2 + 1 if onesided else length
    out = bounded(op, x.dtype, (x.shape[0], frames, bins, 2))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, target = inputs[0], outputs[0]
        weights = None if shape is None else inputs[2]
        at = xp.arange(frames)[:, None] * step + xp.arange(length)
        transform = xp.fft.rfft if onesided and not is_complex else xp.fft.fft

        def call() -> None:
            cut = _joined(source[..., None] if flat else source, x.dtype)[:, at]
            if weights is not None:
                cut *= weights.astype(_wide(x.dtype)[0], copy=False)
            result = transform(cut, length, 2)
            target[..., 0], target[..., 1] = result.real[..., :bins], result.imag[..., :bins]

        return call

    return computed([out], bind, capture=host_reason(xp, "the FFT library plans and allocates"))


@kernel("Det", versions=(11, 22), dispatch=Dispatch.LIBRARY)
def det(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """The determinants of a batch of square matrices."""
    x = tensor(op, specs, 0)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        fail(op, f"needs square matrices, has shape {list(x.shape)}", "X")
    wide = _wide(x.dtype)[0]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, target = inputs[0], outputs[0]

        def call() -> None:
            with np.errstate(all="ignore"):
                target[...] = xp.linalg.det(source.astype(wide, copy=False))

        return call

    return computed(
        [TensorSpec(x.dtype, x.shape[:-2])], bind, capture=host_reason(xp, "the solver allocates")
    )
