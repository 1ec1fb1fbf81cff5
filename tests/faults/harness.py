"""An executor over actors beside one without faults: they are run together, and must agree to the bit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx.parser

from actors import chaos
from actors.pool import RayChildren
from hetero import HeterogeneousExecutor, RuntimeOptions
from tests.faults import ops

HEAD = f'<ir_version: 10, opset_import: ["": 22, "{ops.DOMAIN}": 1]>\n'
CHAIN = HEAD + (
    "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z, float[n, 4] r2) {"
    f" a = Exp(x) s = {ops.DOMAIN}.Stop(a) c = Softmax<axis=1>(s) r = RandomUniformLike(c)"
    f" b = Add(c, r) e = {ops.DOMAIN}.Exit(b) y = Exp(e) z = Softmax<axis=1>(y) r2 = RandomNormalLike(z) }}"
)
"""Four partitions, of which two draw random numbers."""
DECODER = HEAD + (
    "g (float[1, n, 4] x, float[1, 2, past, 4] past_k, float[1, 4] h) =>"
    " (float[1, 2, n, 4] y, float[1, 2, total, 4] present_k, float[1, 4] h2) {"
    " ends = Constant<value_ints=[1]>() wide = Unsqueeze(x, ends) two = Concat<axis=1>(wide, wide)"
    f" drop = RandomUniformLike(two) noisy = Add(two, drop)"
    f" live = {ops.DOMAIN}.Exit(noisy) new = {ops.DOMAIN}.Stop(live)"
    " present_k = Concat<axis=2>(past_k, new) kt = Transpose<perm=[0, 1, 3, 2]>(present_k)"
    " scores = MatMul(new, kt) p = Softmax<axis=-1>(scores) y = MatMul(p, present_k)"
    " both = Constant<value_ints=[1, 2]>() top = ReduceSum<keepdims=0>(y, both) h2 = Max(h, top) }"
)
"""A cache of random numbers that grows on one child, and a state that stays as large on the other."""
PAIRS = {"past_k": "present_k", "h": "h2"}
SPLIT: list[Any] = [("sim:0", {"except_ops": ["Softmax", "Max"]}), "cpu"]


ALL = bool(os.environ.get("HETERO_ALL_FAULTS"))
"""Whether every fault is tried over every road, with and without state (`make faults`), or each in one way."""
TEXTS = [DECODER, CHAIN] if ALL else [DECODER]
TEXT_IDS = ["stateful", "stateless"][: len(TEXTS)]


def bits(outputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def until(reached: Callable[[], bool], limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline


def spare_pids(both: Beside) -> list[int]:
    children = both.ex._children
    assert isinstance(children, RayChildren)
    children._mending.muster()
    return [m.facts["pid"] for ready in children._held.standbys.values() for m in ready if m.facts]


class Beside:
    """Steps of both. `ex` is the one on actors; `calm` has no faults."""

    def __init__(
        self,
        text: str,
        providers: Sequence[Any] = tuple(SPLIT),
        ray_options: Any = None,
        transport: Any = "auto",
        planning: Any = None,
        **options: Any,
    ) -> None:
        model = onnx.parser.parse_model(text)
        chosen = RuntimeOptions(extensions="tests.faults.ops", **options)
        wishes = dict(planning or {})
        self.calm = HeterogeneousExecutor(model, list(providers), children="inline", options=chosen, **wishes)
        self.ex = HeterogeneousExecutor(
            model, list(providers), transport=transport, options=chosen, ray_options=ray_options, **wishes
        )
        self.transport = transport
        self._seed = 0

    def feeds(self, n: int = 3) -> dict[str, Any]:
        self._seed += 1
        rng = np.random.default_rng(self._seed)
        stateful = self.calm._state is not None
        return {"x": rng.standard_normal((1, n, 4) if stateful else (n, 4)).astype(np.float32)}

    def submit(self, n: int = 3) -> tuple[Future[dict[str, Any]], dict[str, bytes]]:
        """A step on actors that goes on, and what it must give."""
        feeds = self.feeds(n)
        return self.ex.submit(feeds), bits(self.calm.run(feeds))

    def ready(self) -> None:
        """One step more, or as many as it takes until steps go over the road that was asked for."""
        self.step(1)
        for _ in range(20):
            if self.transport in ("auto", self.ex.stats()["transport"]["road"]):
                return
            self.step(1)
        raise AssertionError(self.ex.stats()["transport"])

    def step(self, n: int = 3) -> None:
        future, want = self.submit(n)
        assert bits(future.result(timeout=100)) == want

    @contextmanager
    def stopped(self, point: str, n: int = 3, within_s: float = 100) -> Iterator[chaos.Gate]:
        """A step on actors that has come to `point`: whatever happens to it in the block, it gives what it must."""
        with chaos.gate(point) as gate:
            future, want = self.submit(n)
            gate.wait_reached()
            yield gate
        assert bits(future.result(timeout=within_s)) == want

    def steps(self, count: int, n: int = 3) -> None:
        for _ in range(count):
            self.step(n)

    def bind(self, **options: Any) -> None:
        for each in (self.ex, self.calm):
            each.bind_state(PAIRS, **options)

    def recovery(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.ex.stats()["recovery"]
        return counts

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *error: object) -> None:
        self.ex.close()
        self.calm.close()
