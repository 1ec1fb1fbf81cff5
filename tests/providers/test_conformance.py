"""The conformance kit over every provider that needs no hardware."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hetero.providers.base import Provider, ProviderConfig
from hetero.providers.conformance import ProviderConformance
from hetero.providers.registry import create


class TestConformance(ProviderConformance):
    @pytest.fixture(
        params=[
            ProviderConfig("cpu"),
            ProviderConfig("cpu:1", (("memory_limit_bytes", 1 << 24), ("threads", 2))),
            ProviderConfig("sim:0"),
            ProviderConfig("sim:1", (("poison", False), ("queue_limit", 1))),
        ],
        ids=["cpu", "cpu with a limit", "sim", "sim that hardly queues"],
    )
    def provider(self, request: pytest.FixtureRequest) -> Iterator[Provider]:
        provider = create(request.param)
        yield provider
        provider.close()
