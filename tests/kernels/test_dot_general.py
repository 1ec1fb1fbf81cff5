"""DotGeneral against einsum in float64, and contractions as work that is planned once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from hetero import HeterogeneousExecutor
from hetero.errors import KernelError
from tests.kernels.harness import run_op

DTYPES = [np.float32, np.float64, np.complex64, np.complex128, np.int64]


def values(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    real = draw.integers(-4, 5, shape)
    imaginary = 1j * draw.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else 0
    return np.asarray(real + imaginary, dtype)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Any, Any, dict[str, list[int]], Any]:
    """(lhs, rhs, attributes, expected)."""
    counts = [draw(st.integers(0, 2)) for _ in range(4)]  # batch, contract, lhs's own, rhs's own
    names = "abcdefgh"
    groups = []
    for count in counts:
        groups.append(names[:count])
        names = names[count:]
    batch, contract, left, right = groups
    extents = {x: draw(st.integers(1, 4)) for x in "".join(groups)}
    lhs = "".join(draw(st.permutations(batch + contract + left)))
    rhs = "".join(draw(st.permutations(batch + contract + right)))
    dtype = draw(st.sampled_from(DTYPES))
    a, b = (values(tuple(extents[x] for x in t), dtype, draw(st.integers(0, 99))) for t in (lhs, rhs))
    conj = [draw(st.integers(0, 1)) for _ in range(2)]
    free = [x for x in lhs if x in left], [x for x in rhs if x in right]
    out = batch + "".join(free[0]) + "".join(free[1])
    given_ = [x.conj() if c else x for x, c in zip((a, b), conj, strict=True)]
    expected = np.einsum(f"{lhs},{rhs}->{out}", *given_)
    attributes = {
        "lhs_batch": [lhs.index(x) for x in batch],
        "rhs_batch": [rhs.index(x) - len(rhs) for x in batch],
        "lhs_contract": [lhs.index(x) for x in contract],
        "rhs_contract": [rhs.index(x) for x in contract],
        "lhs_conj": conj[0],
        "rhs_conj": conj[1],
    }
    return a, b, attributes, expected


@given(contractions())
def test_any_contraction_is_einsums(case: tuple[Any, Any, dict[str, Any], Any]) -> None:
    a, b, attributes, expected = case
    (y,) = run_op("DotGeneral", [a, b], domain="hetero", opset=1, **attributes)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)  # small integers: exact in every dtype


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"lhs_contract": [1]}, "go together in pairs"),
        ({"lhs_contract": [2], "rhs_contract": [0]}, "axis 2 of"),
        ({"lhs_contract": [1], "rhs_contract": [1]}, "extents 3 and 4"),
        ({"lhs_contract": [1, 1], "rhs_contract": [0, 0]}, "named before"),
    ],
)
def test_axes_that_do_not_go_together_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run_op("DotGeneral", [np.ones((2, 3)), np.ones((3, 4))], domain="hetero", opset=1, **attributes)


def contraction_model() -> Any:
    nodes = [
        helper.make_node("DotGeneral", ["x", "y"], ["d"], domain="hetero", lhs_contract=[1], rhs_contract=[1],
                         lhs_conj=1, name="dot"),
        helper.make_node("Identity", ["d"], ["z"]),
    ]  # fmt: skip
    complex64 = TensorProto.COMPLEX64
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, complex64, ["m" + n, "k"]) for n in "xy"],
        [helper.make_tensor_value_info("z", complex64, None)],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("hetero", 1)]
    )


@pytest.mark.parametrize("provider", ["cpu", "sim:0"])
def test_a_model_may_use_it(provider: str) -> None:
    x, y = values((2, 5), np.complex64, 1), values((3, 5), np.complex64, 2)
    with HeterogeneousExecutor(
        contraction_model(), list(dict.fromkeys([provider, "cpu"])), children="inline"
    ) as ex:
        for _ in range(3):
            np.testing.assert_array_equal(ex.run({"x": x, "y": y})["z"], x.conj() @ y.T)


def test_what_a_contraction_works_out_is_kept_until_shapes_change(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    searched = np.einsum_path

    def counting(*args: Any, **kwargs: Any) -> Any:
        paths.append(args[0])
        return searched(*args, **kwargs)

    monkeypatch.setattr(np, "einsum_path", counting)
    graph = helper.make_graph(
        [helper.make_node("Einsum", ["a", "b", "c"], ["y"], equation="ij,jk,kl->il")],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [f"{n}0", f"{n}1"]) for n in "abc"],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with HeterogeneousExecutor(model, ["cpu"], children="inline") as ex:
        for n, searches in ((4, 1), (4, 1), (7, 2), (4, 2), (7, 2)):
            feeds = {k: np.random.default_rng(n).standard_normal((n, n)) for k in "abc"}
            np.testing.assert_allclose(ex.run(feeds)["y"], feeds["a"] @ feeds["b"] @ feeds["c"])
            assert len(paths) == searches
