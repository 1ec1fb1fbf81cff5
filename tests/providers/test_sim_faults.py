"""Scripted faults: the right operation, in the right way, and scripts that cannot be meant."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.errors import DeviceError, HeteroError, MemoryLimitError, ProviderError
from hetero.providers.base import ProviderConfig
from hetero.providers.conformance_kit import bound, compute, operation, same_bits, sample
from hetero.providers.sim_faults import CRASH_STATUS, Faults
from hetero.providers.simulated import SimulatedProvider
from hetero.types import TensorSpec

SPEC = TensorSpec(np.dtype(np.float32), (3,))


def _sim(*faults: Any) -> SimulatedProvider:
    return SimulatedProvider(ProviderConfig("sim:0", (("faults", faults),)))


def _step(sim: SimulatedProvider) -> Any:
    return compute(sim, operation("Scale"), sample(3))[0]


@pytest.mark.parametrize("point", ["launch", "alloc", "upload", "download", "sync"])
@pytest.mark.parametrize(("action", "error"), [("error", DeviceError), ("memory", MemoryLimitError)])
def test_the_nth_operation_fails_and_the_device_goes_on(
    point: str, action: str, error: type[HeteroError]
) -> None:
    sim = _sim((point, 5, action))
    failures: dict[int, str] = {}
    for step in range(6):
        try:
            assert same_bits(_step(sim), sample(3) * np.float32(2))
        except error as caught:
            failures[step] = caught.message
    # One launch, upload and download a step; two allocations; two waits (compute's own, and the download's).
    assert failures == {{"alloc": 2, "sync": 2}.get(point, 4): f"scripted fault: {point} 5 of sim:0"}
    assert sim.stats()["faults"] == 1


def test_a_launch_fails_where_the_stream_runs_it_and_names_its_operation() -> None:
    sim = _sim(("launch", 1, "error"))
    call, _ = bound(sim, operation("Scale"), sim.upload(sample(3)))
    call()
    with pytest.raises(DeviceError, match="scripted fault") as caught:
        sim.synchronize()
    assert (caught.value.op, caught.value.node) == (operation("Scale").id, "node")


def test_the_launch_of_a_graph_fails_before_any_of_it_is_enqueued() -> None:
    sim = _sim(("replay", 2, "error"))
    x = sim.upload(sample(3))
    call, (y,) = bound(sim, operation("Scale"), x)
    sim.begin_capture("me", "primary")
    call()
    token = sim.end_capture()
    sim.launch(token)
    with pytest.raises(DeviceError, match="replay 2"):
        sim.launch(token)
    sim.launch(token)
    assert same_bits(sim.download(y), sample(3) * np.float32(2))


def test_a_hang_lasts_until_its_gate_is_opened() -> None:
    sim = _sim(("launch", 1, "hang"))
    got: list[Any] = []
    worker = threading.Thread(target=lambda: got.append(_step(sim)), daemon=True)
    gate = sim.gate("launch", 1)
    worker.start()
    assert gate.reached.wait(30)
    assert got == []
    gate.opened.set()
    worker.join(30)
    assert same_bits(got[0], sample(3) * np.float32(2))


def test_there_is_a_gate_only_for_a_hang_that_is_scripted() -> None:
    with pytest.raises(DeviceError, match="no hang"):
        _sim(("launch", 1, "error")).gate("launch", 1)


def test_a_crash_ends_the_process_at_once() -> None:
    code = (
        "from hetero.providers.sim_faults import Faults\n"
        "faults = Faults('sim:0', [('upload', 2, 'crash')])\n"
        "faults.at('upload')\n"
        "print('one', flush=True)\n"
        "try:\n"
        "    faults.at('upload')\n"
        "finally:\n"
        "    print('two', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (CRASH_STATUS, "one\n"), done.stderr


def test_a_fault_with_a_marker_strikes_once_over_all_incarnations(tmp_path: Path) -> None:
    script = [("alloc", 1, "error", str(tmp_path / "struck"))]
    with pytest.raises(DeviceError):
        Faults("sim:0", script).at("alloc")
    Faults("sim:0", script).at("alloc")


@pytest.mark.parametrize(
    "entry",
    [
        ("launch", 0, "error"),
        ("launch", True, "error"),
        ("launch", 1.0, "error"),
        ("launch", 1),
        ("launch", 1, "explode"),
        ("lunch", 1, "error"),
        ("launch", 1, "error", 3),
        ("launch", 1, "error", "marker", "more"),
        "launch",
        None,
    ],
)
def test_a_fault_that_cannot_be_meant_is_refused(entry: Any) -> None:
    with pytest.raises(ProviderError, match="faults of sim:0"):
        _sim(entry)


def test_two_faults_at_one_place_are_refused() -> None:
    with pytest.raises(ProviderError, match="twice"):
        _sim(("sync", 1, "error"), ("sync", 1, "hang"))
