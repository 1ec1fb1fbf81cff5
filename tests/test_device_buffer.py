"""Device buffers: memory of the caller's on a child's device, as inputs and outputs of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero import HeterogeneousExecutor
from hetero.errors import InputError
from tests.test_binding import HEAD, MLP, executor, f32

SPLIT: list[Any] = [("sim:0", {"except_ops": ["Exp"]}), "cpu"]


def memory(ex: HeterogeneousExecutor, name: str = "sim:0") -> dict[str, Any]:
    found: dict[str, Any] = ex.stats()["children"][name]["memory"]
    return found


def check_steps(ex: HeterogeneousExecutor) -> None:
    """Steps of |x| ** 0.5 on sim:0, whose input and output stay there."""
    x, y = ex.device_buffer("sim:0", (500, 4)), ex.device_buffer("sim:0", (500, 4))
    binding = ex.io_binding()
    binding.bind_input("x", x)
    binding.bind_output("y", y)
    for seed in range(4):  # built, recorded, replayed
        value = f32(500, 4, seed=seed)
        x.write(value)
        before = memory(ex)
        out = ex.run_with_binding(binding)
        after = memory(ex)
        assert after["downloads"] == before["downloads"]
        assert after["upload_bytes"] == before["upload_bytes"]
        assert out["y"].shape == (500, 4)
        assert np.array_equal(y.read(), np.sqrt(np.abs(value)))


ROOT = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { a = Abs(x) y = Sqrt(a) }"


def test_steps_read_and_write_device_memory_and_nothing_crosses_the_host() -> None:
    with executor(ROOT, ["sim:0"]) as ex:
        check_steps(ex)


def test_the_output_of_one_step_is_the_input_of_the_next_on_the_device() -> None:
    text = HEAD + "g (float[4] x) => (float[4] y) { y = Add(x, x) }"
    with executor(text, ["sim:0"]) as ex:
        here = ex.device_buffer("sim:0", (4,))
        here.write(np.ones(4, np.float32))
        binding = ex.io_binding()
        binding.bind_input("x", here)
        binding.bind_output("y", here)
        for _ in range(10):
            ex.run_with_binding(binding)
        assert here.read().tolist() == [1024] * 4


def test_a_larger_buffer_gives_and_takes_its_front() -> None:
    with executor(MLP, ["sim:0"]) as ex, executor(MLP, ["sim:0"]) as plain:
        x, y = ex.device_buffer("sim:0", (9, 4)), ex.device_buffer("sim:0", (8, 3))
        w = f32(4, 3, seed=3)
        for rows in (5, 8, 2):
            binding = ex.io_binding()
            value = f32(rows, 4, seed=rows)
            part = x.front(rows, 4)
            part.write(value)
            binding.bind_input("x", part)
            binding.bind_input("w", w)
            binding.bind_output("y", y)
            out = ex.run_with_binding(binding)
            want = plain.run({"x": value, "w": w})["y"]
            assert out["y"].shape == (rows, 3)
            assert out["y"].read().tobytes() == want.tobytes()
        binding.bind_input("x", x)
        with pytest.raises(InputError, match=r"output 'y' is \[9, 3\], its device buffer \[8, 3\]"):
            ex.run_with_binding(binding)


def test_host_and_device_buffers_go_together_and_with_a_split() -> None:
    w, z = f32(4, 3), np.zeros((6, 3), np.float32)
    with executor(MLP, SPLIT) as ex, executor(MLP, SPLIT) as plain:
        x, y = ex.device_buffer("sim:0", (6, 4)), ex.device_buffer("sim:0", (6, 3))
        binding = ex.io_binding()
        binding.bind_input("x", x)
        binding.bind_input("w", w)
        binding.bind_output("y", y)
        binding.bind_output("z", z)
        for seed in range(4):
            x.write(f32(6, 4, seed=seed))
            out = ex.run_with_binding(binding)
            want = plain.run({"x": f32(6, 4, seed=seed), "w": w})
            assert out["z"] is z
            assert z.tobytes() == want["z"].tobytes()
            assert y.read().tobytes() == want["y"].tobytes()


def test_state_and_device_buffers_go_together() -> None:
    text = HEAD + "g (float[4] x, float[4] s) => (float[4] t, float[4] y) { t = Add(x, s) y = Neg(t) }"
    with executor(text, ["sim:0"]) as ex:
        ex.bind_state({"s": "t"})
        x, y = ex.device_buffer("sim:0", (4,)), ex.device_buffer("sim:0", (4,))
        x.write(np.ones(4, np.float32))
        binding = ex.io_binding()
        binding.bind_input("x", x)
        binding.bind_output("y", y)
        for k in range(4):
            ex.run_with_binding(binding)
            assert y.read().tolist() == [-k - 1.0] * 4


def test_what_cannot_be_bound_is_refused_by_name() -> None:
    with executor(MLP, SPLIT) as ex:
        buffer, there = ex.device_buffer("sim:0", (6, 4)), ex.device_buffer("cpu", (6, 3))
        binding = ex.io_binding()
        with pytest.raises(InputError, match="output 'z' belongs to cpu, its device buffer to sim:0"):
            binding.bind_output("z", ex.device_buffer("sim:0", (6, 3)))
        with pytest.raises(InputError, match="input 'x' belongs to sim:0, its device buffer to cpu"):
            binding.bind_input("x", there)
        with pytest.raises(InputError, match=r"input 'x' is .*, its buffer float64\[6, 4\]"):
            binding.bind_input("x", ex.device_buffer("sim:0", (6, 4), np.float64))
        with pytest.raises(InputError, match="no child 'sim:7'"):
            ex.device_buffer("sim:7", (2,))
        with pytest.raises(InputError, match="must be float32"):
            buffer.write(np.zeros((6, 4)))
        with pytest.raises(InputError, match="is not within the buffer's"):
            buffer.front(7, 4)
        binding.bind_input("x", ex.device_buffer("sim:0", (6, 5)))
        binding.bind_input("w", f32(4, 3))
        binding.bind_output("y", ex.device_buffer("sim:0", (6, 3)))
        with pytest.raises(InputError, match="axis 1 must be 4"):
            ex.run_with_binding(binding)


def test_a_closed_buffer_is_free_and_using_it_says_so() -> None:
    with executor(MLP, ["sim:0"]) as ex:
        x = ex.device_buffer("sim:0", (500, 4))
        assert ex.stats()["children"]["sim:0"]["device_buffer_bytes"] == 8000
        part = x.front(2, 4)
        x.close()
        x.close()
        assert ex.stats()["children"]["sim:0"]["device_buffer_bytes"] == 0
        with pytest.raises(InputError, match="device buffer is not there"):
            part.read()
        ex.device_buffer("sim:0", (1, 4))
        binding = ex.io_binding()
        binding.bind_input("x", part)
        binding.bind_input("w", f32(4, 3))
        binding.bind_output("y", np.zeros((2, 3), np.float32))
        with pytest.raises(InputError, match="device buffer is not there"):
            ex.run_with_binding(binding)
