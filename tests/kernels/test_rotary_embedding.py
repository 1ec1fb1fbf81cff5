"""RotaryEmbedding of both domains and MRotaryEmbedding, against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.errors import HeteroError
from tests.kernels.attention_peer import DOMAIN, check_contrib
from tests.kernels.harness import check_op, run_op

B, S, N, H, POSITIONS = 2, 3, 2, 8, 10


def f(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


FLAT, SPLIT = f(B, S, N * H), f(B, N, S, H)
IDS = np.random.default_rng(1).integers(0, POSITIONS, (B, S))


def tables(angles: int = H // 2) -> list[Any]:
    return [f(POSITIONS, angles, seed=2), f(POSITIONS, angles, seed=3)]


@pytest.mark.parametrize("x", [FLAT, SPLIT], ids=["flat", "split"])
@pytest.mark.parametrize("ids", [IDS, np.array([4]), np.array(7)], ids=["all", "first", "scalar"])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_heads_are_turned_by_their_positions(x: Any, ids: Any, interleaved: int) -> None:
    check_contrib("RotaryEmbedding", [x, ids, *tables()], interleaved=interleaved)
    check_contrib(
        "RotaryEmbedding", [x, ids, *tables(2)], interleaved=interleaved, rotary_embedding_dim=4, num_heads=N
    )


def test_scale_and_packing_change_nothing() -> None:
    check_contrib("RotaryEmbedding", [FLAT, IDS, *tables()], scale=2.0, is_packed_batching=1)


def test_half_precision() -> None:
    x, cos, sin = (a.astype(np.float16) for a in (FLAT, *tables()))
    check_contrib("RotaryEmbedding", [x, IDS, cos, sin], rtol=2e-3, atol=2e-3)
    x, cos, sin = (a.astype(ml_dtypes.bfloat16) for a in (FLAT, *tables()))
    (narrow,) = run_op("RotaryEmbedding", [x, IDS, cos, sin], opset=1, domain=DOMAIN)
    wide = [a.astype(np.float32) for a in (x, cos, sin)]
    (expected,) = run_op("RotaryEmbedding", [wide[0], IDS, *wide[1:]], opset=1, domain=DOMAIN)
    np.testing.assert_array_equal(narrow, expected.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("x", [FLAT, SPLIT], ids=["flat", "split"])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 4])
def test_the_standard_operator(x: Any, with_ids: bool, interleaved: int, turned: int) -> None:
    angles = (turned or H) // 2
    if with_ids:
        inputs = [x, *tables(angles), IDS]
    else:
        inputs = [x, f(B, S, angles, seed=4), f(B, S, angles, seed=5)]
    check_op(
        "RotaryEmbedding",
        inputs,
        opset=23,
        interleaved=interleaved,
        rotary_embedding_dim=turned,
        num_heads=N,
    )


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [[2, 1, 1], [1, 2, 1], [4, 0, 0]])
@pytest.mark.parametrize("x", [FLAT, SPLIT], ids=["flat", "split"])
def test_positions_in_time_height_and_width(layout: int, sections: list[int], x: Any) -> None:
    ids = np.random.default_rng(6).integers(0, POSITIONS, (3, B, S))
    check_contrib(
        "MRotaryEmbedding",
        [x, ids, *tables()],
        mrope_section=sections,
        mrope_layout=layout,
        num_heads=N,
        interleaved=layout,
    )


@pytest.mark.parametrize("ids", [np.full((B, S), POSITIONS), np.full((B, S), -1), np.array([POSITIONS - 1])])
def test_a_position_outside_the_table_is_an_error(ids: Any) -> None:
    with pytest.raises(HeteroError, match="leave the table of 10 positions"):
        run_op("RotaryEmbedding", [FLAT, ids, *tables()], opset=1, domain=DOMAIN)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([FLAT[0], IDS, *tables()], "expected three axes or four"),
        ([FLAT, IDS[:, :2], *tables()], "expected \\[2, 3\\]"),
        ([FLAT, IDS, tables()[0], tables(3)[1]], "cosines \\[10, 4\\]"),
        ([f(B, S, 20), IDS, *tables()], "is not heads of 8"),
        ([FLAT, IDS.astype(np.float32), *tables()], "not an integer"),
    ],
)
def test_operands_that_do_not_fit_are_named(inputs: list[Any], message: str) -> None:
    with pytest.raises(HeteroError, match=message):
        run_op("RotaryEmbedding", inputs, opset=1, domain=DOMAIN)


def test_the_standard_operator_needs_the_number_of_heads_of_a_flat_input() -> None:
    with pytest.raises(HeteroError, match="is needed"):
        run_op("RotaryEmbedding", [FLAT, *tables(), IDS], opset=23)
