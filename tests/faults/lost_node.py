"""Run by itself: a cluster of three nodes, one of which is lost with the child on it and what it sent and keeps."""

from __future__ import annotations

import ray
from ray.cluster_utils import Cluster

from actors import chaos
from actors.cluster import HEALTH_CHECKS
from tests.faults.harness import CHAIN, DECODER, Beside, bits


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
        for text, rows in (
            (CHAIN, 20_000),
            (DECODER, 3),
        ):  # of which the first lie in the stores of the nodes
            with chaos.enabled(), Beside(text, ray_options=options, checkpoint_every=3) as both:
                if text == DECODER:
                    both.bind(capacity=64)
                both.steps(4, n=rows)
                where = both.ex.stats()["children"]["sim:0"]["node_id"]
                lost = next(n for n in nodes if n.node_id == where)
                with chaos.gate("partition 2, before run") as gate:
                    future, want = both.submit(rows)
                    gate.wait_reached()
                    cluster.remove_node(lost, allow_graceful=False)
                    gate.wait_reached()  # by the one that replaces it: the orphan never goes on
                assert bits(future.result(timeout=80)) == want
                both.steps(3, n=1)
                assert both.ex.stats()["children"]["sim:0"]["node_id"] != where
                assert both.recovery()["losses"] in (1, 2), "the other may have been there too"
            nodes.remove(lost)
            nodes.append(cluster.add_node(num_cpus=1, resources={"spot": 1}, object_store_memory=128 << 20))
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("as without faults")


if __name__ == "__main__":
    main()
