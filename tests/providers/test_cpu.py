"""The CPU provider beyond the conformance kit: the fallback to onnx.reference, alignment, strings, the hot road."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hetero.errors import DeviceError, KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels import reference
from hetero.kernels.base import Compiled, computed, dynamic, kernel
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.providers.base import ProviderConfig
from hetero.providers.conformance_kit import bound, operation, sample
from hetero.providers.cpu import CpuProvider
from hetero.types import STRING, Spec, TensorSpec

DOMAIN = "hetero.tests.cpu"
SPEC = TensorSpec(np.dtype(np.float32), (3,))


@kernel("Broken", versions=[1], domain=DOMAIN)
def broken(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    raise IndexError("tuple index out of range")


@kernel("Contradicted", versions=[1], domain=DOMAIN)
def contradicted(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    raise KernelError("3 does not broadcast with 4")


@kernel("Picky", versions=[1], domain=DOMAIN)
def picky(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    raise UnsupportedError("not for such shapes")


@kernel("Plain", versions=[1], domain=DOMAIN, dispatch=Dispatch.LIBRARY)
def plain(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    return computed([SPEC], lambda inputs, outputs, workspace: CALL)


def CALL() -> None:  # noqa: N802  (a marker, compared by identity)
    """What Plain's bind hands out."""


@pytest.fixture
def cpu() -> CpuProvider:
    return CpuProvider(ProviderConfig("cpu:4"))


@pytest.fixture
def known_to_reference(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """onnx.reference as if it knew every operation; what it compiles."""
    compiled = dynamic(lambda inputs: (inputs[0],))
    monkeypatch.setattr(reference, "reference_supports", lambda op: None)
    monkeypatch.setattr(reference, "reference_compile", lambda op, specs: compiled)
    return compiled


def _op(op_type: str) -> Operation:
    return Operation(DOMAIN, op_type, 1, name="n1", opset=1)


def test_bind_adds_nothing_around_the_kernels_own_call(cpu: CpuProvider) -> None:
    assert cpu.bind(cpu.compile(_op("Plain"), [SPEC]), [], [], None) is CALL


def test_a_kernels_dispatch_class_is_passed_on(cpu: CpuProvider) -> None:
    assert cpu.supports(_op("Plain"), []).dispatch is Dispatch.LIBRARY


@pytest.mark.parametrize("op_type", ["If", "Loop", "Scan"])
def test_control_flow_is_native_and_left_to_the_runtime(cpu: CpuProvider, op_type: str) -> None:
    match = cpu.supports(Operation("", op_type, 21, opset=21), [])
    assert (match.ok, match.native, match.dispatch) == (True, True, Dispatch.CONTROL)


def test_an_operation_without_a_kernel_runs_through_the_reference_and_says_so(
    cpu: CpuProvider, known_to_reference: Compiled
) -> None:
    match = cpu.supports(_op("Unheard"), [])
    assert (match.ok, match.native, match.dispatch) == (True, False, Dispatch.LIBRARY)
    assert "onnx.reference" in match.reason
    assert cpu.compile(_op("Unheard"), [SPEC]) is known_to_reference
    assert cpu.stats()["reference_fallbacks"] == {f"{DOMAIN}::Unheard": f"no kernel for {DOMAIN}::Unheard-1"}


def test_a_kernel_that_declines_at_compile_time_falls_back_and_is_listed_with_its_reason(
    cpu: CpuProvider, known_to_reference: Compiled
) -> None:
    assert cpu.compile(_op("Picky"), [SPEC]) is known_to_reference
    assert cpu.stats()["reference_fallbacks"] == {f"{DOMAIN}::Picky": "not for such shapes"}


def test_where_the_reference_cannot_either_both_reasons_are_given(
    cpu: CpuProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "reference_supports", lambda op: "onnx.reference has no such thing")
    with pytest.raises(UnsupportedError, match=r"not for such shapes.*has no such thing") as caught:
        cpu.compile(_op("Picky"), [SPEC])
    assert (caught.value.op, caught.value.node, caught.value.device) == (f"{DOMAIN}::Picky", "n1", "cpu:4")
    assert not cpu.supports(_op("Unheard"), []).ok
    assert cpu.stats()["reference_fallbacks"] == {}


@pytest.mark.parametrize(
    ("op_type", "words"), [("Broken", "IndexError: tuple index out of range"), ("Contradicted", "broadcast")]
)
def test_whatever_a_kernel_raises_while_compiling_names_op_node_and_device(
    cpu: CpuProvider, op_type: str, words: str
) -> None:
    with pytest.raises(KernelError, match=words) as caught:
        cpu.compile(_op(op_type), [SPEC])
    assert (caught.value.op, caught.value.node, caught.value.device) == (
        f"{DOMAIN}::{op_type}",
        "n1",
        "cpu:4",
    )


def test_arrays_in_buffers_are_64_byte_aligned(cpu: CpuProvider) -> None:
    for nbytes in (1, 100, 5000):
        array = cpu.array(cpu.take(nbytes), TensorSpec(np.dtype(np.uint8), (nbytes,)))
        assert array.ctypes.data % 64 == 0


def test_strings_live_outside_the_buffer(cpu: CpuProvider) -> None:
    array = cpu.array(cpu.take(1), TensorSpec(STRING, (1000,)))
    array[:] = "text"
    assert set(array) == {"text"}


def test_what_cannot_be_bound_or_run_says_which_it_is(cpu: CpuProvider) -> None:
    spec = TensorSpec(np.dtype(np.float32), (3,))
    with pytest.raises(DeviceError, match="run it"):
        cpu.bind(cpu.compile(operation("Positive"), [spec]), [sample(3)], [], None)
    with pytest.raises(DeviceError, match="bind it"):
        cpu.run(cpu.compile(operation("Scale"), [spec]), [sample(3)])


def test_memory_of_empty_counts_against_the_limit_as_long_as_a_view_of_it_lives() -> None:
    cpu = CpuProvider(ProviderConfig("cpu", (("memory_limit_bytes", 4096),)))
    view = cpu.empty(TensorSpec(np.dtype(np.uint8), (4000,)))[10:20]
    with pytest.raises(MemoryLimitError):
        cpu.empty(TensorSpec(np.dtype(np.uint8), (4000,)))
    del view
    assert cpu.empty(TensorSpec(np.dtype(np.uint8), (4000,))).shape == (4000,)


def test_a_captured_graph_runs_the_very_calls_that_were_recorded(cpu: CpuProvider) -> None:
    ran: list[int] = []
    cpu.begin_capture("me", "primary")
    for i in range(5):
        cpu.record(lambda i=i: ran.append(i))  # type: ignore[misc]
    token = cpu.end_capture()
    cpu.launch(token)
    cpu.launch(token)
    assert ran == [0, 1, 2, 3, 4] * 2
    assert cpu.stats()["graph_launches"] == 2


def test_calls_behind_one_that_fails_are_not_run(cpu: CpuProvider) -> None:
    bad, _ = bound(cpu, operation("Fails"), sample(3))
    ran: list[int] = []
    cpu.begin_capture("me", "primary")
    cpu.record(bad, operation("Fails"))
    cpu.record(lambda: ran.append(1))
    token = cpu.end_capture()
    with pytest.raises(KernelError) as caught:
        cpu.launch(token)
    assert caught.value.op == operation("Fails").id
    assert ran == []


def test_threads_are_reported() -> None:
    assert CpuProvider(ProviderConfig("cpu", (("threads", 2),))).stats()["threads"] == 2
    assert CpuProvider(ProviderConfig("cpu")).stats()["threads"] is None
