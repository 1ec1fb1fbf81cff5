"""Sequences in progress in one model: run new tokens through it, look at their logits, go back."""

from __future__ import annotations

from hetero.decode.roles import LOGITS, Roles
from hetero.decode.state import Executor, StateStore
from hetero.errors import KernelError
from hetero.types import HostArray


class Context:
    """Sequences of equal length, at first empty, whose caches are `state`'s."""

    def __init__(self, ex: Executor, roles: Roles, state: StateStore) -> None:
        self._ex, self._roles, self._state = ex, roles, state

    @property
    def length(self) -> int:
        """Tokens that the model has seen of each sequence."""
        return self._state.length

    def run(self, ids: HostArray, graph_slot: str) -> HostArray:
        """Append ids, int64 (batch, new); returns their logits (batch, new, vocab).

        Raises: what `run` of the executor raises (the sequences stay as they were); KernelError for logits that are not
        one row per token.
        """
        state = self._state
        feeds = {**self._roles.feeds(ids, state.length), **state.feeds()}
        outputs = self._ex.run(feeds, [LOGITS, *state.wanted], graph_slot)
        logits: HostArray = outputs[LOGITS]
        if logits.shape[:2] != ids.shape:
            raise KernelError(
                f"of shape {list(logits.shape)}, expected one row for each of {list(ids.shape)} tokens",
                operand=LOGITS,
            )
        state.advance(outputs, ids.shape[1])
        return logits

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on, where there are as many."""
        self._state.rewind(min(length, self._state.length))
