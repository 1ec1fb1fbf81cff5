"""A killed actor costs the caller nothing but time: steps without state."""

from __future__ import annotations

import os
import signal

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor, RuntimeOptions
from tests.actors.test_pool import CHAIN, SPLIT, executor, feeds, pids

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(60)]


def test_an_actor_killed_between_steps_is_not_noticed_by_the_caller() -> None:
    with executor(CHAIN, SPLIT) as ex, executor(CHAIN, SPLIT, children="inline") as inline:
        for victim in ("sim:0", "cpu"):
            assert ex.run(feeds())["y"].tobytes() == inline.run(feeds())["y"].tobytes()
            os.kill(pids(ex)[victim], signal.SIGKILL)
        import time

        for _ in range(2):
            t = time.monotonic()
            assert ex.run(feeds())["y"].tobytes() == inline.run(feeds())["y"].tobytes()
            print(time.monotonic() - t)
        print(ex.stats())
        assert 0
