"""Children on channels without Ray: threads of this process, over real ZeroMQ, computing with plain functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from actors.channels.bodies import Limits
from actors.channels.child import ChildChannel
from actors.channels.driver import DriverChannel
from actors.channels.flight import Flight
from actors.channels.routes import ChildRoutes, DriverRoutes
from hetero.planner.plan import CALLER

LOCAL = "127.0.0.1"
Compute = Callable[[int, int, list[Any]], list[Any]]
"""(partition, step, values) -> values."""


class Net:
    """A chain caller -> partition 0 -> … -> partition n-1 -> caller; parcel k goes into partition k.

    `homes[k]` is the child of partition k. A partition whose successor lives on the same child sends to it over the
    driver's and children's roads no less: plans never do that, so homes of neighbours differ.
    """

    def __init__(
        self,
        homes: Sequence[int],
        compute: Compute,
        *,
        limits: Limits | None = None,
        generation: int = 1,
        silent: Sequence[int] = (),
    ) -> None:
        self.end = len(homes)
        self.began: list[str] = []
        self.dropped: list[tuple[int, int]] = []
        children = sorted(set(homes))
        routes = DriverRoutes(tuple(children), (homes[0],), {0: (homes[0],)}, (self.end,), tuple(silent))
        self.driver = DriverChannel(generation, LOCAL, routes, limits=limits)
        self.children: list[ChildChannel] = []
        for child in children:
            channel = ChildChannel(
                child,
                f"sim:{child}",
                generation,
                LOCAL,
                _child_routes(child, homes, child in silent),
                lambda partition, step, parcels, _: [compute(partition, step, list(parcels[0]))],
                lambda step, child=child: self.dropped.append((child, step)),  # type: ignore[misc]
                begin=lambda: self.began.append(threading.current_thread().name),
                limits=limits,
            )
            self.children.append(channel)
        connect(self.driver, self.children)

    def launch(self, step: int, *values: Any, timeout_s: float | None = 20.0) -> Flight:
        return self.driver.launch(step, {0: list(values)}, "primary", timeout_s)

    def get(self, flight: Flight, timeout_s: float = 20.0) -> list[Any]:
        try:
            return self.driver.get(flight, timeout_s)[self.end]
        except BaseException:
            self.driver.drop(flight)
            raise

    def run(self, step: int, *values: Any, timeout_s: float = 20.0) -> list[Any]:
        return self.get(self.launch(step, *values), timeout_s)

    def out(self) -> list[int]:
        """Bytes that each process has out, the driver's first."""
        return [p.statistics()["bytes_out"] for p in (self.driver, *self.children)]

    def close(self) -> None:
        self.driver.close()
        for child in self.children:
            child.close()

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(driver: DriverChannel, children: Sequence[ChildChannel]) -> None:
    """Connect all with all that they know of."""
    cards = [c.card for c in children]
    everyone = [*cards, driver.card]

    def confirm() -> None:
        threads = [threading.Thread(target=c.connect, args=(everyone, 10.0)) for c in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    driver.connect(cards, confirm, 10.0)


def _child_routes(child: int, homes: Sequence[int], silent: bool) -> ChildRoutes:
    where = [*homes, CALLER]
    mine = [k for k, home in enumerate(homes) if home == child]
    peers = {CALLER}
    for k in mine:
        peers |= {where[k + 1], where[k - 1]}
    return ChildRoutes(
        tuple((k, (k,)) for k in mine),
        {k: ((k + 1, (where[k + 1],)),) for k in mine},
        silent,
        tuple(sorted(peers - {child})),
    )


def plus_one(partition: int, step: int, values: list[Any]) -> list[Any]:
    return [v + np.float32(1) for v in values]


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def until(reached: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline
