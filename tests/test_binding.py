"""IO bindings: buffers of the caller's that steps read and write in place."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import InputError

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
MLP = (
    HEAD
    + "g (float[n, 4] x, float[4, 3] w) => (float[n, 3] y, float[n, 3] z) { h = MatMul(x, w) y = Tanh(h) z = Exp(y) }"
)
PROVIDERS: list[Any] = [["cpu"], ["sim:0"], [("sim:0", {"except_ops": ["Tanh"]}), "cpu"]]


def executor(text: str, providers: Sequence[Any] = ("cpu",), **options: Any) -> HeterogeneousExecutor:
    model = onnx.parser.parse_model(text)
    return HeterogeneousExecutor(model, providers, children="inline", options=RuntimeOptions(**options))


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [2, 9000])
@pytest.mark.parametrize("providers", PROVIDERS, ids=["cpu", "sim", "split"])
def test_bound_inputs_are_read_anew_and_bound_outputs_written_in_place(
    providers: list[Any], rows: int
) -> None:
    x, w, y, z = f32(rows, 4), f32(4, 3), np.zeros((rows, 3), np.float32), np.zeros((rows, 3), np.float32)
    with executor(MLP, providers) as ex, executor(MLP, providers, capture=False) as plain:
        binding = ex.io_binding()
        for name, array in (("x", x), ("w", w)):
            binding.bind_input(name, array)
        for name, array in (("y", y), ("z", z)):
            binding.bind_output(name, array)
        for seed in range(5):
            x[:] = f32(rows, 4, seed=seed)
            w[:] = f32(4, 3, seed=seed + 50)
            out = ex.run_with_binding(binding)
            assert out["y"] is y
            assert out["z"] is z
            want = plain.run({"x": x, "w": w})
            assert y.tobytes() == want["y"].tobytes()
            assert z.tobytes() == want["z"].tobytes()


def test_a_steady_bound_step_binds_nothing_and_makes_no_array() -> None:
    x, y = f32(1, 40_000), np.zeros((1, 40_000), np.float32)
    text = HEAD + "g (float[1, n] x) => (float[1, n] y) { a = Abs(x) b = Sqrt(a) c = Floor(b) y = Neg(c) }"
    with executor(text) as ex:
        binding = ex.io_binding()
        binding.bind_input("x", x)
        binding.bind_output("y", y)
        for _ in range(4):
            ex.run_with_binding(binding)
        before = ex.stats()["children"]["cpu"]
        tracemalloc.start()
        try:
            ex.run_with_binding(binding)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        after = ex.stats()["children"]["cpu"]
    assert np.array_equal(y, -np.floor(np.sqrt(np.abs(x))))
    assert peak < 20_000, "one row would be 160,000 bytes"
    for counter in ("sections_built", "volatile_steps", "kernel_misses", "contiguous_copies"):
        assert after[counter] == before[counter]
    assert before["volatile_steps"] == 0


def test_another_buffer_is_another_binding_and_both_stay_right() -> None:
    w = f32(4, 3)
    with executor(MLP) as ex:
        bindings = []
        for k in range(3):
            binding = ex.io_binding()
            x, y = f32(5, 4, seed=k), np.zeros((5, 3), np.float32)
            binding.bind_input("x", x)
            binding.bind_input("w", w)
            binding.bind_output("y", y)
            bindings.append((binding, x, y))
        for _ in range(4):
            for binding, x, y in bindings:
                y[:] = 0
                ex.run_with_binding(binding)
                assert np.allclose(y, np.tanh(x @ w), rtol=1e-5)
        binding, _, y = bindings[0]
        other = f32(5, 4, seed=9)
        binding.bind_input("x", other)
        ex.run_with_binding(binding)
        assert np.allclose(y, np.tanh(other @ w), rtol=1e-5)


def test_an_output_fills_the_front_of_a_larger_buffer_and_one_too_small_is_refused() -> None:
    with executor(MLP) as ex:
        large, small = np.full((8, 3), 7, np.float32), np.zeros((3, 3), np.float32)
        x, w = f32(5, 4), f32(4, 3)
        for buffer in (large, small):
            binding = ex.io_binding()
            binding.bind_input("x", x)
            binding.bind_input("w", w)
            binding.bind_output("y", buffer)
            if buffer is small:
                with pytest.raises(InputError, match=r"is float32\[5, 3\], its buffer float32\[3, 3\]"):
                    ex.run_with_binding(binding)
                continue
            y = ex.run_with_binding(binding)["y"]
            assert np.shares_memory(y, large)
            assert np.allclose(y, np.tanh(x @ w), rtol=1e-5)
            assert (large[5:] == 7).all()


def test_a_buffer_that_is_input_and_output_is_read_before_it_is_written() -> None:
    text = HEAD + "g (float[4] x) => (float[4] y) { r = ReduceSum(x) a = Add(x, r) y = Sub(a, x) }"
    with executor(text) as ex:
        x = np.arange(4, dtype=np.float32)
        binding = ex.io_binding()
        binding.bind_input("x", x)
        binding.bind_output("y", x)
        for total in (6, 24, 96):
            ex.run_with_binding(binding)
            assert np.array_equal(x, np.full(4, total))


def test_an_input_that_leaves_as_it_is_is_copied_into_its_buffer() -> None:
    text = HEAD + "g (float[2, 3] x) => (float[2, 3] y, float[3, 2] t) { y = Identity(x) t = Transpose(x) }"
    for stage_bytes in (0, 1 << 16):
        with executor(text, stage_bytes=stage_bytes) as ex:
            x, y, t = f32(2, 3), np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
            binding = ex.io_binding()
            binding.bind_input("x", x)
            binding.bind_output("y", y)
            binding.bind_output("t", t)
            for seed in range(3):
                x[:] = f32(2, 3, seed=seed)
                ex.run_with_binding(binding)
                assert np.array_equal(y, x)
                assert np.array_equal(t, x.T)


def test_what_cannot_be_bound_is_refused() -> None:
    with executor(MLP) as ex:
        binding = ex.io_binding()
        with pytest.raises(InputError, match="no input 'q'"):
            binding.bind_input("q", f32(1))
        with pytest.raises(InputError, match="no output 'q'"):
            binding.bind_output("q", f32(1))
        with pytest.raises(InputError, match="its buffer float64"):
            binding.bind_output("y", np.zeros((5, 3)))
        with pytest.raises(InputError, match="writable"):
            binding.bind_output("y", np.broadcast_to(np.float32(0), (5, 3)))
        with pytest.raises(InputError, match="missing"):
            ex.run_with_binding(binding)


def test_buffers_that_lie_one_after_the_other_are_no_growing_shape() -> None:
    text = HEAD + "g (float[8] x) => (float[8] y) { a = Abs(x) b = Sin(a) c = Sqrt(b) d = Cos(c) y = Neg(d) }"
    memory = np.zeros(64, np.float32)
    # From an address that ends in 0: the next ones, 4 bytes apart, differ from each other by the same last digit.
    first = next(k for k in range(16) if memory[k:].__array_interface__["data"][0] % 10 == 0)
    x = np.linspace(0, 1, 8, dtype=np.float32)
    with executor(text) as ex, executor(text) as plain:
        want = plain.run({"x": x})["y"]
        for k in range(first, first + 12):
            memory[:] = 0
            y = memory[k : k + 8]
            binding = ex.io_binding()
            binding.bind_input("x", x)
            binding.bind_output("y", y)
            ex.run_with_binding(binding)
            assert np.array_equal(y, want)
            assert not memory[:k].any(), "a buffer of an earlier step was written"
