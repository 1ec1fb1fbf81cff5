"""Random draws: the distribution, and that a step of a node always draws the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError, MemoryLimitError, UnsupportedError
from hetero.kernels.base import lookup
from hetero.kernels.randomness import drawing
from hetero.types import TensorSpec
from tests.kernels.harness import operation, specs_of


def drawer(op_type: str, inputs: list[Any], opset: int = 22, name: str = "node", **attributes: Any) -> Any:
    """A call that draws once and returns a copy."""
    op = operation(op_type, inputs, opset=opset, **attributes)
    object.__setattr__(op, "name", name)
    definition = lookup("", op_type, op.version)
    assert definition is not None
    assert not definition.deterministic
    compiled = definition.compile(op, specs_of(inputs), np)
    assert compiled.bind is not None
    spec = compiled.outputs[0]
    assert isinstance(spec, TensorSpec)
    out = np.empty(spec.shape, spec.dtype)
    call = compiled.bind(inputs, [out], None)

    def draw() -> Any:
        call()
        return out.copy()

    return draw


@pytest.mark.parametrize("opset", [7, 22])
@pytest.mark.parametrize(("dtype", "numpy_dtype"), [(1, np.float32), (10, np.float16), (11, np.float64)])
def test_normal_draws_have_the_mean_and_scale(opset: int, dtype: int, numpy_dtype: Any) -> None:
    x = drawer("RandomNormal", [], opset, shape=[100, 200], dtype=dtype, mean=3.0, scale=0.5)()
    assert (x.shape, x.dtype) == ((100, 200), numpy_dtype)
    assert abs(float(x.astype(np.float64).mean()) - 3) < 0.02
    assert abs(float(x.astype(np.float64).std()) - 0.5) < 0.02


def test_uniform_draws_fill_the_interval() -> None:
    x = drawer("RandomUniformLike", [np.zeros((50, 100))], low=-2.0, high=6.0)()
    assert x.dtype == np.float64
    assert -2 <= x.min() < -1.9 < 5.9 < x.max() < 6
    assert abs(x.mean() - 2) < 0.1


def test_like_takes_the_shape_and_another_dtype() -> None:
    assert drawer("RandomNormalLike", [np.zeros((2, 3), np.int32)], dtype=1)().dtype == np.float32
    with pytest.raises(UnsupportedError, match="does not draw int32"):
        drawer("RandomNormalLike", [np.zeros((2, 3), np.int32)])


def test_bernoulli_draws_with_the_given_probabilities() -> None:
    p = np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 4000, 1)
    x = drawer("Bernoulli", [p], dtype=9)()
    assert x.dtype == np.bool_
    assert not x[0].any()
    assert x[2].all()
    assert abs(x[1].mean() - 0.25) < 0.03
    assert drawer("Bernoulli", [p])().dtype == np.float32


def test_multinomial_draws_by_log_probability() -> None:
    logits = np.array([[0.0, np.log(3), -np.inf, np.log(4)], [-50, -50, 100, -50]], np.float32)
    x = drawer("Multinomial", [logits], sample_size=8000, dtype=7)()
    assert (x.shape, x.dtype) == ((2, 8000), np.int64)
    shares = np.bincount(x[0], minlength=4) / 8000
    assert np.abs(shares - [0.125, 0.375, 0, 0.5]).max() < 0.03
    assert (x[1] == 2).all()
    assert drawer("Multinomial", [logits])().dtype == np.int32


def test_multinomial_refuses_rows_without_a_chance() -> None:
    with pytest.raises(KernelError, match="no finite log-probability"):
        drawer("Multinomial", [np.full((1, 2), -np.inf, np.float32)])()
    with pytest.raises(KernelError, match="needs \\[batch, classes\\]"):
        drawer("Multinomial", [np.zeros(3, np.float32)])
    with pytest.raises(UnsupportedError, match="does not draw float32"):
        drawer("Multinomial", [np.zeros((1, 3), np.float32)], dtype=1)


def test_draws_differ_by_call_node_and_seed_and_repeat_otherwise() -> None:
    def first_two(name: str = "a", **attributes: Any) -> list[Any]:
        draw = drawer("RandomNormal", [], name=name, shape=[4], **attributes)
        return [draw().tolist(), draw().tolist()]

    one, two = first_two()
    assert one != two
    assert first_two() == [one, two]
    assert first_two(name="b")[0] != one
    assert first_two(seed=1.0)[0] != one
    assert first_two(seed=0.0) == [one, two]


def test_a_step_replayed_elsewhere_draws_the_same_numbers() -> None:
    def steps(*numbers: int) -> list[Any]:
        draw = drawer("RandomUniform", [], shape=[3])
        drawn = []
        for number in numbers:
            with drawing(0, number):
                drawn.append([draw().tolist(), draw().tolist()])  # Twice, as in a loop body.
        return drawn

    whole = steps(0, 1, 2)
    assert steps(2) == whole[2:]
    assert steps(1, 2) == whole[1:]
    assert whole[0][0] != whole[0][1]
    assert whole[0] != whole[1]


def test_sizes_are_bounded() -> None:
    with pytest.raises(MemoryLimitError):
        drawer("RandomNormal", [], shape=[2**40, 2])
    with pytest.raises(KernelError, match="no shape"):
        drawer("RandomNormal", [], shape=[-1])
