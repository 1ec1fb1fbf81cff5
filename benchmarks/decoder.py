"""A decoder (12 layers, hidden 768) at context 512 against onnxruntime with IO binding: one step, and several."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.inline import session, threads_of
from benchmarks.measure import Pair, paired
from hetero import HeterogeneousExecutor
from hetero.decode.context import Context
from hetero.decode.roles import Roles, roles_of
from hetero.decode.state import BoundState, Tenancy
from tests.models.decoder import BENCHMARK, FORMS, Config, Form, build

CONTEXT = 512


def decoder_step(form: Form, threads: int, *, config: Config = BENCHMARK, runs: int = 15) -> Pair:
    """The step that makes the sequence CONTEXT tokens long, again and again; both with `threads` threads.

    plain: the cache grows by Concat; here in place, onnxruntime copies it. contrib, scatter: GroupQueryAttention and
    TensorScatter; onnxruntime writes into the buffers that it is given, and nothing is copied.
    """
    with _both(form, threads, config) as (ours, peer):
        caches = peer.random_caches(CONTEXT - 1)
        feeds = peer.roles.feeds(np.array([[1]]), CONTEXT - 1)
        peer.bind(feeds, caches)
        want = peer.step()
        ours.bind_state({c.past: c.present for c in peer.roles.caches}, capacity=CONTEXT)
        ours.write_state(caches)
        binding = ours.io_binding()
        for name, value in feeds.items():
            binding.bind_input(name, value)
        logits = np.empty(want.shape, want.dtype)
        binding.bind_output("logits", logits)

        def mine() -> None:
            ours.run_with_binding(binding)
            if peer.roles.capacity is None:
                ours.rewind_state(CONTEXT - 1)

        mine()
        np.testing.assert_allclose(logits, want, rtol=1e-3, atol=1e-3)
        return paired(mine, peer.step, runs=runs)


def decoder_steps(
    form: Form, threads: int, *, count: int = 8, config: Config = BENCHMARK, runs: int = 7
) -> Pair:
    """`count` successive steps up to CONTEXT tokens, as they are when generating: each is one token longer than the one
    before. Times are those of one step."""
    with _both(form, threads, config) as (ours, peer):
        first = CONTEXT - count
        prompt = np.random.default_rng(0).integers(0, config.vocab, (1, first))
        context = Context(ours, peer.roles, BoundState(Tenancy(ours, peer.roles), peer.roles))
        context.run(prompt, "prefill")
        prefilled = peer.prefilled(prompt)

        def mine() -> Any:
            context.rewind(first)
            return [context.run(np.array([[k]]), "primary")[0, -1] for k in range(count)][-1]

        def theirs() -> Any:
            values = prefilled
            for k in range(count):
                values = peer.follow(peer.roles.feeds(np.array([[k]]), first + k), values)
            return peer.logits()

        np.testing.assert_allclose(mine(), theirs()[0, -1], rtol=1e-3, atol=1e-3)
        pair = paired(mine, theirs, runs=runs)
    return Pair(pair.ours_s / count, pair.theirs_s / count, pair.ratio, pair.low, pair.high)


def outside_kernels(
    form: Form, threads: int, *, config: Config = BENCHMARK, count: int = 8, runs: int = 15
) -> float:
    """Share of successive one-token steps before CONTEXT tokens that is not spent in bound calls. No length is met
    twice: each step is one of those that a generation takes."""
    with (
        threads_of(threads),
        HeterogeneousExecutor(build(config, form), ["cpu"], children="inline") as ours,
    ):
        roles = roles_of(ours.plan)
        context = Context(ours, roles, BoundState(Tenancy(ours, roles), roles))
        first = CONTEXT - count * (runs + 4)
        context.run(np.random.default_rng(0).integers(0, config.vocab, (1, first)), "prefill")

        def steps() -> None:
            for k in range(count):
                context.run(np.array([[k]]), "primary")

        def calls() -> None:
            made = runner.roots.drives["primary"].last[1].calls  # built anew, once, where there is no room
            for _ in range(count):
                for call in made:
                    call()

        steps()
        (child,) = ours._children._children.values()  # type: ignore[attr-defined]
        (runner,) = child._runners.values()
        steps()
        pair = paired(steps, calls, runs=runs)
    return 1 - 1 / pair.ratio


@contextmanager
def _both(form: Form, threads: int, config: Config) -> Iterator[tuple[HeterogeneousExecutor, _Peer]]:
    model = build(config, form)
    theirs = session(model, threads, optimise=True)
    with (
        threads_of(threads),
        HeterogeneousExecutor(model, ["cpu"], children="inline") as ours,
    ):
        yield ours, _Peer(theirs, roles_of(ours.plan), config)


class _Peer:
    """onnxruntime over memory that is bound to its inputs and outputs."""

    def __init__(self, theirs: onnxruntime.InferenceSession, roles: Roles, config: Config) -> None:
        self.session, self.roles, self.config = theirs, roles, config
        self.binding = theirs.io_binding()
        self._owned: dict[str, onnxruntime.OrtValue] = {}

    def random_caches(self, length: int) -> dict[str, Any]:
        """Caches of `length` steps with numbers as large as the model's own."""
        rng = np.random.default_rng(0)
        steps = length if self.roles.capacity is None else self.roles.capacity
        return {
            c.past: rng.standard_normal((1, c.heads, steps, c.size)).astype(c.dtype) * c.dtype.type(1.5)
            for c in self.roles.caches
        }

    def bind(self, feeds: dict[str, Any], caches: dict[str, Any]) -> None:
        """Copy these into memory of onnxruntime's and bind it, with outputs: buffers are past and present at once."""
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in (feeds | caches).items()}
        # what get_outputs returns of bound memory does not keep it alive
        self._owned = values
        for name, value in values.items():
            self.binding.bind_ortvalue_input(name, value)
        for cache in self.roles.caches:
            present = values[cache.past]
            if self.roles.capacity is None:
                shape = [1, cache.heads, present.shape()[2] + feeds["input_ids"].shape[1], cache.size]
                present = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, cache.dtype)
            self.binding.bind_ortvalue_output(cache.present, present)
        self.binding.bind_output("logits")

    def step(self) -> Any:
        """Run what is bound; the logits (batch, new, vocab)."""
        self.session.run_with_iobinding(self.binding)
        return self.logits()

    def logits(self) -> Any:
        """The last step's, (batch, new, vocab)."""
        return self.binding.get_outputs()[-1].numpy()

    def prefilled(self, prompt: Any) -> dict[str, onnxruntime.OrtValue]:
        """The caches after a prompt (batch, length)."""
        empty = {name: np.zeros_like(a) for name, a in self.random_caches(0).items()}
        self.bind(self.roles.feeds(prompt, 0), empty)
        self.step()
        return self._presents()

    def follow(
        self, feeds: dict[str, Any], caches: dict[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """Run a step after these caches, and return its own: the same memory where they are buffers."""
        for name, array in feeds.items():
            self.binding.bind_cpu_input(name, array)
        for cache in self.roles.caches:
            self.binding.bind_ortvalue_input(cache.past, caches[cache.past])
            if self.roles.capacity is None:
                self.binding.bind_output(cache.present)
            else:
                self.binding.bind_ortvalue_output(cache.present, caches[cache.past])
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        return self._presents()

    def _presents(self) -> dict[str, onnxruntime.OrtValue]:
        outputs = self.binding.get_outputs()
        return {
            c.past: value if self.roles.capacity is None else self._owned[c.past]
            for c, value in zip(self.roles.caches, outputs, strict=False)
        }


def main() -> None:
    """Print the ratios for the number of threads that is given, or one."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for form in FORMS:
        for measure in (decoder_step, decoder_steps):
            p = measure(form, threads)
            print(
                f"{measure.__name__:13} {form:7} {threads} threads: {p.ours_s * 1e3:6.1f} ms against"
                f" {p.theirs_s * 1e3:6.1f} ms, ratio {p.ratio:.2f} ({p.low:.2f}-{p.high:.2f})",
                flush=True,
            )
        print(f"outside kernels {form:7} {100 * outside_kernels(form, threads):.1f} %", flush=True)


if __name__ == "__main__":
    main()
