"""When the caller's own process is killed, its actors, its placement group and its shared memory go too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from tests.actors.test_cluster import processes_of
from tests.actors.test_pool import gone
from tests.faults.harness import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
LIMIT_S = 10.0


def started(**environment: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.driver"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert driver.stdout is not None
    said = []
    for line in driver.stdout:
        if line.startswith("{"):
            return driver, json.loads(line)
        said.append(line)
    with driver:
        pytest.fail(f"the caller ended with {driver.wait()}: {''.join(said[-20:])}")


def kill(driver: subprocess.Popen[str]) -> None:
    with driver:  # closes its pipes
        driver.kill()


def test_on_a_ray_of_its_own_nothing_is_left() -> None:
    """Ray's shared memory has no name: it is gone with the last process that maps it."""
    driver, has = started(RAY_ADDRESS="")
    assert not any(map(gone, has["pids"]))
    assert processes_of(has["session"])
    kill(driver)
    killed = time.monotonic()
    until(lambda: all(map(gone, has["pids"])) and not processes_of(has["session"]), LIMIT_S)
    assert time.monotonic() - killed < LIMIT_S
    shutil.rmtree(Path(has["session"]).parent)  # nobody is left who could


@pytest.mark.usefixtures("local_ray")
def test_on_a_ray_that_stays_its_actors_and_its_group_are_gone() -> None:
    address = ray.get_runtime_context().gcs_address
    driver, has = started(RAY_ADDRESS=address)
    assert placement_group_table()[has["group"]]["state"] == "CREATED"
    os.kill(driver.pid, signal.SIGSTOP)  # it has no chance to clean up
    kill(driver)
    killed = time.monotonic()
    until(
        lambda: all(map(gone, has["pids"])) and placement_group_table()[has["group"]]["state"] == "REMOVED",
        LIMIT_S,
    )
    assert time.monotonic() - killed < LIMIT_S
