"""The operating system and LLVM say the same of the processor."""

from __future__ import annotations

import sys

import pytest

from hetero.kernels import processor
from hetero.kernels.jit_tiles import machine_has

binding = pytest.importorskip("llvmlite.binding")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a file for it")
@pytest.mark.parametrize("feature", ["avx2", "fma", "avx512f", "avx512vnni", "avx512bw", "no-such-feature"])
def test_features_have_llvms_names(feature: str) -> None:
    machine_has.cache_clear()
    assert machine_has(feature) == bool(binding.get_host_cpu_features().get(feature))


def test_what_was_chosen_for_numba_goes_before_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+sse2,-avx2")
    machine_has.cache_clear()
    assert machine_has("sse2")
    assert not machine_has("avx2")
    machine_has.cache_clear()


def test_without_a_word_of_features_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "description", lambda: "model name\t: some other\n")
    processor.features.cache_clear()
    assert processor.features() == frozenset()
    processor.features.cache_clear()
