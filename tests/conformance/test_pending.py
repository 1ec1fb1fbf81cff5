"""The lists of exceptions name cases that exist, and those that are to come still fail."""

from __future__ import annotations

from collections import Counter

import pytest

from hetero.errors import HeteroError
from tests.conformance.pending import PENDING
from tests.conformance.suite import DEVICES, DRAWN, ROUNDED, Case, cases

NAMES = [name for names in PENDING.values() for name in names]


@pytest.mark.parametrize("case", [c for c in cases() if c.name in NAMES], ids=str)
def test_a_pending_case_still_fails(case: Case) -> None:
    with pytest.raises((HeteroError, AssertionError)):
        case.run()


def test_every_exception_is_a_case_of_the_suite_and_is_listed_once() -> None:
    listed = Counter([*NAMES, *DRAWN, *ROUNDED])
    assert [name for name, count in listed.items() if count > 1] == []
    assert listed.keys() - {case.name for case in cases()} == set()


def test_the_suite_is_all_there() -> None:
    groups = Counter(case.group for case in cases())
    # As of onnx 1.20; later ones have more.
    least = {"Node": 1500, "Real": 9, "Simple": 20, "PyTorchConverted": 82, "PyTorchOperator": 35}
    assert groups.keys() == least.keys()
    assert all(groups[group] >= count * len(DEVICES) for group, count in least.items())
