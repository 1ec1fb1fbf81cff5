"""From names to providers: what is understood, and what is refused with which words."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from hetero.errors import ProviderError
from hetero.providers import registry
from hetero.providers.base import ProviderConfig
from hetero.providers.cpu import CpuProvider
from hetero.providers.simulated import SimulatedProvider


class ThirdParty(CpuProvider):
    kind = "third"


class NoProvider:
    kind = "third"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """Entry points of the group, as if distributions had brought them."""
    entries: list[metadata.EntryPoint] = []

    def entry_points(*, group: str, name: str | None = None) -> list[metadata.EntryPoint]:
        return [e for e in entries if e.group == group and name in (None, e.name)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return entries


def _entry(name: str, attribute: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, f"{__name__}:{attribute}", registry.GROUP)


def test_names_pairs_and_objects_give_providers_in_their_order() -> None:
    own = CpuProvider(ProviderConfig("cpu:7"))
    sim, again, cpu = registry.resolve([("sim:1", {"poison": False}), own, "cpu"])
    assert isinstance(sim, SimulatedProvider)
    assert sim.options == {"poison": False}
    assert again is own
    assert (sim.name, cpu.name) == ("sim:1", "cpu")


def test_built_in_kinds_need_no_installed_distribution(installed: list[metadata.EntryPoint]) -> None:
    assert [p.name for p in registry.resolve(["cpu", "sim"])] == ["cpu", "sim:0"]
    assert registry.kinds() == ("cpu", "cuda", "sim")
    assert registry.is_kind("cuda")
    assert not registry.is_kind("third")


def test_the_cpu_may_be_there_several_times() -> None:
    assert [p.name for p in registry.resolve(["cpu", "cpu:0", "cpu:12"])] == ["cpu", "cpu:0", "cpu:12"]


def test_ops_and_except_ops_move_into_the_config_and_options_are_plain_and_hashable() -> None:
    config = registry.config_of(
        ("sim:2", {"except_ops": ["Softmax"], "ops": {"Add"}, "faults": [["launch", 1, "error"]]})
    )
    assert config == ProviderConfig(
        "sim:2", (("faults", (("launch", 1, "error"),)),), frozenset({"Add"}), frozenset({"Softmax"})
    )
    assert hash(config)
    assert registry.create(config).config is config


def test_config_of_a_provider_is_its_own() -> None:
    provider = CpuProvider(ProviderConfig("cpu"))
    assert registry.config_of(provider) is provider.config


def test_onnxruntimes_name_for_the_cpu_is_understood() -> None:
    assert registry.config_of("CPUExecutionProvider") == ProviderConfig("cpu")


def test_by_default_every_cuda_device_comes_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "cuda_device_count", lambda: 2)
    assert registry.default_names() == ("cuda:0", "cuda:1", "cpu")
    monkeypatch.setattr(registry, "cuda_device_count", lambda: 0)
    assert [p.name for p in registry.resolve(None)] == ["cpu"]


@pytest.mark.parametrize(
    ("providers", "words"),
    [
        ([], "empty"),
        ("cpu", "must be a list"),
        (7, "must be a list"),
        ([7], "a name, a pair"),
        (["cpu", {"threads": 1}], "a name, a pair"),
        ([("cpu", 3)], "a name, a pair"),
        (["tpu"], "unknown provider 'tpu'; there are: .*cpu.*sim"),
        (["tpu:0"], "unknown provider 'tpu'"),
        ([""], "unknown provider ''"),
        (["CPU Provider"], "unknown provider"),
        (["cpu:"], "malformed index"),
        (["cpu:x"], "malformed index"),
        (["cpu:-1"], "malformed index"),
        (["cpu:01"], "malformed index"),
        (["sim:1:2"], "malformed index"),
        (["sim:٣"], "malformed index"),
        (["sim:99999999999"], "malformed index"),
        (["cpu", "cpu"], "cpu is given twice"),
        (["sim", "sim:0"], "sim:0 is given twice"),
        (["CPUExecutionProvider", "cpu"], "cpu is given twice"),
        (
            [("cpu", {"threds": 3})],
            "no option 'threds'; it has: except_ops, memory_limit_bytes, ops, threads",
        ),
        ([("cpu", {"threads": "3"})], "'threads' of cpu must be int or None, not str"),
        ([("cpu", {"threads": True})], "must be int or None, not bool"),
        ([("cpu", {"threads": 0})], "at least 1"),
        ([("cpu", {"memory_limit_bytes": -1})], "negative"),
        ([("cpu", {3: 4})], "names are strings"),
        ([("cpu", {"ops": "Softmax"})], "list of op names"),
        ([("cpu", {"except_ops": [3]})], "list of op names"),
        ([("sim", {"faults": [object()]})], "plain data"),
        ([("sim", {"link_latency_s": -1.0})], "link_latency_s"),
        ([("sim", {"link_latency_s": float("nan")})], "link_latency_s"),
        ([("sim", {"queue_limit": 0})], "queue_limit"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_why(providers: Any, words: str) -> None:
    with pytest.raises(ProviderError, match=words):
        registry.resolve(providers)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(ProviderError, match="twice"):
        CpuProvider(ProviderConfig("cpu", (("threads", 1), ("threads", 2))))


def test_a_cuda_device_that_is_not_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # A module that is nowhere: what importing the provider meets where CuPy is missing.
    monkeypatch.setitem(registry._BUILT_IN, "cuda", "hetero.providers.no_such_module:CudaProvider")
    for name in ("cuda", "cuda:1", "CUDAExecutionProvider"):
        with pytest.raises(ProviderError, match=r"no CUDA device found.*extra cuda12 or cuda13"):
            registry.resolve([name])


def test_providers_made_before_one_that_fails_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(CpuProvider, "close", lambda self: closed.append(self.name))
    own = CpuProvider(ProviderConfig("cpu:9"))
    with pytest.raises(ProviderError):
        registry.resolve(["cpu", own, ("sim", {"queue_limit": 0})])
    assert closed == ["cpu"]


def test_a_third_partys_kind_comes_from_its_entry_point(installed: list[metadata.EntryPoint]) -> None:
    installed.append(_entry("third", "ThirdParty"))
    (provider,) = registry.resolve(["third:3"])
    assert type(provider) is ThirdParty
    assert provider.name == "third:3"
    assert "third" in registry.kinds()
    assert registry.is_kind("third")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (["NoProvider"], "not a Provider of that kind"),
        (["CpuProvider"], "not a Provider of that kind"),
        (["Missing"], "cannot be loaded"),
        (["ThirdParty", "NoProvider"], "claimed by several"),
    ],
)
def test_an_entry_point_that_brings_no_such_provider_is_an_error(
    installed: list[metadata.EntryPoint], attributes: list[str], words: str
) -> None:
    installed.extend(_entry("third", a) for a in attributes)
    with pytest.raises(ProviderError, match=words):
        registry.resolve(["third"])


def test_an_entry_point_cannot_take_a_built_in_kind_over(installed: list[metadata.EntryPoint]) -> None:
    installed.append(_entry("cpu", "ThirdParty"))
    assert type(registry.resolve(["cpu"])[0]) is CpuProvider
