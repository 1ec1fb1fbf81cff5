"""Files for clusters say what they are read to say; that whole clusters come up from them is not tested here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

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
    assert "RAY_AUTH_MODE=token ray start" in head
    assert "RAY_AUTH_MODE=token ray start" in worker
    settings = re.search(r"--system-config='(.*)'", head)
    assert settings is not None
    assert json.loads(settings[1]) == HEALTH_CHECKS
    assert any("hetero-ray" in c for c in config["setup_commands"])


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


def test_the_slurm_script_runs_the_program_on_the_first_node_of_a_ray_with_a_token(tmp_path: Path) -> None:
    """With stand-ins for Slurm's and Ray's commands that print what they are given."""
    for name, text in {
        "scontrol": "printf 'node1\\nnode2\\n'",
        "srun": 'echo "srun: $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}"; printf "<%s>" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [FILES / "slurm.sh", "program.py", "an argument"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    first, given = done.stdout.splitlines()
    assert first == "srun: token 64"
    assert given.startswith("<--nodes=2><--ntasks=2>")
    assert "<ray><symmetric-run><--address><node1:6379><--min-nodes><2><-->" in given
    assert given.endswith("<--><env><RAY_ADDRESS=node1:6379><python><program.py><an argument>")


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
