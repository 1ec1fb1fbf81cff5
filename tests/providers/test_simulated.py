"""The simulated provider: what it declines, whose arrays it takes, how operands must look, what the link costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.errors import DeviceError, KernelError, UnsupportedError
from hetero.kernels.base import Compiled, computed, dynamic, kernel
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.providers.base import ProviderConfig
from hetero.providers.conformance_kit import bound, operation, same_bits, sample
from hetero.providers.simulated import SimulatedProvider
from hetero.types import (
    STRING,
    DataType,
    OptionalType,
    SequenceType,
    SequenceValue,
    Spec,
    TensorSpec,
    TensorType,
    ValueType,
)

DOMAIN = "hetero.tests.sim"
SPEC = TensorSpec(np.dtype(np.float32), (4,))
WORDS = TensorType(DataType.STRING, (None,))


@kernel("HostOnly", versions=[1], domain=DOMAIN, portable=False)
def host_only(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    return dynamic(lambda inputs: (inputs[0],))


@kernel("Spell", versions=[1], domain=DOMAIN)
def spell(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    return computed([TensorSpec(STRING, (1,))], lambda inputs, outputs, workspace: lambda: None)


@kernel("Pair", versions=[1], domain=DOMAIN)
def pair(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    return dynamic(lambda inputs: (SequenceValue([inputs[0], inputs[1]]), None, inputs[0] + inputs[1]))


@kernel("Second", versions=[1], domain=DOMAIN)
def second(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    return dynamic(lambda inputs: (inputs[0][1],))


def _op(op_type: str, **attributes: Any) -> Operation:
    return Operation(DOMAIN, op_type, 1, attributes, name="n1", opset=1)


@pytest.fixture
def sim() -> SimulatedProvider:
    return SimulatedProvider(ProviderConfig("sim:0"))


@pytest.mark.parametrize("op_type", ["If", "Loop", "Scan"])
def test_control_flow_is_native_and_left_to_the_runtime(sim: SimulatedProvider, op_type: str) -> None:
    match = sim.supports(Operation("", op_type, 21, opset=21), [])
    assert (match.ok, match.native, match.dispatch) == (True, True, Dispatch.CONTROL)


@pytest.mark.parametrize(
    ("op", "types", "words"),
    [
        (_op("HostOnly"), [], "HostOnly runs on the host only"),
        (_op("Unheard"), [], "no kernel for hetero.tests.sim::Unheard-1"),
        (operation("Declines"), [], "it declines on purpose"),
        (operation("Scale"), [WORDS], "input 0 holds strings"),
        (_op("Second"), [SequenceType(WORDS)], "input 0 holds strings"),
        (_op("Second"), [None, OptionalType(SequenceType(WORDS))], "input 1 holds strings"),
        (_op("Second", to=int(DataType.STRING)), [], "attribute to makes strings"),
        (_op("Second", value=np.array(["a"], dtype=object)), [], "attribute value makes strings"),
        (_op("Second", values_strings=("a",)), [], "attribute values_strings makes strings"),
    ],
)
def test_what_it_declines_has_a_reason(
    sim: SimulatedProvider, op: Operation, types: list[ValueType | None], words: str
) -> None:
    match = sim.supports(op, types)
    assert not match.ok
    assert words in match.reason


def test_types_that_are_not_known_do_not_count_against_an_operation(sim: SimulatedProvider) -> None:
    assert sim.supports(operation("Scale"), [None]).ok
    assert sim.supports(operation("Scale"), [TensorType(None)]).ok


@pytest.mark.parametrize(
    ("op", "spec", "words"),
    [
        (_op("HostOnly"), SPEC, "host only"),
        (_op("Unheard"), SPEC, "no kernel"),
        (_op("Spell"), SPEC, "strings live on the host only"),
        (_op("Second"), TensorSpec(STRING, (4,)), "strings live on the host only"),
    ],
)
def test_compiling_what_it_declines_is_an_error(
    sim: SimulatedProvider, op: Operation, spec: TensorSpec, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        sim.compile(op, [spec])
    assert (caught.value.op, caught.value.node, caught.value.device) == (op.id, "n1", "sim:0")


def test_operands_of_the_host_or_of_another_device_are_refused_by_both_names(sim: SimulatedProvider) -> None:
    other = SimulatedProvider(ProviderConfig("sim:1"))
    compiled = sim.compile(operation("Scale"), [SPEC])
    y = sim.empty(SPEC)
    with pytest.raises(DeviceError, match=r"input 0 is on the host \(ndarray\), but sim:0"):
        sim.bind(compiled, [sample(4)], [y], None)
    with pytest.raises(DeviceError, match="input 0 is on sim:1, but sim:0"):
        sim.bind(compiled, [other.upload(sample(4))], [y], None)
    with pytest.raises(DeviceError, match="output 0 is on the host"):
        sim.bind(compiled, [y], [sample(4)], None)
    with pytest.raises(DeviceError, match="workspace is on the host"):
        sim.bind(compiled, [y], [y], np.zeros(4, np.uint8))
    for use in (sim.download, sim.is_contiguous, lambda x: sim.copy(x, y), lambda x: sim.copy(y, x)):
        for wrong in (sample(4), other.upload(sample(4))):
            with pytest.raises(DeviceError, match=r"(on the host|on sim:1).*, but sim:0"):
                use(wrong)


def _constant() -> Any:
    host = sample(4)
    host.flags.writeable = False
    return host


def test_nothing_can_write_a_constant(sim: SimulatedProvider) -> None:
    def bind(inputs: Any, outputs: Any, workspace: Any) -> Any:
        return lambda: inputs[0].fill(0)

    compiled = sim.compile(operation("Scale"), [SPEC])
    x, y = sim.upload(_constant()), sim.empty(SPEC)
    (view,) = sim.view(sim.compile(operation("Transpose"), [SPEC]), [x]) or ()
    for target in (x, view):
        with pytest.raises(DeviceError, match="output 0 is a constant"):
            sim.bind(compiled, [y], [target], None)
        with pytest.raises(DeviceError, match="target is a constant"):
            sim.copy(y, target)
        with pytest.raises(DeviceError, match="target is a constant"):
            sim.upload_into(sample(4), target)
    sim.bind(replace(compiled, bind=bind), [x], [y], None)()
    with pytest.raises(KernelError, match="read-only"):
        sim.synchronize()
    assert same_bits(sim.download(x), sample(4))


def test_uploading_into_an_array_takes_no_memory_and_wants_its_form(sim: SimulatedProvider) -> None:
    target = sim.empty(SPEC)
    before = sim.stats()
    sim.upload_into(sample(4), target)
    assert sim.stats()["live_bytes"] == before["live_bytes"]
    assert sim.stats()["uploads"] == before["uploads"] + 1
    with pytest.raises(DeviceError, match=r"float32\[3\] does not fit a target of float32\[4\]"):
        sim.upload_into(sample(3), target)


def test_operands_must_be_what_the_compiled_kernel_asks_for(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4, 4))
    (strided,) = sim.view(sim.compile(operation("Transpose"), [x.spec]), [x]) or ()
    twice = sim.compile(operation("Twice"), [x.spec])
    y = sim.empty(x.spec)
    scratch = sim.empty(TensorSpec(np.dtype(np.uint8), (64,)))
    sim.bind(twice, [x], [y], scratch)()
    sim.synchronize()
    for inputs, outputs, workspace, words in (
        ([strided], [y], scratch, "input 0 must be contiguous"),
        ([x], [strided], scratch, "output 0 must be contiguous"),
        ([x], [sim.empty(SPEC)], scratch, r"output 0 must be float32\[4, 4\], not float32\[4\]"),
        ([x], [y], None, "a workspace of 64 bytes"),
    ):
        with pytest.raises(DeviceError, match=words) as caught:
            sim.bind(twice, inputs, outputs, workspace)
        assert caught.value.op == operation("Twice").id


def test_a_kernels_bind_can_look_at_constants_and_at_nothing_else(sim: SimulatedProvider) -> None:
    seen: list[Any] = []

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Any:
        seen.append((inputs[0].flags.writeable, same_bits(inputs[0].copy(), sample(4))))
        return lambda: None

    compiled = replace(sim.compile(operation("Scale"), [SPEC]), bind=bind)
    bad, _ = bound(sim, operation("Fails"), sim.upload(sample(4)))
    bad()
    for host in (sample(4), _constant()):
        sim.bind(compiled, [sim.upload(host)], [sim.empty(SPEC)], None)
    assert seen == [(True, False), (False, True)]
    with pytest.raises(KernelError, match="on purpose"):
        sim.synchronize()


def test_sequences_hold_handles_of_device_arrays(sim: SimulatedProvider) -> None:
    a, b = sim.upload(sample(4)), sim.upload(sample(4, seed=1))
    sequence, nothing, total = sim.run(sim.compile(_op("Pair"), [SPEC, SPEC]), [a, b])
    assert sequence.elements == (a, b)
    assert nothing is None
    assert same_bits(sim.download(total), sample(4) + sample(4, seed=1))
    (element,) = sim.run(sim.compile(_op("Second"), [SPEC]), [sequence])
    assert element is b


def test_the_link_takes_its_time_for_each_copy_by_the_clock_it_was_given() -> None:
    slept: list[float] = []
    sim = SimulatedProvider(ProviderConfig("sim:0", (("link_latency_s", 0.25),)), sleep=slept.append)
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    call()
    sim.download(y)
    assert slept == [0.25, 0.25]
    assert sim.stats()["link_s"] == 0.5


def test_stats_count_what_was_done(sim: SimulatedProvider) -> None:
    x = sim.upload(sample(4))
    call, (y,) = bound(sim, operation("Scale"), x)
    for _ in range(3):
        call()
    sim.download(y)
    stats = sim.stats()
    assert (stats["launches"], stats["syncs"], stats["queued"]) == (3, 1, 0)
    assert (stats["uploads"], stats["upload_bytes"]) == (1, 16)
    assert (stats["downloads"], stats["download_bytes"]) == (1, 16)
    assert stats["live_bytes"] == 128
