"""The suite is complete, and the lists of exceptions name cases that exist."""

from __future__ import annotations

from collections import Counter

from tests.conformance.suite import DEVICES, DRAWN, ROUNDED, SPLIT, cases


def test_every_exception_is_a_case_of_the_suite_and_is_listed_once() -> None:
    listed = Counter([*DRAWN, *ROUNDED])
    assert [name for name, count in listed.items() if count > 1] == []
    assert listed.keys() - {case.name for case in cases()} == set()


def test_the_suite_is_all_there() -> None:
    groups = Counter(case.group for case in cases() if case.device in DEVICES)
    # As of onnx 1.20; later ones have more.
    least = {"Node": 1500, "Real": 9, "Simple": 20, "PyTorchConverted": 82, "PyTorchOperator": 35}
    assert groups.keys() == least.keys()
    assert all(groups[group] >= count * len(DEVICES) for group, count in least.items())
    assert sum(case.device == SPLIT for case in cases("Node")) >= 250
