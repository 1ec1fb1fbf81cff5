"""How threads wait for the next loop: briefly, unless the user has said otherwise."""

from __future__ import annotations

import pytest

from hetero.kernels.jit_runtime import SPINS, wait_briefly


def test_threads_spin_briefly_and_then_sleep() -> None:
    environment: dict[str, str] = {}
    wait_briefly(environment)
    assert environment == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(SPINS)}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environment = {name: "0"}
    wait_briefly(environment)
    assert environment == {name: "0"}
