"""`make soak`: steps with random kills, with and without state, over both roads; every output is held against a run
without faults. Ends with 1 where one is lost, doubled or wrong."""

from __future__ import annotations

import argparse
import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

from actors import chaos
from actors.cluster import ensure_ray
from hetero.errors import HeteroError
from tests.faults.harness import CHAIN, DECODER, Beside, bits

STEPS, KILLS = 500, 20


def soak(text: str, transport: Any, steps: int, kills: int, seed: int) -> dict[str, int]:
    """So many steps with so many kills, each of a random child at a random moment of a random step."""
    rng = random.Random(seed)
    victims = dict.fromkeys(rng.sample(range(steps), kills))
    found = {"steps": 0, "lost": 0, "wrong": 0}
    with Beside(
        text, transport=transport, ray_options={"standbys": 1}, checkpoint_every=8, max_step_deaths=5
    ) as both:
        if text is DECODER:
            both.bind(capacity=steps + 8)
        for k in range(steps):
            future, want = both.submit(1)
            if k in victims:
                device = rng.choice(["sim:0", "cpu"])
                killer = threading.Timer(rng.uniform(0, 0.01), chaos.kill, (device, both.ex))
                killer.start()
            try:
                found["wrong"] += bits(future.result(timeout=120)) != want
            except HeteroError as error:
                print(f"step {k}: {error}", file=sys.stderr)
                found["lost"] += 1
            found["steps"] += 1
            if k in victims:
                killer.join()
        counts = both.recovery()
        found |= {name: counts[name] for name in ("losses", "replayed_steps", "checkpoints")}
        done = both.ex.stats()["steps"]
        found["doubled"] = max(0, done - found["steps"])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Soak both graphs over both roads; print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="in all")
    parser.add_argument("--kills", type=int, default=KILLS, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    lease = ensure_ray()
    bad = 0
    try:
        cases = [
            (n, t, r)
            for n, t in (("stateless", CHAIN), ("stateful", DECODER))
            for r in ("objects", "channels")
        ]
        for number, (name, text, road) in enumerate(cases):
            found = soak(text, road, asked.steps // 4, asked.kills // 4, asked.seed + number)
            print(f"{name}, {road}: {found}", flush=True)
            bad += found["lost"] + found["wrong"] + found["doubled"]
    finally:
        lease.release()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
