"""Eight threads with shapes of their own get what one thread gets."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from hetero.errors import KernelError
from tests.acceptance.harness import NAMES, PROVIDERS, executor

TEXT = """g (float[n, 4] x, int64[k] i) => (y, z) { a = Exp(x) t = Transpose<perm=[1, 0]>(a)
    m = MatMul(a, t) r = Relu(x)
    places = NonZero(r) f = Cast<to=1>(places) s = ReduceSum<keepdims=0>(f) b = Add(m, s) y = Gather(b, i)
    three = Constant<value_int=3>() c = Constant<value = bool {1}>()
    z = Loop<body = l (int64 k, bool c1, float[p, 4] v) => (bool c2, float[p, 4] v2) {
      c2 = Identity(c1) w = Mul(v, a) v2 = Tanh(w) }>(three, c, x) }"""


def feeds(n: int, seed: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return {"x": x, "i": np.array([n - 1, 0])}


@pytest.mark.parametrize("providers", PROVIDERS, ids=NAMES)
def test_eight_threads_with_mixed_shapes_and_failing_steps_get_the_bits_of_one(providers: list[Any]) -> None:
    with executor(TEXT) as alone:
        want = {
            (n, s): [v.tobytes() for v in alone.run(feeds(n, s)).values()]
            for n in range(1, 6)
            for s in range(3)
        }
    wrong: list[Any] = []
    with executor(TEXT, providers) as ex:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(15):
                    n, s = int(rng.integers(1, 6)), int(rng.integers(3))
                    if rng.random() < 0.2:
                        with pytest.raises(KernelError):
                            ex.run(feeds(n, s) | {"i": np.array([99])})
                    elif [v.tobytes() for v in ex.run(feeds(n, s)).values()] != want[n, s]:
                        wrong.append((n, s))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []
        assert all(c["resident_steps"] == 0 for c in ex.stats()["children"].values())
