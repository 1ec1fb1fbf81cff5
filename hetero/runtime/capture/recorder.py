"""Recording: turns a warm section into graphs and seams, and keeps operators out that break a recording."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from hetero.kernels.base import Call
from hetero.program.operation import Operation
from hetero.program.program import Instruction
from hetero.providers.base import CaptureToken, Provider
from hetero.runtime.artifacts import Artifacts
from hetero.runtime.capture.captured import Captured
from hetero.runtime.capture.graph_slots import GraphSlot
from hetero.runtime.capture.reasons import SeamReason
from hetero.runtime.capture.schedule import Piece, cut


class _BrokenError(Exception):
    """The call at `at` broke the recording."""

    def __init__(self, at: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.at = at
        self.cause = cause


class Recorder:
    """Records sections of one child. Each recording is one of its `artifacts`, under whose executor the provider keeps
    the graphs: no other child reaches them.

    Memory is stable already where a recording starts: nothing is allocated or freed while it is open.
    """

    def __init__(self, provider: Provider, artifacts: Artifacts) -> None:
        self._provider = provider
        self.artifacts = artifacts
        self._owner = artifacts.identity.executor
        self._serial = itertools.count()

    def record(
        self,
        slot: GraphSlot,
        calls: Sequence[Call],
        nodes: Sequence[int],
        seams: Sequence[SeamReason | None],
        instructions: Sequence[Instruction],
    ) -> Captured:
        """Record for `slot`; nothing runs. An operator that breaks the recording is quarantined, and all is recorded
        anew without it. Whatever happens, the provider is left without an open recording."""

        def barred(k: int) -> SeamReason | None:
            known = ops[k].id in slot.quarantine
            return SeamReason.RECORDING_FAILED if known else None

        ops = [instructions[n].op for n in nodes]
        while True:
            pieces = cut(seams, barred, self._provider.shortest_segment)
            captured = Captured(slot, pieces, self._provider.discard_capture, self.artifacts)
            identity = captured.artifact.identity
            try:
                for piece in pieces:
                    self._piece(slot, captured, piece, calls, ops)
            except _BrokenError as broken:
                self._give_up(captured, str(broken))
                slot.failed_recordings += 1
                slot.quarantine[ops[broken.at].id] = str(broken.cause)
                continue
            except BaseException as error:
                self._give_up(captured, str(error))
                raise
            self.artifacts.complete(captured.artifact, identity)
            slot.recordings += 1
            slot.segments += len(captured.tokens)
            slot.captured_calls += sum(len(p) for p in pieces if p.reason is None)
            for piece in pieces:
                if piece.reason is not None:
                    slot.seams[piece.reason] += len(piece)
            return captured

    def _give_up(self, captured: Captured, reason: str) -> None:
        captured.steps.clear()  # never replayed, so not retired either
        self.artifacts.fail(captured.artifact, captured.artifact.identity, reason)
        captured.discard()

    def _piece(
        self,
        slot: GraphSlot,
        captured: Captured,
        piece: Piece,
        calls: Sequence[Call],
        ops: Sequence[Operation],
    ) -> None:
        if piece.reason is not None:
            captured.steps += calls[piece.first : piece.last]
            captured.firsts += range(piece.first, piece.last)
            return
        token = self._segment(slot, piece, calls, ops)
        captured.tokens.append(token)
        captured.steps.append(partial(self._provider.launch, token))
        captured.firsts.append(piece.first)

    def _segment(
        self, slot: GraphSlot, piece: Piece, calls: Sequence[Call], ops: Sequence[Operation]
    ) -> CaptureToken:
        provider = self._provider
        at = piece.first
        provider.begin_capture(self._owner, f"{slot.name}/{next(self._serial)}")
        try:
            for at in range(piece.first, piece.last):
                provider.record(calls[at], ops[at])
            return provider.end_capture()
        except Exception as error:  # a library under a kernel has exceptions of its own for this
            raise _BrokenError(at, error) from error
        finally:
            provider.abort_capture()  # does nothing after end_capture
