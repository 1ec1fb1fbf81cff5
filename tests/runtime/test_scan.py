"""Scan: axes and directions, lengths of none and one, states that change their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.acceptance.harness import executor
from tests.runtime.harness import rig

PLACES = pytest.mark.parametrize("providers", [["cpu"], ["sim:0", "cpu"]], ids=["cpu", "sim"])


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def scanner(attributes: str, shape: str = "float[a,b,d]") -> str:
    return (
        f"g ({shape} x) => (float[p,q] s, {shape} y) {{ z = Constant<value_float=0.0>() s, y = Scan (z, x)"
        f" <num_scan_inputs=1, {attributes} body = body (float[i,j] st, float[i,j] e) => (float[i,j] st2, float[i,j] o)"
        " { st2 = Add(st, e) o = Identity(st2) }> }"
    )


@PLACES
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("out_axis", [0, 1, 2, -1, -3])
def test_every_axis_and_direction_of_inputs_and_outputs(
    providers: list[Any], axis: int, out_axis: int
) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for backwards, out_backwards in ((0, 0), (1, 0), (0, 1), (1, 1)):
        text = scanner(
            f"scan_input_axes=[{axis}], scan_input_directions=[{backwards}],"
            f" scan_output_axes=[{out_axis}], scan_output_directions=[{out_backwards}],"
        )
        rows = list(np.moveaxis(x, axis, 0))
        if backwards:
            rows.reverse()
        sums = list(np.cumsum(np.stack(rows), axis=0, dtype=np.float32))
        final = sums[-1]
        if out_backwards:
            sums.reverse()
        with executor(text, providers) as ex:
            for _ in range(2):
                out = ex.run({"x": x})
                assert np.array_equal(out["s"], final)
                assert np.array_equal(out["y"], np.stack(sums, out_axis))


SCALARS = (
    "g (float s0, float[n] x) => (float s, float[n] y) { s, y = Scan (s0, x) <num_scan_inputs=1,"
    " body = body (float a, float e) => (float b, float o) { b = Add(a, e) o = Neg(b) }> }"
)


@PLACES
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_scan_of_scalars_stacks_to_a_vector(providers: list[Any], n: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    with executor(SCALARS, providers) as ex:
        for _ in range(2):
            out = ex.run({"s0": np.float32(10), "x": x})
            assert out["s"] == 10 + x.sum()
            assert (out["y"].dtype, out["y"].shape) == (np.float32, (n,))
            assert out["y"].tolist() == (-(10 + np.cumsum(x))).tolist()


@PLACES
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_no_rows_give_empty_outputs_with_the_extents_of_a_row(providers: list[Any], axis: int) -> None:
    text = (
        f"g (float[n,m] x) => (float[p,q] y) {{ y = Scan (x) <num_scan_inputs=1, scan_output_axes=[{axis}],"
        " body = body (float[m] e) => (float[m] o) { o = Neg(e) }> }"
    )
    with executor(text, providers) as ex:
        y = ex.run({"x": np.zeros((0, 3), np.float32)})["y"]
        assert y.shape == ((0, 3) if axis == 0 else (3, 0))
        assert y.dtype == np.float32
        assert ex.run({"x": np.ones((2, 3), np.float32)})["y"].shape == ((2, 3) if axis == 0 else (3, 2))


@PLACES
def test_a_state_may_grow(providers: list[Any]) -> None:
    text = (
        "g (float[k] s0, float[n,2] x) => (float[m] s) { s = Scan (s0, x) <num_scan_inputs=1,"
        " body = body (float[p] a, float[2] e) => (float[q] b) { b = Concat<axis=0>(a, e) }> }"
    )
    with executor(text, providers) as ex:
        for _ in range(2):
            s = ex.run({"s0": f32(9), "x": f32(1, 2, 3, 4, 5, 6).reshape(3, 2)})["s"]
            assert s.tolist() == [9, 1, 2, 3, 4, 5, 6]


@PLACES
def test_several_inputs_are_scanned_together_each_in_its_own_direction(providers: list[Any]) -> None:
    text = (
        "g (float[n] x, float[2,n] w) => (float[n,2] y, float[n] z) { y, z = Scan (x, w) <num_scan_inputs=2,"
        " scan_input_axes=[0, 1], scan_input_directions=[0, 1],"
        " body = body (float a, float[2] b) => (float[2] o, float a) { o = Mul(a, b) }> }"
    )
    x, w = f32(1, 2, 3), f32(1, 2, 3, 4, 5, 6).reshape(2, 3)
    with executor(text, providers) as ex:
        out = ex.run({"x": x, "w": w})
        assert out["y"].tolist() == (x[:, None] * w.T[::-1]).tolist()
        assert out["z"].tolist() == [1, 2, 3]


@PLACES
@pytest.mark.parametrize(
    "axes", ["", "scan_input_axes=[1], scan_output_axes=[-1], scan_output_directions=[1],"]
)
def test_a_scan_of_one_row_runs_inline_where_asked_with_the_same_bits(
    providers: list[Any], axes: str
) -> None:
    text = (
        f"g (float[2] s0, float[n,m] x) => (float[2] s, float[p,q] y, float[k] z) {{ s, y = Scan (s0, x)"
        f" <num_scan_inputs=1, {axes} body = body (float[2] a, float[2] e) => (float[2] b, float[2] a)"
        " { b = Add(a, e) }> t = Constant<value_ints=[-1]>() z = Reshape(y, t) }"
    )
    x = f32(0.1, 0.2).reshape((2, 1) if axes else (1, 2))
    feeds = {"s0": f32(1, 2), "x": x}
    with executor(text, providers) as ex:
        wanted = [{k: (v.shape, v.tobytes()) for k, v in ex.run(feeds).items()} for _ in range(2)]
        assert sum(c["scans_inlined"] for c in ex.stats()["children"].values()) == 0
    with executor(text, providers, inline_single_scan=True) as ex:
        for _ in range(3):
            out = ex.run(feeds)
            assert {k: (v.shape, v.tobytes()) for k, v in out.items()} == wanted[0] == wanted[1]
        assert sum(c["scans_inlined"] for c in ex.stats()["children"].values()) == 3
        before = {k: v.tobytes() for k, v in out.items()}
        feeds["x"][...] = 9
        assert {k: v.tobytes() for k, v in out.items()} == before
        two = np.concatenate([x, x], 1 if axes else 0)
        assert ex.run({"s0": f32(1, 2), "x": two})["y"].size == 4
        assert sum(c["scans_inlined"] for c in ex.stats()["children"].values()) == 3


def test_the_switch_for_scans_of_one_row_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HETERO_INLINE_SINGLE_SCAN", "1")
    with executor(SCALARS) as ex:
        assert ex.run({"s0": np.float32(1), "x": f32(2)})["y"].tolist() == [-3]
        assert ex.stats()["children"]["cpu"]["scans_inlined"] == 1


BATCHED = (
    '<ir_version: 3, opset_import: ["": 8]>\n'
    "g (int64[B] lens, float[B, 2] s0, float[B, T, 2] x) => (float[B, 2] s, float[B, T, 2] y) {"
    " s, y = Scan (lens, s0, x) <num_scan_inputs=1, directions=[0],"
    " body = body (float[2] a, float[2] e) => (float[2] b, float[2] o) { b = Add(a, e) o = Neg(b) }> }"
)


@pytest.mark.parametrize("frame_bytes", [16384, 0])
@pytest.mark.parametrize("time", [0, 1, 3])
def test_a_batched_scan_keeps_its_samples_apart(frame_bytes: int, time: int) -> None:
    r = rig(BATCHED, "sim:0", frame_bytes=frame_bytes)
    x = np.arange(2 * time * 2, dtype=np.float32).reshape(2, time, 2)
    states = f32(0, 0, 100, 200).reshape(2, 2)
    sums = states[:, None] + np.cumsum(x, axis=1, dtype=np.float32)
    for _ in range(2):
        s, y = r(np.array([time, time]), states, x)
        assert s.tolist() == (sums[:, -1] if time else states).tolist()
        assert y.tolist() == (-sums).tolist()
