"""A caller with a Ray Client connection alone: makes an executor through it, runs a step and writes what it has, or the
error, to standard output as a line of JSON; then waits until it is ended."""

from __future__ import annotations

import json
import sys

from hetero.errors import HeteroError
from tests.faults.harness import CHAIN, Beside


def main() -> None:
    ray_options = {"address": sys.argv[1], "cpus_per_child": 0}
    try:
        with Beside(CHAIN, ray_options=ray_options) as both:
            both.step()
            stats = both.ex.stats()
            pids = [stats["gateway"]["pid"], *(c["pid"] for c in stats["children"].values())]
            print(json.dumps({"pids": pids}), flush=True)
            sys.stdin.readline()
    except HeteroError as error:
        print(json.dumps({"error": type(error).__name__, "message": error.message}), flush=True)


if __name__ == "__main__":
    main()
