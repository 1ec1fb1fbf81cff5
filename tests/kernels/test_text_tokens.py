"""com.microsoft's Tokenizer against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.kernels.harness import check_op, run_op

X = np.array(["ab  c,de", "", "zz", ", ,"], object)
MICROSOFT = {"domain": "com.microsoft", "opset": 1}


@pytest.mark.parametrize(
    "attributes",
    [
        {"separators": [""]},
        {"separators": [" ", ","]},
        {"separators": [" ", ","], "mincharnum": 2},
        {"separators": [" +", "[,e]"]},
        {"tokenexp": "[a-z]+"},
        {"tokenexp": "[a-z]"},
        {"tokenexp": "[a-z]*", "mincharnum": 2},
    ],
)
@pytest.mark.parametrize("mark", [0, 1])
def test_texts_become_tokens(attributes: dict[str, Any], mark: int) -> None:
    given = {"mark": mark, "pad_value": "#", "mincharnum": 1} | attributes
    check_op("Tokenizer", [X], **given, **MICROSOFT)
    check_op("Tokenizer", [X.reshape(2, 2)], **given, **MICROSOFT)
    check_op("Tokenizer", [X[1:2]], **given, **MICROSOFT)


def test_what_says_nothing_of_tokens_is_an_error() -> None:
    for attributes, message in (
        ({}, "tokenexp must be there"),
        ({"tokenexp": "a", "separators": ["b"]}, "tokenexp must be there"),
        ({"tokenexp": "("}, "does not compile"),
        ({"tokenexp": "a", "mincharnum": 0}, "not positive"),
    ):
        with pytest.raises(KernelError, match=message):
            run_op("Tokenizer", [X], **attributes, **MICROSOFT)
