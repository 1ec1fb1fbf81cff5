"""Files for clusters say what they are read to say. Whole clusters come up from them by hand (docs/cluster.md)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from actors.cluster import HEALTH_CHECKS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "cluster"
MEASURED_WITH = "2.60.0"


def read(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text())


def test_ray_takes_the_file_for_ray_up() -> None:
    config = prepare_config(read("ray-up.yaml"))
    validate_config(config)
    (head,) = [c for c in config["head_start_ray_commands"] if "--head" in c]
    (worker,) = [c for c in config["worker_start_ray_commands"] if "--address" in c]
    # With version 2, which `ray up` exports before each command, only the head comes up.
    assert "RAY_AUTH_MODE=token RAY_enable_autoscaler_v2=0 ray start" in head
    assert "RAY_AUTH_MODE=token ray start" in worker
    settings = re.search(r"--system-config='(.*)'", head)
    assert settings is not None
    assert json.loads(settings[1]) == HEALTH_CHECKS
    assert any("hetero-ray" in c for c in config["setup_commands"])
    assert config["auth"]["ssh_private_key"]  # without it the head cannot reach the others
    (kind,) = config["available_node_types"].values()
    assert kind["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"])


def test_the_kubernetes_file_describes_one_cluster_of_one_image_with_a_token() -> None:
    cluster = read("kuberay.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    settings = spec["headGroupSpec"]["rayStartParams"]["system-config"]
    assert json.loads(settings.strip("'")) == HEALTH_CHECKS
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [c for g in groups for c in g["template"]["spec"]["containers"]]
    assert {c["image"] for c in containers} == {"hetero-ray:latest"}
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize(
    ("found", "head"),
    [("192.0.2.1", "node1"), ("127.0.1.1", "192.0.2.1")],
    ids=["a name others know", "Debian's name for itself"],
)
def test_the_slurm_script_runs_the_program_on_the_first_node_of_a_ray_with_a_token(
    tmp_path: Path, found: str, head: str
) -> None:
    """With stand-ins for the commands it uses: srun runs two tasks, ray says what it is given. The real one ends with a
    `ray stop`, which would stop every Ray on this machine."""
    for name, text in {
        "scontrol": "printf 'node1\\nnode2\\n'",
        "getent": f"echo {found} $2",
        "hostname": "echo 192.0.2.1 198.51.100.1",
        "srun": 'echo "$1 $2"; shift 3; for id in 0 1; do SLURM_PROCID=$id "$@"; done',
        "ray": f"exec {sys.executable} -c "
        "'import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))' \"$@\"",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [FILES / "slurm.sh", "program.py", "an argument"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "RAY_ADDRESS": "192.0.2.9:6379",  # of another Ray, from the shell of whoever submits
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    options, *tasks = done.stdout.splitlines()
    assert options == "--nodes=2 --ntasks=2"
    (first, given), (second, same) = map(json.loads, tasks)
    want = f"symmetric-run --address {head}:6379 --min-nodes 2 -- python program.py".split()
    assert given == same == [*want, "an argument"]
    for task in (first, second):
        assert (task["RAY_ADDRESS"], task["RAY_AUTH_MODE"]) == (f"{head}:6379", "token")
        assert {name: int(task[f"RAY_{name}"]) for name in HEALTH_CHECKS} == HEALTH_CHECKS
    assert first["RAY_AUTH_TOKEN"] == second["RAY_AUTH_TOKEN"]
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    patience = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert (first.get(patience), second.get(patience)) == (None, "5")


def test_every_file_names_the_same_ray_and_is_packaged() -> None:
    named = {
        name: set(re.findall(r"(?<![\d.])2\.\d+\.\d+", (FILES / name).read_text()))
        for name in ("Dockerfile", "ray-up.yaml", "kuberay.yaml")
    }
    assert all(versions == {MEASURED_WITH} for versions in named.values()), named
    assert int(ray.__version__.split(".")[0]) == 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "cluster*" in project["packages"]["find"]["include"]
    patterns = project["package-data"]["cluster"]
    for file in FILES.iterdir():
        if file.suffix != ".py" and file.is_file():
            assert any(file.match(pattern) for pattern in patterns), file
