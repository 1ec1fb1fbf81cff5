"""Decoder: an executor of a decoder model as a source of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np

from hetero.decode.context import Context
from hetero.decode.roles import roles_of
from hetero.decode.sampling import GREEDY, Sampling, choose
from hetero.decode.speculative import speculated
from hetero.decode.state import BoundState, Executor, KeptState, StatefulExecutor, Tenancy
from hetero.decode.stopping import Stop, until_stopped
from hetero.errors import InputError, OptionError
from hetero.types import HostArray


class Decoder:
    """Generates tokens with the model of `ex`, which has the inputs and outputs of an exported decoder:

    input_ids, past_key_values.*.key / .value and, as far as the model wants them, attention_mask, position_ids,
    seqlens_k, total_sequence_length, write_indices, nonpad_kv_seqlen; logits and present.*.key / .value. Caches that
    grow by each step's tokens and caches of one size throughout are told apart by their declared shapes.

    Args:
        ex: the executor; it stays its owner's.
        max_length: tokens that a sequence may have, prompt included; needed where the caches are buffers whose size the
            model leaves open.
        bound: keep the caches on the executor's children (`ex.bind_state`), where a step copies nothing; they hold one
            generation at a time, the last one that was begun. False: the decoder keeps and feeds them, so that any
            number of generations may be under way at once, also on executors that keep nothing.

    Raises: OptionError that lists what a decoder has and this model lacks.
    """

    @overload
    def __init__(
        self, ex: StatefulExecutor, *, max_length: int | None = None, bound: bool = True
    ) -> None: ...

    @overload
    def __init__(self, ex: Executor, *, max_length: int | None = None, bound: Literal[False]) -> None: ...

    def __init__(self, ex: Any, *, max_length: int | None = None, bound: bool = True) -> None:
        self._ex: Executor = ex
        self._roles = roles_of(ex.plan, max_length)
        self._tenancy = Tenancy(ex, self._roles) if bound else None

    @property
    def vocab(self) -> int | None:
        """Tokens there are, where the model declares it."""
        return self._roles.vocab

    def generate(
        self,
        prompt_ids: Sequence[int] | HostArray,
        *,
        max_new_tokens: int,
        sampling: Sampling = GREEDY,
        eos_ids: Collection[int] = (),
        stop: Stop | None = None,
        draft: Decoder | None = None,
        draft_tokens: int = 4,
    ) -> Iterator[int]:
        """New tokens after a prompt, one by one as they are known.

        Args:
            prompt_ids: one or more token ids (length,).
            max_new_tokens: the most that are generated.
            sampling: how tokens are chosen; the default takes the greatest logit. The same seed gives the same tokens.
            eos_ids: tokens that end the sequence; the one that does is given out.
            stop: called with the new tokens so far after each; True ends the sequence.
            draft: a decoder with the same tokens, smaller and faster, which proposes `draft_tokens` at a time. Greedy
                tokens stay the same (as far as the target's logits of one run of many tokens and of many runs of one
                agree on the greatest); sampled ones keep their distribution.

        Raises: InputError, OptionError here, before anything runs; what `run` of the executor raises while iterating.
        """
        prompts = _prompts(prompt_ids, axes=1)[None]
        steps = self._steps(prompts, max_new_tokens, sampling, draft, draft_tokens)
        return (int(tokens[0]) for tokens in until_stopped(steps, 1, eos_ids, stop))

    def generate_batch(
        self,
        prompt_ids: Sequence[Sequence[int]] | HostArray,
        *,
        max_new_tokens: int,
        sampling: Sampling = GREEDY,
        eos_ids: Collection[int] = (),
        stop: Stop | None = None,
        draft: Decoder | None = None,
        draft_tokens: int = 4,
    ) -> Iterator[HostArray]:
        """As `generate`, for prompts (batch, length) of one length: tokens (batch,), int64, step by step.

        A sequence that has ended repeats its last token until all have. With a draft, the tokens that stand in every
        sequence are taken.
        """
        prompts = _prompts(prompt_ids, axes=2)
        steps = self._steps(prompts, max_new_tokens, sampling, draft, draft_tokens)
        return until_stopped(steps, len(prompts), eos_ids, stop)

    def _steps(
        self, prompts: HostArray, count: int, sampling: Sampling, draft: Decoder | None, draft_tokens: int
    ) -> Iterator[HostArray]:
        """Checks everything, then returns the tokens to come."""
        _positive("max_new_tokens", count)
        self._check(prompts, count)
        target = self._context(len(prompts))
        if draft is None:
            return _one_by_one(target, prompts, count, sampling)
        _positive("draft_tokens", draft_tokens)
        if draft.vocab != self.vocab:
            raise OptionError(
                f"the draft has {draft.vocab} tokens, the model that it drafts for {self.vocab}",
                operand="draft",
            )
        if draft._ex is self._ex and self._tenancy is not None:
            raise OptionError("a bound decoder cannot draft for itself; bound=False lets it", operand="draft")
        draft._check(prompts, count)
        return speculated(target, draft._context(len(prompts)), prompts, count, sampling, draft_tokens)

    def _context(self, batch: int) -> Context:
        if self._tenancy is not None:
            return Context(self._ex, self._roles, BoundState(self._tenancy, self._roles))
        return Context(self._ex, self._roles, KeptState(self._roles, batch))

    def _check(self, prompts: HostArray, count: int) -> None:
        vocab, limit, length = self._roles.vocab, self._roles.limit, prompts.shape[1]
        if prompts.min() < 0 or (vocab is not None and prompts.max() >= vocab):
            raise InputError(
                f"token ids must be from 0 to {'' if vocab is None else vocab - 1}, not from {prompts.min()} to"
                f" {prompts.max()}",
                operand="prompt_ids",
            )
        if limit is not None and length + count > limit:
            raise InputError(
                f"{length} tokens and {count} new ones are more than the {limit} that a sequence may have",
                operand="prompt_ids",
            )


def _one_by_one(target: Context, prompts: HostArray, count: int, sampling: Sampling) -> Iterator[HostArray]:
    """The prompt on graph slot "prefill", then a token per run on "primary"."""
    logits = target.run(prompts, "prefill")
    for step in range(count):
        tokens = choose(logits[:, -1], sampling, step)
        yield tokens
        if step + 1 < count:
            logits = target.run(tokens[:, None], "primary")


def _positive(name: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name} must be at least 1, not {value!r}", operand=name)


def _prompts(given: Sequence[int] | Sequence[Sequence[int]] | HostArray, axes: int) -> HostArray:
    """Token ids as int64. Raises: InputError."""
    wanted = "(length,)" if axes == 1 else "(batch, length), all of one length"
    try:
        ids = np.asarray(given)
    except ValueError as cause:
        raise InputError(f"prompt_ids must be integers {wanted}", operand="prompt_ids") from cause
    if ids.ndim != axes or ids.dtype.kind not in "iu" or ids.size == 0:
        raise InputError(
            f"prompt_ids must be one or more integers {wanted}, not {ids.dtype}{list(ids.shape)}",
            operand="prompt_ids",
        )
    return ids.astype(np.int64)
