"""Schemas are looked up under the imported opset, and unknown ones say nothing."""

from __future__ import annotations

import pytest

from hetero.errors import ModelError
from hetero.program.schema import canonical_domain, imported_version, signature, since_version


def test_the_since_version_is_the_newest_that_the_opset_has() -> None:
    assert [since_version("", "Softmax", v) for v in (1, 11, 12, 13, 20)] == [1, 11, 11, 13, 13]
    assert since_version("ai.onnx.ml", "LabelEncoder", 3) == 2


def test_an_unknown_or_deprecated_operator_has_the_opset_for_a_version() -> None:
    assert since_version("com.acme", "Softmax", 7) == 7
    assert since_version("", "Upsample", 11) == 11
    assert signature("com.acme", "Softmax", 7) is None
    assert signature("", "Upsample", 11) is None


def test_names_and_versions_that_onnx_cannot_take_are_unknown() -> None:
    assert since_version("", "Add\ud800", 17) == 17
    assert since_version("", "Add", 2**40) == 2**40
    assert signature("", "Add", -1) is None


def test_a_signature_knows_counts_and_which_inputs_must_be_there() -> None:
    clip = signature("", "Clip", 13)
    assert clip is not None
    assert (clip.min_inputs, clip.max_inputs, clip.min_outputs, clip.max_outputs) == (1, 3, 1, 1)
    assert [clip.required(k) for k in range(3)] == ["input", None, None]
    concat = signature("", "Concat", 13)
    assert concat is not None
    assert concat.required(0) == concat.required(5) == "inputs"


def test_both_spellings_of_the_onnx_domain_are_one() -> None:
    assert canonical_domain("ai.onnx") == ""
    assert imported_version("", {"ai.onnx": 9}, "Add") == 9
    assert imported_version("", {"": 9}, "Add") == 9


def test_only_custom_domains_may_go_without_import() -> None:
    assert imported_version("com.acme", {}, "Thing") == 1
    with pytest.raises(ModelError, match=r"'ai.onnx.ml' without importing"):
        imported_version("ai.onnx.ml", {"": 17}, "Scaler", "n")
