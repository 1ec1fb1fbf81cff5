"""The loss of a whole node, with the child on it, the parcels it sent and the copies of its state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(250)]


def test_a_lost_node_is_not_noticed() -> None:
    """In a process of its own: Ray connects to one cluster per process."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.lost_node"],
        cwd=Path(__file__).parents[2],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            said, _ = script.communicate(timeout=240)
        finally:
            if script.poll() is None:
                os.killpg(script.pid, signal.SIGKILL)
    assert said.rstrip().endswith("as without faults"), said[-3000:]
