"""A program of somebody else's: runs a model over channels on the Ray that its environment names, or on one of its own,
with a child that dies; writes to standard output what came of it, as a line of JSON."""

from __future__ import annotations

import json
import os

from actors import chaos
from hetero.errors import HeteroError
from tests.faults.harness import CHAIN, Beside, bits


def main() -> None:
    try:
        with chaos.enabled(), Beside(CHAIN, transport="channels", ray_options={"cpus_per_child": 0}) as both:
            both.ready()
            with chaos.gate("partition 1, before run") as gate:
                future, want = both.submit()
                gate.wait_reached()
                chaos.kill("cpu", both.ex)
                gate.open()
            same = bits(future.result(timeout=100)) == want
            both.ready()
            stats = both.ex.stats()
            told = {"same": same, "road": stats["transport"]["road"], "losses": stats["recovery"]["losses"]}
    except HeteroError as error:
        told = {"error": type(error).__name__, "message": error.message}
    print(json.dumps({**told, "mode": os.environ.get("RAY_AUTH_MODE")}), flush=True)


if __name__ == "__main__":
    main()
