"""The conformance kit: what every provider must do, as tests that a third party runs on its own.

```python
class TestMine(ProviderConformance):
    @pytest.fixture
    def provider(self):
        provider = MyProvider(ProviderConfig("mine:0"))
        yield provider
        provider.close()
```
It uses the contract alone, and kernels of its own domain ("hetero.conformance") written over the array module; a
provider that compiles kernels through `hetero.providers.lookup` finds them by itself.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from hetero.errors import (
    ClosedError,
    DeviceError,
    HeteroError,
    MemoryLimitError,
    ProviderError,
    UnsupportedError,
)
from hetero.program.operation import Operation
from hetero.program.program import Instruction, Port, Program
from hetero.providers.base import Buffer, Provider, ProviderConfig
from hetero.providers.conformance_capture import CaptureConformance
from hetero.providers.conformance_kit import (
    DOMAIN,
    F32,
    U8,
    bound,
    compute,
    operation,
    same_bits,
    sample,
    sibling,
)
from hetero.providers.cpu import CpuProvider
from hetero.types import DataType, HostArray, TensorSpec, TensorType, numpy_dtype, spec_of

_FLOAT = TensorType(DataType.FLOAT, (None,))
_SHAPES = ((), (0,), (3, 0, 2), (1,), (5,), (4, 3))
_STATS = (
    "pool_bytes",
    "pool_peak_bytes",
    "live_bytes",
    "uploads",
    "upload_bytes",
    "downloads",
    "download_bytes",
)


class ProviderConformance(CaptureConformance):
    """Override the `provider` fixture. Options are passed as `type(provider)(config)`."""

    # -- planning ------------------------------------------------------------------------------------------------
    def test_a_kernel_it_has_is_supported_natively(self, provider: Provider) -> None:
        match = provider.supports(operation("Scale"), [_FLOAT])
        assert match.ok
        assert match.native
        assert match.reason

    def test_an_operation_nobody_knows_is_declined_with_a_reason(self, provider: Provider) -> None:
        match = provider.supports(operation("NoSuchOperation"), [_FLOAT])
        assert not match.ok
        assert "NoSuchOperation" in match.reason

    def test_another_version_of_an_operation_is_another_operation(self, provider: Provider) -> None:
        assert not provider.supports(Operation(DOMAIN, "Scale", 2, opset=2), [_FLOAT]).ok

    def test_a_kernels_own_reason_is_passed_on(self, provider: Provider) -> None:
        match = provider.supports(operation("Declines"), [_FLOAT])
        assert not match.ok
        assert "on purpose" in match.reason

    @pytest.mark.parametrize("name", ["Scale", f"{DOMAIN}::Scale"])
    def test_except_ops_forbids_and_ops_allows_nothing_else(self, provider: Provider, name: str) -> None:
        without = sibling(provider, except_ops=frozenset({name}))
        only = sibling(provider, ops=frozenset({name}))
        try:
            assert not without.supports(operation("Scale"), [_FLOAT]).ok
            assert without.supports(operation("Twice"), [_FLOAT]).ok
            assert only.supports(operation("Scale"), [_FLOAT]).ok
            assert not only.supports(operation("Twice"), [_FLOAT]).ok
        finally:
            without.close()
            only.close()

    def test_a_body_is_looked_into(self, provider: Provider) -> None:
        def branch(op: Operation) -> Program:
            step = Instruction(op, (0,), (1,), (_FLOAT,), (False,), 0)
            return Program(
                "branch", (step,), (Port("x", 0, _FLOAT),), (), (Port("y", 1, _FLOAT),), 2, n_captures=1
            )

        def choice(op: Operation) -> Operation:
            bodies = {"then_branch": branch(operation("Scale")), "else_branch": branch(op)}
            return Operation("", "If", 25, bodies, (True,), (True,), n_captures=1, opset=25)

        types = [TensorType(DataType.BOOL, ()), _FLOAT]
        if not provider.supports(choice(operation("Twice")), types).ok:
            pytest.skip(f"{provider.name} runs no control flow")
        match = provider.supports(choice(operation("Declines")), types)
        assert not match.ok
        assert "Declines" in match.reason

    def test_an_option_it_does_not_have_is_an_error(self, provider: Provider) -> None:
        with pytest.raises(ProviderError, match="no_such_option"):
            sibling(provider, options=(("no_such_option", 1),))

    # -- kernels -------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("op_type", ["NoSuchOperation", "Declines"])
    def test_compiling_what_it_cannot_run_names_the_operation(self, provider: Provider, op_type: str) -> None:
        with pytest.raises(UnsupportedError) as caught:
            provider.compile(operation(op_type), [TensorSpec(F32, (2,))])
        assert caught.value.op == f"{DOMAIN}::{op_type}"
        assert caught.value.node == "node"

    @pytest.mark.parametrize("op_type", ["Scale", "Twice", "Transpose", "Positive"])
    @pytest.mark.parametrize("shape", _SHAPES)
    def test_results_have_the_same_bits_as_on_the_cpu(
        self, provider: Provider, op_type: str, shape: tuple[int, ...]
    ) -> None:
        if op_type == "Positive" and shape == ():
            shape = (7,)
        cpu = CpuProvider(ProviderConfig("cpu"))
        (expected,) = compute(cpu, operation(op_type), sample(*shape))
        (got,) = compute(provider, operation(op_type), sample(*shape))
        assert same_bits(got, expected)

    def test_a_bound_call_may_run_again_after_its_input_changed_in_place(self, provider: Provider) -> None:
        x = provider.upload(sample(4).copy())
        call, (y,) = bound(provider, operation("Scale"), x)
        for seed in (1, 2):
            provider.copy(provider.upload(sample(4, seed=seed)), x)()
            call()
            provider.synchronize()
            assert same_bits(np.array(provider.download(y)), sample(4, seed=seed) * np.float32(2))

    def test_an_output_may_overwrite_the_input_where_the_kernel_allows_it(self, provider: Provider) -> None:
        x = provider.upload(sample(4).copy())
        compiled = provider.compile(operation("Scale"), [TensorSpec(F32, (4,))])
        assert (0, 0) in compiled.overwrites
        provider.bind(compiled, [x], [x], None)()
        assert same_bits(self._read(provider, x), sample(4) * np.float32(2))

    def test_work_runs_in_the_order_it_was_enqueued(self, provider: Provider) -> None:
        x = provider.upload(sample(4).copy())
        expected = sample(4)
        for factor in (3, 5, 7):
            compiled = provider.compile(operation("Scale", factor=factor), [TensorSpec(F32, (4,))])
            provider.bind(compiled, [x], [x], None)()
            expected = expected * np.float32(factor)
        assert same_bits(self._read(provider, x), expected)

    def test_an_error_surfaces_by_the_next_wait_and_work_goes_on_after_it(self, provider: Provider) -> None:
        x = provider.upload(sample(4).copy())
        bad, _ = bound(provider, operation("Fails"), x)
        with pytest.raises(HeteroError, match="on purpose") as caught:
            self._call_and_wait(provider, bad)
        if not provider.is_host:
            assert caught.value.op == f"{DOMAIN}::Fails"
            assert caught.value.device == provider.name
        provider.synchronize()
        assert same_bits(compute(provider, operation("Scale"), sample(4))[0], sample(4) * np.float32(2))

    def test_operands_of_another_device_are_refused(self, provider: Provider) -> None:
        if provider.is_host:
            pytest.skip("its arrays are the host's")
        other = sibling(provider)
        try:
            compiled = provider.compile(operation("Scale"), [TensorSpec(F32, (4,))])
            y = provider.empty(TensorSpec(F32, (4,)))
            for wrong in (sample(4), other.upload(sample(4))):
                with pytest.raises(DeviceError):
                    provider.bind(compiled, [wrong], [y], None)
        finally:
            other.close()

    # -- views ---------------------------------------------------------------------------------------------------
    def test_a_view_shares_memory_and_has_the_bits_of_a_copy(self, provider: Provider) -> None:
        x = provider.upload(sample(4, 3).copy())
        t = self._transposed(provider, x)
        assert t.shape == (3, 4)
        assert provider.is_contiguous(x)
        assert not provider.is_contiguous(t)
        provider.copy(provider.upload(sample(4, 3, seed=1)), x)()
        assert same_bits(self._read(provider, t), np.ascontiguousarray(sample(4, 3, seed=1).T))

    def test_kernels_take_strided_inputs(self, provider: Provider) -> None:
        t = self._transposed(provider, provider.upload(sample(4, 3).copy()))
        call, (y,) = bound(provider, operation("Scale"), t)
        call()
        assert same_bits(self._read(provider, y), np.ascontiguousarray(sample(4, 3).T) * np.float32(2))

    def test_copy_makes_a_strided_array_contiguous(self, provider: Provider) -> None:
        t = self._transposed(provider, provider.upload(sample(4, 3).copy()))
        target = provider.empty(TensorSpec(F32, (3, 4)))
        provider.copy(t, target)()
        assert same_bits(self._read(provider, target), np.ascontiguousarray(sample(4, 3).T))

    def test_what_is_copied_into_rows_is_in_the_array(self, provider: Provider) -> None:
        data = np.arange(2 * 5 * 3, dtype=F32).reshape(2, 5, 3)
        whole = provider.empty(TensorSpec(F32, data.shape))
        provider.copy(provider.upload(data), whole)()
        rows = provider.narrow(whole, 1, 2, 4)
        assert tuple(rows.shape) == (2, 2, 3)
        assert same_bits(self._read(provider, rows), data[:, 2:4])
        provider.copy(provider.upload(np.zeros((2, 2, 3), F32)), rows)()
        data[:, 2:4] = 0
        assert same_bits(self._read(provider, whole), data)
        assert tuple(provider.narrow(whole, 1, 5, 5).shape) == (2, 0, 3)

    def test_copy_refuses_another_shape_or_dtype(self, provider: Provider) -> None:
        x = provider.upload(sample(4).copy())
        for spec in (TensorSpec(F32, (1,)), TensorSpec(np.dtype(np.float64), (4,))):
            with pytest.raises(DeviceError):
                provider.copy(x, provider.empty(spec))

    def test_a_view_keeps_its_owners_memory_alive(self, provider: Provider) -> None:
        t = self._transposed(provider, self._made(provider, sample(64, 3)))
        gc.collect()
        others = [self._made(provider, np.zeros((64, 3), np.float32)) for _ in range(8)]
        provider.synchronize()
        assert same_bits(self._read(provider, t), np.ascontiguousarray(sample(64, 3).T))
        assert len(others) == 8

    # -- memory --------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 100_000])
    def test_a_buffer_holds_what_was_asked_for(self, provider: Provider, nbytes: int) -> None:
        buffer = provider.take(nbytes)
        assert buffer.nbytes >= nbytes
        assert buffer.device == provider.name
        array = provider.array(buffer, TensorSpec(U8, (nbytes,)))
        assert array.shape == (nbytes,)
        data = np.arange(nbytes, dtype=U8)
        provider.copy(provider.upload(data), array)()
        assert same_bits(self._read(provider, array), data)
        provider.give(buffer)

    def test_live_and_pooled_bytes_are_counted(self, provider: Provider) -> None:
        before = provider.stats()["live_bytes"]
        buffers = [provider.take(1000) for _ in range(3)]
        assert provider.stats()["live_bytes"] == before + sum(b.nbytes for b in buffers)
        for buffer in buffers:
            provider.give(buffer)
        stats = provider.stats()
        assert stats["live_bytes"] == before
        assert stats["pool_peak_bytes"] >= stats["pool_bytes"] >= stats["live_bytes"]
        provider.trim()
        assert provider.stats()["pool_bytes"] == before

    def test_giving_a_buffer_back_twice_is_an_error_even_when_its_bytes_are_in_use_again(
        self, provider: Provider
    ) -> None:
        first = provider.take(1000)
        provider.give(first)
        second = provider.take(1000)
        with pytest.raises(DeviceError):
            provider.give(first)
        provider.give(second)

    def test_giving_anothers_buffer_is_an_error(self, provider: Provider) -> None:
        other = sibling(provider)
        try:
            foreign = other.take(64)
            for wrong in (foreign, Buffer(foreign.raw, 64, provider.name)):
                with pytest.raises(DeviceError):
                    provider.give(wrong)
            other.give(foreign)
        finally:
            other.close()

    def test_an_array_must_fit_a_live_buffer(self, provider: Provider) -> None:
        buffer = provider.take(64)
        with pytest.raises(DeviceError):
            provider.array(buffer, TensorSpec(U8, (buffer.nbytes + 1,)))
        provider.give(buffer)
        with pytest.raises(DeviceError):
            provider.array(buffer, TensorSpec(U8, (1,)))

    def test_the_memory_limit_holds_and_is_no_ones_end(self, provider: Provider) -> None:
        if "memory_limit_bytes" not in provider.declared_options:
            pytest.skip(f"{provider.name} has no memory limit")
        limited = sibling(provider, options=(("memory_limit_bytes", 1 << 20),))
        try:
            whole = limited.take(1 << 20)
            with pytest.raises(MemoryLimitError) as caught:
                limited.take(1 << 16)
            for part in (limited.name, str(1 << 16), str(1 << 20)):
                assert part in str(caught.value)
            with pytest.raises(MemoryLimitError):
                limited.empty(TensorSpec(U8, (1 << 16,)))
            limited.give(whole)
            for _ in range(5):
                # Each dies before the next but one is made: memory must come back with the last reference.
                array = limited.empty(TensorSpec(U8, (400_000,)))
            assert array.nbytes == 400_000
        finally:
            limited.close()

    # -- copies --------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("shape", _SHAPES)
    @pytest.mark.parametrize("dtype", [t for t in DataType if t not in (DataType.UNDEFINED, DataType.STRING)])
    def test_every_dtype_and_shape_survives_the_round_trip(
        self, provider: Provider, dtype: DataType, shape: tuple[int, ...]
    ) -> None:
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        raw = np.random.default_rng(0).integers(0, 2 if kind == np.bool_ else 256, size, dtype=U8)
        host: HostArray = raw.view(kind).reshape(shape)
        array = provider.upload(host)
        assert (array.dtype, array.shape, array.nbytes) == (host.dtype, host.shape, host.nbytes)
        assert same_bits(self._read(provider, array), host)

    def test_strided_and_read_only_host_arrays_can_be_uploaded(self, provider: Provider) -> None:
        host = sample(4, 3)
        host.flags.writeable = False
        for source in (host, host.T, host[::-2, 1:]):
            assert same_bits(self._read(provider, provider.upload(source)), np.array(source, order="C"))

    def test_a_device_has_its_own_copy_from_the_moment_upload_returns(self, provider: Provider) -> None:
        if provider.is_host:
            pytest.skip("upload hands the array itself over")
        host = sample(4)
        array = provider.upload(host)
        host[:] = 0
        assert same_bits(self._read(provider, array), sample(4))
        got = provider.download(array)
        got[:] = 0
        assert same_bits(self._read(provider, array), sample(4))

    def test_what_is_uploaded_into_an_array_arrives_in_the_order_of_the_stream(
        self, provider: Provider
    ) -> None:
        target = provider.empty(TensorSpec(F32, (4,)))
        call, (y,) = bound(provider, operation("Scale"), target)
        changing, other = sample(4).copy(), sample(4, seed=1)
        other.flags.writeable = False
        provider.upload_into(changing, target)
        changing[:] = 0
        call()
        provider.upload_into(other, target)
        assert same_bits(self._read(provider, y), sample(4) * np.float32(2))
        assert same_bits(self._read(provider, target), other)

    # -- the rest ------------------------------------------------------------------------------------------------
    def test_stats_has_the_contracts_counters(self, provider: Provider) -> None:
        compute(provider, operation("Scale"), sample(4))
        stats = provider.stats()
        for key in _STATS:
            assert isinstance(stats[key], int), key
        if not provider.is_host:
            assert (stats["uploads"], stats["upload_bytes"]) == (1, 16)
            assert (stats["downloads"], stats["download_bytes"]) == (1, 16)

    def test_closing_twice_is_harmless_and_ends_the_handing_out_of_memory(self, provider: Provider) -> None:
        other = sibling(provider)
        buffer = other.take(64)
        other.give(buffer)
        other.close()
        other.close()
        with pytest.raises(ClosedError):
            other.take(64)

    # -- helpers -------------------------------------------------------------------------------------------------
    @staticmethod
    def _read(provider: Provider, array: Any) -> HostArray:
        provider.synchronize()
        return np.array(provider.download(array), order="C")

    @staticmethod
    def _call_and_wait(provider: Provider, call: Any) -> None:
        call()
        provider.synchronize()

    @staticmethod
    def _made(provider: Provider, host: HostArray) -> Any:
        """An array that owns its memory on the device, whatever `upload` does."""
        array = provider.empty(spec_of(host))
        provider.copy(provider.upload(host), array)()
        return array

    @staticmethod
    def _transposed(provider: Provider, array: Any) -> Any:
        compiled = provider.compile(operation("Transpose"), [TensorSpec(array.dtype, array.shape)])
        views = provider.view(compiled, [array])
        assert views is not None
        return views[0]
