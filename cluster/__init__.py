"""Where children run: N nodes in one machine (`local`), and files for `ray up`, KubeRay, Slurm and Docker."""

from cluster.local import LocalCluster, LocalNode

__all__ = ["LocalCluster", "LocalNode"]
