"""The simulated stream: nothing runs before it must, errors come late, and recording is strict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.errors import CaptureError, ClosedError, DeviceError, KernelError
from hetero.providers.base import ProviderConfig
from hetero.providers.conformance_kit import bound, operation, same_bits, sample
from hetero.providers.simulated import SimulatedProvider
from hetero.types import TensorSpec

SPEC = TensorSpec(np.dtype(np.float32), (4,))


def _sim(**options: Any) -> SimulatedProvider:
    return SimulatedProvider(ProviderConfig("sim:0", tuple(options.items())))


@pytest.fixture
def sim() -> SimulatedProvider:
    return _sim()


def test_a_result_is_not_there_before_the_stream_ran(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    sim.synchronize()
    call()
    assert np.isnan(y._inner).all()
    sim.synchronize()
    assert same_bits(y._inner, sample(4) * np.float32(2))


def test_an_upload_is_not_there_before_the_stream_ran(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    assert not same_bits(x._inner, sample(4))
    sim.synchronize()
    assert same_bits(x._inner, sample(4))


def test_the_stream_runs_by_itself_when_its_queue_is_full() -> None:
    sim = _sim(queue_limit=8)
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    sim.synchronize()
    for _ in range(8):
        call()
    assert np.isnan(y._inner).all()
    call()
    assert same_bits(y._inner, sample(4) * np.float32(2))
    assert sim.stats()["queued_peak"] == 9
    assert sim.stats()["queued"] == 0


def test_an_error_comes_at_the_next_wait_and_only_there(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    bad, _ = bound(sim, operation("Fails"), x)
    good, (y,) = bound(sim, operation("Scale"), x)
    bad()
    bad()
    good()
    with pytest.raises(KernelError, match="on purpose") as caught:
        sim.synchronize()
    assert (caught.value.op, caught.value.node, caught.value.device) == (
        operation("Fails").id,
        "node",
        "sim:0",
    )
    sim.synchronize()
    assert same_bits(sim.download(y), sample(4) * np.float32(2))


def test_an_error_in_a_full_queue_waits_for_the_next_wait_too() -> None:
    sim = _sim(queue_limit=1)
    bad, _ = bound(sim, operation("Fails"), sim.upload(sample(4)))
    for _ in range(5):
        bad()
    with pytest.raises(KernelError):
        sim.synchronize()


@pytest.mark.parametrize(
    "wait",
    [
        lambda sim, x: sim.download(x),
        lambda sim, x: sim.run(sim.compile(operation("Positive"), [SPEC]), [x]),
    ],
    ids=["download", "run"],
)
def test_downloads_and_data_dependent_kernels_wait_and_meet_the_error(
    sim: SimulatedProvider, wait: Callable[[SimulatedProvider, Any], object]
) -> None:
    x = sim.upload(sample(4))
    bad, _ = bound(sim, operation("Fails"), x)
    bad()
    with pytest.raises(KernelError, match="on purpose"):
        wait(sim, x)
    assert same_bits(sim.download(x), sample(4))


def test_an_error_that_is_not_ours_becomes_a_kernel_error_with_its_cause(sim: SimulatedProvider) -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Any:
        return lambda: inputs[0].reshape(3)

    compiled = replace(sim.compile(operation("Scale"), [SPEC]), bind=bind)
    sim.bind(compiled, [sim.upload(sample(4))], [sim.empty(SPEC)], None)()
    with pytest.raises(KernelError, match="ValueError") as caught:
        sim.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.op == operation("Scale").id


def test_calling_a_bound_call_while_recording_records_it(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    sim.begin_capture("me", "primary")
    call()
    sim.copy(y, x)()
    token = sim.end_capture()
    assert token.calls == 2
    assert sim.stats()["launches"] == 0
    sim.launch(token)
    sim.launch(token)
    assert same_bits(sim.download(y), sample(4) * np.float32(4))


def test_a_kernel_that_must_not_be_recorded_breaks_the_recording_with_its_reason(
    sim: SimulatedProvider,
) -> None:
    x = sim.upload(sample(4))
    compiled = replace(sim.compile(operation("Scale"), [SPEC]), capture="it reads the host")
    call = sim.bind(compiled, [x], [x], None)
    call()
    sim.begin_capture("me", "primary")
    with pytest.raises(CaptureError, match=r"Scale .*it reads the host"):
        call()
    with pytest.raises(CaptureError, match="broken by"):
        sim.end_capture()
    sim.abort_capture()
    sim.synchronize()


def test_a_graph_whose_memory_was_given_back_does_not_launch(sim: SimulatedProvider) -> None:
    buffer = sim.take(SPEC.nbytes)
    call, _ = bound(sim, operation("Scale"), sim.array(buffer, SPEC))
    sim.begin_capture("me", "primary")
    call()
    token = sim.end_capture()
    sim.give(buffer)
    with pytest.raises(DeviceError, match="use after free"):
        sim.launch(token)


def test_a_graph_keeps_alive_the_arrays_it_recorded(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    sim.begin_capture("me", "primary")
    call()
    token = sim.end_capture()
    del x, call
    live = sim.stats()["live_bytes"]
    sim.launch(token)
    assert same_bits(sim.download(y), sample(4) * np.float32(2))
    del y
    assert sim.stats()["live_bytes"] == live
    sim.discard_capture(token)
    assert sim.stats()["live_bytes"] == 0


def test_a_closed_device_drops_what_waits_and_refuses_more(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    call, _ = bound(sim, operation("Fails"), x)
    call()
    sim.close()
    for use in (call, sim.synchronize, lambda: sim.download(x), lambda: sim.upload(sample(1000))):
        with pytest.raises(ClosedError):
            use()
