"""A caller that is going to be killed: starts an executor on the Ray that RAY_ADDRESS names, or on one of its own, runs
a step, and writes to standard output what it has, as a line of JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

from tests.faults.harness import CHAIN, Beside, spare_pids, until


def main() -> None:
    import ray

    with Beside(CHAIN, ray_options={"standbys": 1, "cpus_per_child": 0}) as both:
        both.step()
        large = {"x": np.ones((200_000, 4), np.float32)}
        both.ex.run(large)
        children = both.ex.stats()["children"].values()
        held = both.ex._children._held  # type: ignore[attr-defined]
        until(lambda: len(spare_pids(both)) == len({wish.kind for wish in held.wishes.values()}))
        has = {
            "pids": [c["pid"] for c in children],
            "group": held.groups[0].id.hex(),
            "session": ray._private.worker._global_node.get_session_dir_path(),  # type: ignore[attr-defined]
        }
        print(json.dumps(has), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
