"""Sequences between actors: elements are put once, handles move, and an element is brought when it is read."""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero import HeterogeneousExecutor
from hetero.types import LazySequence, SequenceValue
from tests.runtime.test_sequences import HEAD

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]

THREE: list[Any] = [
    ("cpu:0", {"ops": ["SplitToSequence", "Abs"]}),
    ("cpu:1", {"ops": ["SequenceInsert", "SequenceErase", "Neg"]}),
    ("cpu:2", {}),
]
MOVES = """g (float[n] x, float[k] extra) => (seq(float[m]) out, int64 count, float[m] one)
<int64 pieces = {250}, int64 at = {1}, int64 first = {0}> {
  a = Abs(x)
  parts = SplitToSequence <axis = 0> (a, pieces)
  e = Neg(extra)
  longer = SequenceInsert(parts, e, at)
  out = SequenceErase(longer, first)
  count = SequenceLength(out)
  one = SequenceAt(out, first)
}"""
PARTS, WIDTH = 1000, 250
X = np.arange(PARTS * WIDTH, dtype=np.float32)
EXTRA = np.arange(WIDTH, dtype=np.float32)


def executor(text: str = MOVES, providers: Any = THREE, **options: Any) -> HeterogeneousExecutor:
    model = onnx.parser.parse_model(HEAD + text)
    return HeterogeneousExecutor(model, providers, **options)


def moved(ex: HeterogeneousExecutor) -> dict[str, int]:
    """Bytes that came to and left each child in parcels, elements that were put aside left out."""
    children = ex.stats()["children"]
    return {name: c["bytes_in"] + c["elements"]["element_bytes_fetched"] for name, c in children.items()}


def test_a_thousand_elements_cross_three_actors_and_no_byte_moves_twice() -> None:
    with executor() as ex:
        assert len({p.child for p in ex.plan.partitions}) == 3
        out = ex.run({"x": X, "extra": EXTRA})
        sequence = out["out"]
        assert isinstance(sequence, LazySequence)
        assert out["count"] == PARTS
        assert out["one"].tolist() == (-EXTRA).tolist()
        counts = moved(ex)
        assert counts["cpu:1"] < 10_000, "handles only, and `extra`"
        assert counts["cpu:2"] < 10_000, "of the elements, the one that was picked"
        before = ex.stats()["transport"]["element_bytes_fetched"]
        assert sequence[-1].tolist() == X[-WIDTH:].tolist()
        assert sequence[-1] is sequence[-1]
        assert ex.stats()["transport"]["element_bytes_fetched"] - before == 4 * WIDTH
        want = [-EXTRA, *X.reshape(PARTS, WIDTH)[1:]]
        assert all(np.array_equal(a, b) for a, b in zip(sequence, want, strict=True))
        brought = ex.stats()["transport"]["element_bytes_fetched"] - before
        assert brought == X.nbytes - 4 * WIDTH, (
            "the first was erased, and what stands there came with its parcel"
        )


def test_elements_survive_the_actor_that_made_them_and_the_executor() -> None:
    with executor() as ex:
        sequence = ex.run({"x": X, "extra": EXTRA})["out"]
        os.kill(ex.stats()["children"]["cpu:0"]["pid"], signal.SIGKILL)
        assert sequence[1].tolist() == X[WIDTH : 2 * WIDTH].tolist()
        again = ex.run({"x": X + 1, "extra": EXTRA})["out"]
        assert again[1].tolist() == (X + 1)[WIDTH : 2 * WIDTH].tolist()
    assert sequence[7].tolist() == X[7 * WIDTH : 8 * WIDTH].tolist(), (
        "it was brought when the executor closed"
    )
    copy = pickle.loads(pickle.dumps(again))
    assert len(copy) == PARTS
    assert np.array_equal(copy[5], again[5])


BACK = """g (seq(float[m]) s, int64 at) => (float[m] one, seq(float[m]) rest) {
  one = SequenceAt(s, at)
  rest = SequenceErase(s, at)
}"""


def test_what_came_out_goes_into_a_further_step_by_reference() -> None:
    with executor() as ex, executor(BACK, ["cpu"], transport="objects") as back:
        sequence = ex.run({"x": X, "extra": EXTRA})["out"]
        out = back.run({"s": sequence, "at": np.array(3)})
        assert np.array_equal(out["one"], X[3 * WIDTH : 4 * WIDTH])
        assert len(out["rest"]) == PARTS - 1
        counts = moved(back)
        assert counts["cpu"] < 10_000
        given = SequenceValue([EXTRA + k for k in range(300)])
        assert np.array_equal(back.run({"s": given, "at": np.array(-1)})["one"], EXTRA + 299)
        assert moved(back)["cpu"] - counts["cpu"] < 10_000


@pytest.mark.parametrize("transport", ["objects", "channels", "auto"])
def test_every_road_gives_the_same_elements(transport: Any) -> None:
    with executor(transport=transport) as ex, executor(children="inline") as inline:
        feeds = {"x": X[: 20 * WIDTH], "extra": EXTRA}
        want = inline.run(feeds)["out"]
        for _ in range(4):
            got = ex.run(feeds)["out"]
            assert len(got) == len(want)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


def test_small_sequences_travel_with_their_parcel() -> None:
    with executor() as ex:
        out = ex.run({"x": X[: 4 * WIDTH], "extra": EXTRA})["out"]
        assert not isinstance(out, LazySequence)
        assert [e.tolist() for e in out] == [
            (-EXTRA).tolist(),
            *X[WIDTH : 4 * WIDTH].reshape(3, WIDTH).tolist(),
        ]
