"""Windows, mel weights, Fourier transforms and determinants against NumPy, peers and plain sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, UnsupportedError
from tests.kernels.harness import assert_close, check_op, run_op

RNG = np.random.default_rng(7)


def parts(numbers: Any, dtype: Any = np.float32) -> Any:
    return np.stack([numbers.real, numbers.imag], -1).astype(dtype)


def signal(*shape: int, complex_: bool = False) -> Any:
    return RNG.standard_normal((*shape, 2 if complex_ else 1)).astype(np.float32)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [0, 2, 10])
def test_windows_agree_with_a_peer(op_type: str, periodic: int, size: int) -> None:
    check_op(op_type, [np.array(size)], opset=17, periodic=periodic, output_datatype=11, atol=1e-6)


def test_a_window_of_one_sample_is_one_and_narrow_types_are_served() -> None:
    assert run_op("HannWindow", [np.array(1)], opset=17, periodic=0)[0].tolist() == [1]
    assert run_op("BlackmanWindow", [np.array(4)], opset=17, output_datatype=10)[0].dtype == np.float16
    with pytest.raises(KernelError, match="-1 is negative"):
        run_op("HannWindow", [np.array(-1)], opset=17)
    with pytest.raises(UnsupportedError, match="no strings"):
        run_op("HannWindow", [np.array(3)], opset=17, output_datatype=8)


@pytest.mark.parametrize("bins", [1, 8, 40])
def test_mel_weights_agree_with_a_peer(bins: int) -> None:
    inputs = [np.array(bins), np.array(64), np.array(8192)]
    edges = [np.array(10, np.float32), np.array(4000, np.float32)]
    check_op("MelWeightMatrix", [*inputs, *edges], opset=17, use_ort=False)


def test_mel_weights_refuse_frequencies_out_of_order() -> None:
    inputs = [np.array(v) for v in (8, 16, 8192)]
    with pytest.raises(KernelError, match="make no filters"):
        run_op("MelWeightMatrix", [*inputs, np.array(100.0), np.array(10.0)], opset=17)


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("length", [None, 4, 9])
def test_dft_is_numpys_transform(complex_: bool, inverse: int, length: int | None) -> None:
    x = signal(2, 7, 3, complex_=complex_)
    numbers = x[..., 0] + (1j * x[..., 1] if complex_ else 0)
    wanted = (np.fft.ifft if inverse else np.fft.fft)(numbers, length, axis=1)
    more = [] if length is None else [np.array(length)]
    assert_close(run_op("DFT", [x, *more], opset=17, axis=1, inverse=inverse), [parts(wanted)], atol=1e-5)
    axis = [None, np.array(1)] if length is None else [*more, np.array(-3)]
    assert_close(run_op("DFT", [x, *axis], opset=20, inverse=inverse), [parts(wanted)], atol=1e-5)


def test_the_default_axis_changed_with_version_20() -> None:
    x = signal(2, 7, 3)
    assert run_op("DFT", [x], opset=17)[0].tolist() == run_op("DFT", [x], opset=17, axis=1)[0].tolist()
    last = run_op("DFT", [x], opset=20)[0]
    assert_close([last], [parts(np.fft.fft(x[..., 0], axis=2))], atol=1e-5)


def test_onesided_transforms_and_their_inverse_are_each_others_undoing() -> None:
    x = signal(2, 8)
    (spectrum,) = run_op("DFT", [x], opset=20, onesided=1)
    assert spectrum.shape == (2, 5, 2)
    (back,) = run_op("DFT", [spectrum], opset=20, onesided=1, inverse=1)
    assert_close([back], [x], atol=1e-6)
    odd = signal(1, 7)
    (spectrum,) = run_op("DFT", [odd], opset=20, onesided=1)
    assert_close(run_op("DFT", [spectrum, np.array(7)], opset=20, onesided=1, inverse=1), [odd], atol=1e-6)


def test_half_precision_is_transformed_in_single() -> None:
    x = signal(1, 8).astype(np.float16)
    (out,) = run_op("DFT", [x], opset=20)
    wanted = parts(np.fft.fft(x[..., 0].astype(np.float32), axis=1), np.float16)
    assert_close([out], [wanted], rtol=1e-2, atol=1e-2)


def test_dft_refuses_what_is_no_signal() -> None:
    with pytest.raises(KernelError, match="must hold 1 or 2 parts"):
        run_op("DFT", [np.zeros((2, 3), np.float32)], opset=20)
    with pytest.raises(KernelError, match="holds the parts of a number"):
        run_op("DFT", [signal(2, 3), None, np.array(-1)], opset=20)
    with pytest.raises(KernelError, match="cannot transform 0 samples"):
        run_op("DFT", [signal(2, 3), np.array(0)], opset=20)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft_transforms_each_windowed_frame(onesided: int) -> None:
    x = signal(2, 40)
    weights = np.hanning(16).astype(np.float32)
    (out,) = run_op("STFT", [x, np.array(8), weights, np.array(16)], opset=17, onesided=onesided)
    frames = np.stack([x[:, at : at + 16, 0] * weights for at in range(0, 25, 8)], 1)
    wanted = (np.fft.rfft if onesided else np.fft.fft)(frames, axis=-1)
    assert_close([out], [parts(wanted)], atol=1e-5)


def test_stft_takes_its_frame_from_the_window_or_the_signal() -> None:
    x = signal(1, 12, complex_=True)
    (windowed,) = run_op("STFT", [x, np.array(4), np.ones(8, np.float32)], opset=17, onesided=0)
    assert windowed.shape == (1, 2, 8, 2)
    (whole,) = run_op("STFT", [x, np.array(4)], opset=17, onesided=0)
    numbers = x[..., 0] + 1j * x[..., 1]
    assert_close([whole], [parts(np.fft.fft(numbers))[:, None]], atol=1e-5)


def test_stft_refuses_frames_that_do_not_fit() -> None:
    x = signal(1, 12)
    with pytest.raises(KernelError, match="cannot cut frames of 13"):
        run_op("STFT", [x, np.array(4), None, np.array(13)], opset=17)
    with pytest.raises(KernelError, match="every 0"):
        run_op("STFT", [x, np.array(0), None, np.array(3)], opset=17)
    with pytest.raises(KernelError, match="a window of 4 does not suit frames of 3"):
        run_op("STFT", [x, np.array(4), np.ones(4, np.float32), np.array(3)], opset=17)


def test_det_takes_batches_singular_matrices_and_nothing() -> None:
    check_op("Det", [RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)], opset=11, rtol=1e-4)
    check_op("Det", [np.ones((3, 3), np.float32)], opset=22)
    assert run_op("Det", [np.zeros((0, 2, 2))], opset=11)[0].shape == (0,)
    assert run_op("Det", [np.zeros((0, 0))], opset=11)[0].tolist() == 1
    with pytest.raises(KernelError, match="needs square matrices"):
        run_op("Det", [np.zeros((2, 3))], opset=11)


def test_frames_of_no_power_of_two_are_as_exact_as_float32_allows() -> None:
    # onnxruntime is off by 1e-5 of the largest bin here, so it is no judge of the small ones.
    signal = np.random.default_rng(7).standard_normal((1, 4000, 1)).astype(np.float32)
    signal += 3 * np.sin(np.arange(4000, dtype=np.float32) * 0.3)[None, :, None]
    window = np.hanning(400).astype(np.float32)
    (actual,) = run_op("STFT", [signal, np.array(160), window, np.array(400)], opset=17)
    frames = np.arange(23)[:, None] * 160 + np.arange(400)
    exact = np.fft.rfft(signal[0, frames, 0].astype(np.float64) * window)
    assert np.abs(actual[0, ..., 0] + 1j * actual[0, ..., 1] - exact).max() < 1e-7 * np.abs(exact).max() * 4
