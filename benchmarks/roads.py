"""Two actors in a chain, over objects or channels, against the same two actors written by hand on bare Ray."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import ray
from onnx import TensorProto, helper

from actors.cluster import ensure_ray
from benchmarks.measure import Pair, paired
from hetero import HeterogeneousExecutor
from hetero.executor import Transport

Floats = npt.NDArray[np.float32]
PROVIDERS: Any = [("cpu:0", {"ops": ["Relu"]}), ("cpu:1", {"ops": ["Neg"]})]


class HandWritten:
    """What a user of Ray would write for the two operations."""

    def relu(self, x: Floats) -> Floats:
        """max(x, 0)"""
        return np.maximum(x, 0)

    def neg(self, x: Floats) -> Floats:
        """-x"""
        return np.negative(x)


def relu_neg() -> onnx.ModelProto:
    """A vector of any length through Relu, then Neg."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph(nodes, "relu_neg", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def two_actors(nbytes: int = 4 << 20, runs: int = 61, transport: Transport = "objects") -> Pair:
    """Time of one step, ours and by hand, in turn, on one local Ray."""
    x = np.random.default_rng(0).standard_normal(nbytes // 4).astype(np.float32)
    lease = ensure_ray()
    try:
        remote: Any = ray.remote(HandWritten)
        first, second = (remote.options(num_cpus=0).remote() for _ in range(2))

        def theirs() -> Floats:
            got: Floats = ray.get(second.neg.remote(first.relu.remote(x)))
            return got

        with HeterogeneousExecutor(relu_neg(), PROVIDERS, transport=transport) as executor:
            np.testing.assert_array_equal(executor.run({"x": x})["y"], theirs())
            return paired(lambda: executor.run({"x": x}), theirs, runs=runs)
    finally:
        lease.release()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the medians, their ratio and the middle half of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4 << 20, help="size of the activation (default 4 MiB)")
    parser.add_argument("--runs", type=int, default=61)
    parser.add_argument("--transport", choices=("objects", "channels", "auto"), default="objects")
    arguments = parser.parse_args(argv)
    pair = two_actors(arguments.bytes, arguments.runs, arguments.transport)
    print(
        f"two actors, {arguments.transport}, {arguments.bytes} bytes:"
        f" ours {pair.ours_s * 1e3:.2f} ms, by hand {pair.theirs_s * 1e3:.2f} ms,"
        f" ratio {pair.ratio:.2f} (middle half {pair.low:.2f}-{pair.high:.2f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
