"""Children on channels without Ray: threads of this process, over real ZeroMQ, computing with plain functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from actors.channels.bodies import Limits
from actors.channels.child import ChildChannel
from actors.channels.driver import DriverChannel
from actors.channels.routes import ChildRoutes, DriverRoutes
from hetero.planner.plan import CALLER

LOCAL = "127.0.0.1"
Compute = Callable[[int, int, Sequence[Sequence[Any]], str], list[list[Any]]]


class Net:
    """A chain caller -> child 0 -> … -> child n-1 -> caller; partition k runs on child k, parcel k goes into it."""

    def __init__(
        self, computes: Sequence[Compute], *, limits: Limits | None = None, generation: int = 1
    ) -> None:
        n = len(computes)
        self.dropped: list[tuple[int, int]] = []
        self.driver = DriverChannel(generation, LOCAL, chain_routes(n), limits=limits)
        self.children = [
            ChildChannel(
                k,
                f"sim:{k}",
                generation,
                LOCAL,
                child_routes(k, n),
                compute,
                lambda step, k=k: self.dropped.append((k, step)),  # type: ignore[misc]
                limits=limits,
            )
            for k, compute in enumerate(computes)
        ]
        cards = [c.card for c in self.children]

        def confirm() -> None:
            import threading

            everyone = [*cards, self.driver.card]
            threads = [threading.Thread(target=c.connect, args=(everyone, 10.0)) for c in self.children]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        self.driver.connect(cards, confirm, 10.0)

    def run(self, step: int, *values: Any, timeout_s: float = 10.0) -> list[Any]:
        flight = self.driver.launch(step, {0: list(values)}, "primary")
        try:
            return self.driver.get(flight, timeout_s)[len(self.children)]
        except BaseException:
            self.driver.drop(flight)
            raise

    def close(self) -> None:
        self.driver.close()
        for child in self.children:
            child.close()

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chain_routes(n: int) -> DriverRoutes:
    return DriverRoutes(tuple(range(n)), {0: (0,)}, (n,), ())


def child_routes(k: int, n: int) -> ChildRoutes:
    onward = k + 1 if k + 1 < n else CALLER
    before = k - 1 if k else CALLER
    return ChildRoutes(
        ((k, (k,)),), {k: ((k + 1, (onward,)),)}, False, tuple(sorted({CALLER, onward, before}))
    )
