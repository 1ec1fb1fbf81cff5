"""Programs that join a running cluster, or start a Ray of their own: with and without tokens, as jobs."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray.util import client

from actors.cluster import ensure_ray, remove_directory
from cluster import LocalCluster
from cluster.local import free_port
from cluster.processes import Family
from hetero.errors import TransportError
from tests.faults.harness import ALL

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
GOOD = {"same": True, "road": "channels", "losses": 1}
JOB = {"metadata": {"job_submission_id": "raysubmit_1"}, "runtime_env": {"env_vars": {"OF_THE_JOB": "1"}}}


def guest(environment: dict[str, str]) -> dict[str, Any]:
    """What the program says that runs with this environment, and with nothing else that Ray reads."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HETERO_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.guest"],
        cwd=ROOT,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=150,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(lines[-1])
    return told


@pytest.fixture(scope="module")
def guarded() -> Iterator[dict[str, str]]:
    """A cluster that asks for a token: what who joins it needs in the environment."""
    with LocalCluster(1, connect=False) as cluster:
        token = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        yield {"RAY_ADDRESS": cluster.address, **token}


def test_a_job_on_a_cluster_with_tokens_loses_a_child_and_nothing_else(guarded: dict[str, str]) -> None:
    """The environment is that which Ray's job manager makes for the driver of a submitted job."""
    told = guest({**guarded, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(JOB)})
    assert told == {**GOOD, "mode": "token"}


@pytest.mark.skipif(find_spec("aiohttp_cors") is None, reason="submitting needs ray[default]")
def test_a_job_that_is_submitted_loses_a_child_and_nothing_else() -> None:
    directory = Path(tempfile.mkdtemp(prefix="hray-", dir="/tmp"))
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HETERO_"))}
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}

    def command(*words: str) -> str:
        line = [sys.executable, "-m", "ray.scripts.scripts", *words]
        done = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    ports = [free_port() for _ in range(3)]
    started = ["start", "--head", "--num-cpus=2", "--object-store-memory=134217728", "--disable-usage-stats"]
    started += [
        f"--port={ports[0]}",
        f"--dashboard-port={ports[1]}",
        f"--dashboard-agent-listen-port={ports[2]}",
    ]
    try:
        command(*started, "--include-dashboard=true", f"--temp-dir={directory / 'ray'}")
        submit = ["job", "submit", f"--address=http://127.0.0.1:{ports[1]}", "--"]
        said = command(*submit, sys.executable, "-m", "tests.cluster.guest")
    finally:
        Family().end(directory)
        remove_directory(directory)
    told = next(line for line in said.splitlines() if line.startswith("{"))
    assert json.loads(told) == {**GOOD, "mode": "token"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"RAY_AUTH_TOKEN": secrets.token_hex(32)},
        {"RAY_AUTH_MODE": "disabled"},
    ],
    ids=["another token", "no token"],
)
def test_a_wrong_token_is_an_error_that_says_what_to_set(
    guarded: dict[str, str], wrong: dict[str, str]
) -> None:
    told = guest({**guarded, **wrong})
    assert told["error"] == "TransportError"
    assert f"RAY_ADDRESS={guarded['RAY_ADDRESS']} does not take this process's token" in told["message"]
    assert "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in told["message"]


def test_a_program_on_a_cluster_without_tokens_loses_a_child_and_nothing_else() -> None:
    with LocalCluster(1, token=False, connect=False) as cluster:
        told = guest({"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled"})
    assert told == {**GOOD, "mode": "disabled"}


@pytest.mark.parametrize("mode", ["disabled", "token"] if ALL else ["disabled"])
def test_a_ray_of_our_own_takes_the_mode_that_is_set(mode: str) -> None:
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if mode == "token" else {}
    assert guest({"RAY_AUTH_MODE": mode, **token}) == {**GOOD, "mode": mode}


def test_children_are_not_driven_through_ray_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.ray, "is_connected", lambda: True)  # as after ray.init("ray://…")
    with pytest.raises(TransportError, match="connected through Ray Client: children are driven from within"):
        ensure_ray()
