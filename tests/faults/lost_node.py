"""Run by itself: a cluster of three nodes, one of which is lost with the child on it and what it sent and keeps, the
elements of the caller's sequences included."""

from __future__ import annotations

from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations

from actors import chaos
from actors.cluster import HEALTH_CHECKS
from tests.actors.test_sequences import EXTRA, MOVES, THREE, WIDTH, X, executor
from tests.faults.harness import ALL, CHAIN, DECODER, Beside, bits, until


def survive(cluster: Cluster, nodes: list[Any]) -> None:
    """The caller reads elements after the node is lost on which they were made."""
    options = {"cpus_per_child": 0, "resources": {"cpu:0": {"spot": 1}}}
    with executor(MOVES, THREE, ray_options=options) as ex:
        where = ex.stats()["children"]["cpu:0"]["node_id"]
        sequence = ex.run({"x": X, "extra": EXTRA})["out"]
        refs = [e.bank.ref for e in sequence.elements[1:2]]
        here = ray.get_runtime_context().get_node_id()
        until(lambda: all(here in found["node_ids"] for found in get_object_locations(refs).values()))
        cluster.remove_node(next(n for n in nodes if n.node_id == where), allow_graceful=False)
        assert ex.run({"x": X + 1, "extra": EXTRA})["out"][1].tolist() == (X + 1)[WIDTH : 2 * WIDTH].tolist()
        assert ex.stats()["children"]["cpu:0"]["node_id"] != where
        assert sequence[1].tolist() == X[WIDTH : 2 * WIDTH].tolist()


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": 128 << 20,
            "_system_config": dict(HEALTH_CHECKS),
        },
    )
    nodes = [
        cluster.add_node(num_cpus=1, resources={"spot": 1}, object_store_memory=128 << 20) for _ in range(2)
    ]
    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    options = {"cpus_per_child": 0, "resources": {"sim:0": {"spot": 1}}}
    try:
        # what the first sends lies in the stores of the nodes; the last node goes in good order
        cases = [(CHAIN, 20_000, False), (DECODER, 3, False), (DECODER, 3, True)]
        for text, rows, graceful in cases if ALL else cases[:2]:
            with chaos.enabled(), Beside(text, ray_options=options, checkpoint_every=3) as both:
                if text == DECODER:
                    both.bind(capacity=64)
                both.steps(4, n=rows)
                where = both.ex.stats()["children"]["sim:0"]["node_id"]
                lost = next(n for n in nodes if n.node_id == where)
                with chaos.gate("partition 2, before run") as gate:
                    future, want = both.submit(rows)
                    gate.wait_reached()
                    cluster.remove_node(lost, allow_graceful=graceful)
                    gate.wait_reached()  # by the one that replaces it: the orphan never goes on
                assert bits(future.result(timeout=80)) == want
                both.steps(3, n=1)
                assert both.ex.stats()["children"]["sim:0"]["node_id"] != where
                assert both.recovery()["losses"] in (1, 2), "the other may have been there too"
            nodes.remove(lost)
            nodes.append(cluster.add_node(num_cpus=1, resources={"spot": 1}, object_store_memory=128 << 20))
        survive(cluster, nodes)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("as without faults")


if __name__ == "__main__":
    main()
