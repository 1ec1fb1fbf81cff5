"""Conformance: what recording, replay and tokens must do on a provider that says it can capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero.errors import CaptureError, HeteroError
from hetero.providers.base import CaptureToken, Provider
from hetero.providers.conformance_kit import (
    ConformanceKit,
    bound,
    compute,
    operation,
    same_bits,
    sample,
    sibling,
)
from hetero.types import Array, TensorSpec

_SPEC = TensorSpec(np.dtype(np.float32), (3,))
_FORBIDDEN: dict[str, Callable[[Provider, Array, Any], object]] = {
    "take": lambda p, x, buffer: p.take(64),
    "give": lambda p, x, buffer: p.give(buffer),
    "empty": lambda p, x, buffer: p.empty(_SPEC),
    "upload": lambda p, x, buffer: p.upload(sample(3)),
    "download": lambda p, x, buffer: p.download(x),
    "upload_into": lambda p, x, buffer: p.upload_into(sample(3), x),
    "synchronize": lambda p, x, buffer: p.synchronize(),
    "run": lambda p, x, buffer: p.run(p.compile(operation("Positive"), [_SPEC]), [x]),
    "begin_capture": lambda p, x, buffer: p.begin_capture("other", "primary"),
}


def _recorded(
    provider: Provider, factor: int, owner: str = "me", slot: str = "primary"
) -> tuple[CaptureToken, Array, Array]:
    """A graph of one Scale: its token, its input and its output."""
    x = provider.upload(sample(3).copy())
    call, (y,) = bound(provider, operation("Scale", factor=factor), x)
    provider.begin_capture(owner, slot)
    provider.record(call, operation("Scale", factor=factor))
    return provider.end_capture(), x, y


def _read(provider: Provider, array: Array) -> Any:
    provider.synchronize()
    return np.array(provider.download(array))


class CaptureConformance(ConformanceKit):
    """Skipped, but for the refusal itself, where `can_capture` is False."""

    @pytest.fixture
    def capturing(self, provider: Provider) -> Provider:
        if not provider.can_capture:
            pytest.skip(f"{provider.name} cannot capture")
        return provider

    def test_a_provider_that_cannot_capture_says_so(self, provider: Provider) -> None:
        if provider.can_capture:
            pytest.skip(f"{provider.name} can capture")
        with pytest.raises(CaptureError, match="cannot capture"):
            provider.begin_capture("me", "primary")

    def test_recording_does_not_run_and_launching_does(self, capturing: Provider) -> None:
        x = capturing.upload(sample(3).copy())
        call, (y,) = bound(capturing, operation("Scale", factor=3), x)
        clear = capturing.copy(capturing.upload(np.zeros(3, np.float32)), y)
        clear()
        capturing.begin_capture("me", "primary")
        capturing.record(call)
        token = capturing.end_capture()
        assert token.calls == 1
        assert not _read(capturing, y).any()
        capturing.launch(token)
        assert same_bits(_read(capturing, y), sample(3) * np.float32(3))

    def test_a_graph_reads_its_inputs_anew_at_each_launch(self, capturing: Provider) -> None:
        token, x, y = _recorded(capturing, 3)
        for seed in range(3):
            capturing.copy(capturing.upload(sample(3, seed=seed)), x)()
            capturing.launch(token)
            assert same_bits(_read(capturing, y), sample(3, seed=seed) * np.float32(3))

    def test_a_graph_runs_its_calls_in_the_order_recorded(self, capturing: Provider) -> None:
        x = capturing.upload(sample(3).copy())
        first, (y,) = bound(capturing, operation("Scale", factor=3), x)
        second, (z,) = bound(capturing, operation("Scale", factor=5), y)
        capturing.begin_capture("me", "primary")
        capturing.record(first)
        capturing.record(second)
        token = capturing.end_capture()
        capturing.launch(token)
        assert same_bits(_read(capturing, z), sample(3) * np.float32(3) * np.float32(5))

    @pytest.mark.parametrize("what", sorted(_FORBIDDEN))
    def test_what_is_forbidden_while_recording_breaks_it_until_it_is_aborted(
        self, capturing: Provider, what: str
    ) -> None:
        buffer = capturing.take(64)
        x = capturing.upload(sample(3).copy())
        call, _ = bound(capturing, operation("Scale"), x)
        capturing.begin_capture("me", "primary")
        capturing.record(call)
        with pytest.raises(CaptureError):
            _FORBIDDEN[what](capturing, x, buffer)
        with pytest.raises(CaptureError):
            capturing.record(call)
        with pytest.raises(CaptureError):
            capturing.end_capture()
        capturing.abort_capture()
        capturing.give(buffer)
        assert same_bits(compute(capturing, operation("Scale"), sample(3))[0], sample(3) * np.float32(2))

    def test_launching_while_recording_breaks_the_recording(self, capturing: Provider) -> None:
        token, _, y = _recorded(capturing, 3)
        capturing.begin_capture("me", "verify")
        with pytest.raises(CaptureError):
            capturing.launch(token)
        with pytest.raises(CaptureError):
            capturing.end_capture()
        capturing.abort_capture()
        capturing.launch(token)
        assert same_bits(_read(capturing, y), sample(3) * np.float32(3))

    def test_nothing_ends_or_records_where_nothing_began_and_abort_is_harmless(
        self, capturing: Provider
    ) -> None:
        capturing.abort_capture()
        with pytest.raises(CaptureError):
            capturing.end_capture()
        with pytest.raises(CaptureError):
            capturing.record(lambda: None)

    def test_an_aborted_recording_leaves_the_slots_graph_as_it_was(self, capturing: Provider) -> None:
        token, _, y = _recorded(capturing, 3)
        capturing.begin_capture("me", "primary")
        capturing.abort_capture()
        capturing.launch(token)
        assert same_bits(_read(capturing, y), sample(3) * np.float32(3))

    def test_slots_and_owners_do_not_disturb_each_other(self, capturing: Provider) -> None:
        graphs = [
            _recorded(capturing, factor, owner, slot)
            for factor, owner, slot in ((2, "me", "primary"), (3, "me", "verify"), (5, "you", "primary"))
        ]
        for (token, _, y), factor in zip(graphs, (2, 3, 5), strict=True):
            capturing.launch(token)
            assert same_bits(_read(capturing, y), sample(3) * np.float32(factor))

    def test_a_token_is_stale_once_its_slot_is_captured_again(self, capturing: Provider) -> None:
        stale, _, _ = _recorded(capturing, 2)
        fresh, _, y = _recorded(capturing, 3)
        with pytest.raises(CaptureError):
            capturing.launch(stale)
        capturing.discard_capture(stale)
        capturing.launch(fresh)
        assert same_bits(_read(capturing, y), sample(3) * np.float32(3))

    def test_a_discarded_graph_does_not_launch(self, capturing: Provider) -> None:
        token, _, _ = _recorded(capturing, 2)
        capturing.discard_capture(token)
        capturing.discard_capture(token)
        with pytest.raises(CaptureError):
            capturing.launch(token)

    def test_tokens_of_another_instance_and_forged_ones_are_refused(self, capturing: Provider) -> None:
        token, _, _ = _recorded(capturing, 2)
        other = sibling(capturing)
        try:
            foreign, _, _ = _recorded(other, 2)
            for wrong in (foreign, CaptureToken(token.device, token.owner, token.slot, token.calls)):
                with pytest.raises(CaptureError):
                    capturing.launch(wrong)
        finally:
            other.close()

    def test_a_failing_call_of_a_graph_is_named_and_the_provider_goes_on(self, capturing: Provider) -> None:
        x = capturing.upload(sample(3).copy())
        good, (y,) = bound(capturing, operation("Scale"), x)
        bad, _ = bound(capturing, operation("Fails"), x)
        capturing.begin_capture("me", "primary")
        capturing.record(good, operation("Scale"))
        capturing.record(bad, operation("Fails"))
        token = capturing.end_capture()
        with pytest.raises(HeteroError, match="on purpose") as caught:
            self._launch_and_wait(capturing, token)
        assert caught.value.op == operation("Fails").id
        assert caught.value.node == "node"
        assert caught.value.device == capturing.name
        good()
        assert same_bits(_read(capturing, y), sample(3) * np.float32(2))

    @staticmethod
    def _launch_and_wait(provider: Provider, token: CaptureToken) -> None:
        provider.launch(token)
        provider.synchronize()
