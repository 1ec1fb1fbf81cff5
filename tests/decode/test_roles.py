"""What a decoder's inputs and outputs are for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hetero
from hetero.decode import Decoder
from hetero.decode.roles import roles_of
from hetero.errors import OptionError
from hetero.program.program import Port
from hetero.types import DataType
from tests.decode.fake import Signature, port
from tests.models.decoder import FORMS, SMALL, Form, build

I64, F32 = DataType.INT64, DataType.FLOAT
IDS = port("input_ids", I64, "b", "s")
LOGITS = port("logits", F32, "b", "s", 50)


def past(layer: int, steps: int | str | None, part: str = "key", heads: int | str = 2) -> Port:
    return port(f"past_key_values.{layer}.{part}", F32, "b", heads, steps, 8)


def present(layer: int, steps: int | str | None, part: str = "key") -> Port:
    return port(f"present.{layer}.{part}", F32, "b", 2, steps, 8)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_test_decoder_is_understood(form: Form) -> None:
    roles = roles_of(hetero.plan(build(SMALL, form), ["cpu"]))
    assert len(roles.caches) == 2 * SMALL.layers
    assert all((c.heads, c.size) == (SMALL.kv_heads, SMALL.size) for c in roles.caches)
    assert roles.capacity == (None if form == "plain" else SMALL.max_length)
    assert roles.vocab == SMALL.vocab


@pytest.mark.parametrize(
    ("before", "after", "max_length", "capacity", "limit"),
    [
        ("past", "past + s", None, None, None),
        ("past", "total", 9, None, 9),
        (None, None, None, None, None),
        (32, 32, None, 32, 32),
        (32, 32, 9, 32, 9),
        (32, 32, 99, 32, 32),
        ("size", "size", 9, 9, 9),
    ],
)
def test_a_cache_is_a_buffer_where_its_size_stays(
    before: int | str | None,
    after: int | str | None,
    max_length: int | None,
    capacity: int | None,
    limit: int | None,
) -> None:
    signature = Signature((IDS, past(0, before)), (LOGITS, present(0, after)))
    roles = roles_of(signature, max_length)
    assert (roles.capacity, roles.limit) == (capacity, limit)


@given(st.integers(1, 3), st.integers(0, 9), st.integers(1, 4))
def test_what_is_fed_beside_the_caches_follows_from_the_lengths(batch: int, before: int, new: int) -> None:
    inputs = (
        port("input_ids", DataType.INT32, "b", "s"),
        past(0, 64),
        port("attention_mask", DataType.BFLOAT16, "b", "t"),
        port("position_ids", I64, "b", "s"),
        port("seqlens_k", DataType.INT32, "b", 1),
        port("total_sequence_length", DataType.INT32, 1),
        port("write_indices", I64, "b"),
        port("nonpad_kv_seqlen", I64, "b"),
    )
    got = roles_of(Signature(inputs, (LOGITS, present(0, 64)))).feeds(
        np.zeros((batch, new), np.int64), before
    )
    total = before + new
    assert {name: (v.dtype, v.shape) for name, v in got.items()} == {
        "input_ids": (np.int32, (batch, new)),
        "attention_mask": (ml_dtypes.bfloat16, (batch, total)),
        "position_ids": (np.int64, (batch, new)),
        "seqlens_k": (np.int32, (batch, 1)),
        "total_sequence_length": (np.int32, (1,)),
        "write_indices": (np.int64, (batch,)),
        "nonpad_kv_seqlen": (np.int64, (batch,)),
    }
    assert got["attention_mask"].all()
    assert got["position_ids"].tolist() == [list(range(before, total))] * batch
    assert set(got["seqlens_k"].flat) == {total - 1}
    assert got["total_sequence_length"].tolist() == [total]
    assert set(got["write_indices"].tolist()) == {before}
    assert set(got["nonpad_kv_seqlen"].tolist()) == {total}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((past(0, "p"),), (LOGITS, present(0, "t")), r"no 'input_ids', an integer input \(batch, sequence\)"),
        ((IDS, past(0, "p")), (present(0, "t"),), "no 'logits', a float output"),
        ((IDS,), (LOGITS,), r"no input past_key_values\.\*"),
        ((IDS, past(0, "p")), (LOGITS,), r"no 'present\.0\.key', floats \(batch, heads, steps, size\)"),
        (
            (IDS, past(0, "p")),
            (port("logits", F32, "b", 50), present(0, "t")),
            r"'logits' is float\[b, 50\], not a float output \(batch, sequence, vocab\)",
        ),
        (
            (port("input_ids", F32, "b", "s"), past(0, "p")),
            (LOGITS, present(0, "t")),
            r"'input_ids' is float\[b, s\], not an integer",
        ),
        ((IDS, past(0, "p", heads="h")), (LOGITS, present(0, "t")), "must be numbers"),
        (
            (IDS, past(0, "p"), port("encoder_hidden_states", F32, "b", "e", 8)),
            (LOGITS, present(0, "t")),
            "inputs of unknown meaning: encoder_hidden_states",
        ),
        (
            (IDS, past(0, "p"), port("attention_mask", F32, "b", 1, "s", "t")),
            (LOGITS, present(0, "t")),
            r"'attention_mask' is float\[b, 1, s, t\], not numbers of rank 2",
        ),
        (
            (IDS, past(0, 8), past(0, "p", "value")),
            (LOGITS, present(0, 8), present(0, "t", "value")),
            "caches of different sizes: 8, growing",
        ),
        ((IDS, past(0, "n")), (LOGITS, present(0, "n")), "no max_length, and .* symbolic size 'n'"),
    ],
)
def test_what_a_decoder_lacks_is_named(
    inputs: tuple[Port, ...], outputs: tuple[Port, ...], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        roles_of(Signature(inputs, outputs))


def test_everything_that_is_missing_is_named_at_once() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Tanh(x) }'
    )
    with (
        hetero.HeterogeneousExecutor(model, ["cpu"], children="inline") as ex,
        pytest.raises(OptionError) as caught,
    ):
        Decoder(ex, bound=False)
    for part in ("input_ids", "logits", "past_key_values", "unknown meaning: x"):
        assert part in str(caught.value)


def test_a_max_length_below_1_is_refused() -> None:
    with pytest.raises(OptionError, match="max_length must be at least 1, not 0"):
        roles_of(Signature((IDS, past(0, "p")), (LOGITS, present(0, "t"))), 0)
