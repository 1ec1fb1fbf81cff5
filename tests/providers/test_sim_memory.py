"""Device memory that the host cannot read by mistake; poison; addresses."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import DeviceError
from hetero.providers.base import ProviderConfig
from hetero.providers.conformance_kit import bound, operation, same_bits, sample
from hetero.providers.sim_memory import POISON
from hetero.providers.simulated import SimulatedProvider
from hetero.types import STRING, SequenceValue, TensorSpec

F32 = np.dtype(np.float32)
U8 = np.dtype(np.uint8)


@pytest.fixture
def sim() -> SimulatedProvider:
    return SimulatedProvider(ProviderConfig("sim:0"))


@pytest.mark.parametrize(
    "read",
    [
        np.asarray,
        np.array,
        list,
        bool,
        float,
        int,
        complex,
        operator.index,
        np.sum,
        np.shape,
        np.ascontiguousarray,
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda x: x[0],
        lambda x: operator.setitem(x, 0, 1),
        lambda x: 1.0 in x,
        lambda x: x == 1.0,
        lambda x: x != x,
        lambda x: x < 1.0,
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: x @ x,
        lambda x: -x,
        lambda x: np.zeros(1, np.float32) + x,
        lambda x: np.add(x, x),
        lambda x: np.add(1.0, 1.0, out=x),
        lambda x: np.copyto(np.zeros(1, np.float32), x),
        lambda x: np.concatenate([x, x]),
        lambda x: np.zeros(1, np.float32).__setitem__(..., x),
        lambda x: x.__array_interface__,
        lambda x: x.__dlpack__(),
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.astype(np.float64),
    ],
)
def test_reading_device_memory_on_the_host_is_an_error(
    sim: SimulatedProvider, read: Callable[[Any], object]
) -> None:
    array = sim.upload(np.ones(1, np.float32))
    with pytest.raises(DeviceError, match="host read of device memory"):
        read(array)


def test_the_form_of_an_array_is_no_secret(sim: SimulatedProvider) -> None:
    array = sim.upload(sample(2, 3))
    assert (array.dtype, array.shape, array.strides, array.nbytes) == (F32, (2, 3), (12, 4), 24)
    assert (array.ndim, array.size, array.device) == (2, 6, "sim:0")
    assert "float32[2, 3] on sim:0" in repr(array)
    assert hash(array) == hash(array)


def test_a_sim_array_is_no_numpy_array(sim: SimulatedProvider) -> None:
    assert not isinstance(sim.upload(sample(1)), np.ndarray)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_a_fresh_float_array_reads_as_nan(sim: SimulatedProvider, dtype: Any) -> None:
    spec = TensorSpec(np.dtype(dtype), (5,))
    for array in (sim.empty(spec), sim.array(sim.take(spec.nbytes), spec)):
        assert np.isnan(sim.download(array)).all()


def test_any_other_fresh_array_reads_as_poison(sim: SimulatedProvider) -> None:
    array = sim.empty(TensorSpec(np.dtype(np.int32), (5,)))
    assert set(sim.download(array).tobytes()) == {POISON}


def test_an_array_made_again_in_a_buffer_finds_what_was_written_there(sim: SimulatedProvider) -> None:
    spec = TensorSpec(F32, (5,))
    buffer = sim.take(spec.nbytes)
    sim.copy(sim.upload(sample(5)), sim.array(buffer, spec))()
    assert same_bits(sim.download(sim.array(buffer, spec)), sample(5))


def test_freed_memory_is_poisoned(sim: SimulatedProvider) -> None:
    buffer = sim.take(64)
    memory = buffer.raw.memory
    sim.copy(sim.upload(np.zeros(64, U8)), sim.array(buffer, TensorSpec(U8, (64,))))()
    sim.synchronize()
    assert not memory.any()
    sim.give(buffer)
    sim.synchronize()
    assert set(memory.tolist()) == {POISON}


def test_memory_is_not_poisoned_where_that_is_switched_off() -> None:
    sim = SimulatedProvider(ProviderConfig("sim:0", (("poison", False),)))
    buffer = sim.take(64)
    array = sim.array(buffer, TensorSpec(U8, (64,)))
    sim.copy(sim.upload(np.zeros(64, U8)), array)()
    sim.give(buffer)
    sim.synchronize()
    assert not buffer.raw.memory.any()


def test_a_buffer_given_back_while_queued_work_uses_it_is_reused_in_stream_order(
    sim: SimulatedProvider,
) -> None:
    first = sim.take(64)
    x = sim.array(first, TensorSpec(F32, (16,)))
    sim.copy(sim.upload(sample(16)), x)()
    call, (y,) = bound(sim, operation("Scale"), x)
    call()
    sim.give(first)
    second = sim.take(64)
    assert second.raw is first.raw
    z = sim.array(second, TensorSpec(F32, (16,)))
    sim.copy(sim.upload(sample(16, seed=1)), z)()
    assert same_bits(sim.download(y), sample(16) * np.float32(2))
    assert same_bits(sim.download(z), sample(16, seed=1))


def test_using_an_array_whose_buffer_was_given_back_is_an_error_at_once(sim: SimulatedProvider) -> None:
    spec = TensorSpec(F32, (4,))
    buffer = sim.take(spec.nbytes)
    x = sim.array(buffer, spec)
    call, (y,) = bound(sim, operation("Scale"), x)
    (view,) = sim.view(sim.compile(operation("Transpose"), [spec]), [x]) or ()
    clear = sim.copy(y, x)
    sim.give(buffer)
    again = sim.take(spec.nbytes)
    for use in (call, clear, lambda: sim.download(x), lambda: sim.download(view), lambda: sim.copy(x, y)):
        with pytest.raises(DeviceError, match="use after free"):
            use()
    for op_type in ("Scale", "Transpose"):
        with pytest.raises(DeviceError, match="use after free") as caught:
            bound(sim, operation(op_type), x)
        assert caught.value.op == operation(op_type).id
    with pytest.raises(DeviceError, match="use after free"):
        sim.view(sim.compile(operation("Transpose"), [spec]), [x])
    with pytest.raises(DeviceError, match="use after free"):
        sim.run(sim.compile(operation("Positive"), [spec]), [x])
    sim.give(again)


def test_an_address_tells_moved_memory_from_the_same_memory(sim: SimulatedProvider) -> None:
    spec = TensorSpec(F32, (4,))
    one, two = sim.take(spec.nbytes), sim.take(spec.nbytes)
    first, second = sim.array(one, spec), sim.array(two, spec)
    assert first.data_ptr != second.data_ptr
    assert sim.array(one, spec).data_ptr == first.data_ptr
    sim.give(one)
    pooled = sim.take(spec.nbytes)
    assert sim.array(pooled, spec).data_ptr == first.data_ptr
    sim.give(pooled)
    sim.trim()
    assert sim.array(sim.take(spec.nbytes), spec).data_ptr not in (first.data_ptr, second.data_ptr)
    other = SimulatedProvider(ProviderConfig("sim:0"))
    assert other.empty(spec).data_ptr not in (first.data_ptr, second.data_ptr)


def test_views_share_address_memory_and_lifetime(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(64, 3))
    pointer = x.data_ptr
    (view,) = sim.view(sim.compile(operation("Transpose"), [TensorSpec(F32, (64, 3))]), [x]) or ()
    assert view.data_ptr == pointer
    live = sim.stats()["live_bytes"]
    del x
    gc.collect()
    assert sim.stats()["live_bytes"] == live
    del view
    gc.collect()
    assert sim.stats()["live_bytes"] == 0


def test_enqueued_work_keeps_alive_what_it_uses(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(16))
    call, (y,) = bound(sim, operation("Scale"), x)
    call()
    del x, call
    gc.collect()
    others = [sim.empty(TensorSpec(F32, (16,))) for _ in range(3)]
    assert same_bits(sim.download(y), sample(16) * np.float32(2))
    assert len(others) == 3


def test_arrays_that_die_while_recording_are_freed_afterwards(sim: SimulatedProvider) -> None:
    x = sim.empty(TensorSpec(F32, (16,)))
    sim.begin_capture("me", "primary")
    del x
    gc.collect()
    assert sim.stats()["live_bytes"] == 64
    sim.end_capture()
    assert sim.stats()["live_bytes"] == 0


def test_strings_and_things_that_are_no_arrays_stay_on_the_host(sim: SimulatedProvider) -> None:
    with pytest.raises(DeviceError, match="strings live on the host"):
        sim.upload(np.array(["a"], dtype=object))
    with pytest.raises(DeviceError, match="strings live on the host"):
        sim.empty(TensorSpec(STRING, (1,)))
    with pytest.raises(DeviceError, match="not a host array"):
        sim.upload(sim.upload(sample(1)))


def test_sequences_are_unwrapped_element_by_element(sim: SimulatedProvider) -> None:
    compiled = sim.compile(operation("Positive"), [TensorSpec(F32, (3,))])
    with pytest.raises(DeviceError, match="input 0, element 1 is on the host"):
        sim.run(compiled, [SequenceValue([sim.upload(sample(3)), sample(3)])])


def test_a_view_kernel_cannot_read_its_other_inputs(sim: SimulatedProvider) -> None:
    compiled = replace(
        sim.compile(operation("Transpose"), [TensorSpec(F32, (3,))]),
        view=lambda inputs: (inputs[0][: int(inputs[1])],),
    )
    with pytest.raises(DeviceError, match="host read"):
        sim.view(compiled, [sim.upload(sample(3)), sim.upload(np.array(2))])


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda inputs: (inputs[0] + 1,), "not its input's"),
        (lambda inputs: (inputs[0][1],), "float32, no view"),
    ],
    ids=["a copy", "a scalar"],
)
def test_a_view_kernel_that_returns_other_memory_is_found_out(
    sim: SimulatedProvider, view: Callable[[Any], Any], words: str
) -> None:
    compiled = replace(sim.compile(operation("Transpose"), [TensorSpec(F32, (3,))]), view=view)
    with pytest.raises(DeviceError, match=words):
        sim.view(compiled, [sim.upload(sample(3))])
