"""What children ask for, and that a cluster without room says so and keeps nothing."""

from __future__ import annotations

from typing import Any

import pytest
from ray.util import placement_group_table

from actors.cluster import RayLease
from actors.resources import TRACE_OF_CPU, RayOptions, reserve, wish
from hetero.errors import OptionError, TransportError
from hetero.providers.base import ProviderConfig


def bundle(name: str, *, ours: bool = False, **options: Any) -> dict[str, float]:
    return wish(ProviderConfig(name), RayOptions(**options), ours=ours).bundle


def test_a_cpu_child_takes_a_cpu_of_a_cluster_and_a_gpu_child_a_gpu() -> None:
    assert bundle("cpu") == {"CPU": 1.0}
    assert bundle("cuda:1") == {"CPU": TRACE_OF_CPU, "GPU": 1.0}
    assert bundle("sim:0") == {"CPU": TRACE_OF_CPU}


def test_children_always_fit_a_local_ray_of_our_own() -> None:
    assert bundle("cpu:3", ours=True) == {"CPU": TRACE_OF_CPU}
    assert bundle("cpu", ours=True, cpus_per_child=2.0) == {"CPU": 2.0}


def test_resources_and_labels_go_by_kind_and_then_by_name() -> None:
    options = RayOptions(
        resources={"cuda": {"A100": 1, "slot": 1}, "cuda:1": {"slot": 2}}, labels={"cuda:1": {"zone": "a"}}
    )
    first, second = (wish(ProviderConfig(name), options, ours=False) for name in ("cuda:0", "cuda:1"))
    assert first.bundle["slot"] == 1
    assert second.bundle == {"CPU": TRACE_OF_CPU, "GPU": 1.0, "A100": 1, "slot": 2}
    assert (first.labels, second.labels) == ({}, {"zone": "a"})
    assert second.actor_options() == {
        "num_cpus": TRACE_OF_CPU,
        "num_gpus": 1.0,
        "resources": {"A100": 1, "slot": 2},
    }
    assert "cuda:1" in str(second)
    assert "zone" in str(second)


@pytest.mark.parametrize(
    "options", [{"strategy": "TIGHT"}, {"cpus_per_child": -1}, {"threads_per_child": 0}, {"colour": "red"}]
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        RayOptions.of(options)


def live_groups() -> int:
    return sum(g["state"] != "REMOVED" for g in placement_group_table().values())


@pytest.mark.ray
@pytest.mark.parametrize("ours", [True, False])
def test_without_room_the_error_says_what_was_wanted_and_what_there_is(
    local_ray: RayLease, ours: bool
) -> None:
    options = RayOptions(resources={"cpu": {"unobtainium": 3}})
    wishes = [wish(ProviderConfig("cpu:0"), options, ours=True)]
    with pytest.raises(TransportError, match=r"unobtainium: 3.*there is CPU: .* of .* free"):
        reserve(wishes, options, 0.2, ours=ours)
    assert live_groups() == 0


@pytest.mark.ray
def test_labels_that_no_node_has_leave_the_group_unplaced(local_ray: RayLease) -> None:
    options = RayOptions(labels={"cpu": {"zone": "elsewhere"}})
    with pytest.raises(TransportError, match="elsewhere"):
        reserve([wish(ProviderConfig("cpu"), options, ours=True)], options, 0.2, ours=True)
    assert live_groups() == 0
