"""The models that the other tests damage are sound: they run, twice alike, on each kind of device."""

from __future__ import annotations

import pytest

from tests.hostile.harness import PROVIDERS, executor, same_outcome
from tests.hostile.seeds import Seed, graphs, nodes


@pytest.mark.parametrize("providers", PROVIDERS, ids=lambda p: p[0])
@pytest.mark.parametrize("seed", [*nodes(), *graphs()], ids=lambda s: s.name)
def test_a_seed_runs(seed: Seed, providers: list[str]) -> None:
    with executor(seed.proto(), providers) as ex:
        first, second = ex.run(seed.feeds), ex.run(seed.feeds)
    assert seed.drawn or same_outcome(first, second)
