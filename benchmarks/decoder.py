"""One token of a decoder (12 layers, hidden 768) at context 512, against onnxruntime with IO binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from benchmarks.inline import session
from benchmarks.measure import Pair, paired
from hetero import HeterogeneousExecutor
from hetero.decode.roles import Roles, roles_of
from tests.models.decoder import BENCHMARK, Config, Form, build

CONTEXT = 512


def decoder_step(form: Form, threads: int, *, config: Config = BENCHMARK, runs: int = 15) -> Pair:
    """The step that makes the sequence CONTEXT tokens long, again and again; both with `threads` threads.

    plain: the cache grows by Concat, and what comes back is fed again. contrib: GroupQueryAttention; onnxruntime writes
    into the buffers that it is given, and nothing is copied.
    """
    model = build(config, form)
    theirs = session(model, threads, optimise=True)
    with (
        threadpool_limits(threads, user_api="blas"),
        HeterogeneousExecutor(model, ["cpu"], children="inline") as ours,
    ):
        del model
        roles = roles_of(ours.plan)
        feeds = _feeds(roles, config)
        bound, logits = _bound(theirs, roles, feeds, config)
        names = ["logits", *(c.present for c in roles.caches)]
        bound()
        np.testing.assert_allclose(ours.run(feeds, names)["logits"], logits(), rtol=1e-3, atol=1e-3)
        return paired(lambda: ours.run(feeds, names), bound, runs=runs)


def _feeds(roles: Roles, config: Config) -> dict[str, Any]:
    """The last token of the context, after caches of numbers as large as the model's own."""
    rng = np.random.default_rng(0)
    past = CONTEXT - 1
    steps = past if roles.capacity is None else roles.capacity
    caches = {
        c.past: rng.standard_normal((1, c.heads, steps, c.size)).astype(c.dtype) * c.dtype.type(1.5)
        for c in roles.caches
    }
    return roles.feeds(np.array([[rng.integers(config.vocab)]]), past) | caches


def _bound(
    theirs: onnxruntime.InferenceSession, roles: Roles, feeds: dict[str, Any], config: Config
) -> tuple[Callable[[], object], Callable[[], Any]]:
    """onnxruntime's step over memory that is bound once, and a look at its logits."""
    binding = theirs.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for cache in roles.caches:
        present = values[cache.past]
        if roles.capacity is None:
            shape = [1, cache.heads, CONTEXT, cache.size]
            present = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, cache.dtype)
        binding.bind_ortvalue_output(cache.present, present)
    logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type([1, 1, config.vocab], np.float32)
    binding.bind_ortvalue_output("logits", logits)
    return lambda: theirs.run_with_iobinding(binding), logits.numpy
