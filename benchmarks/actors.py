"""Actors at work and at rest: a pipeline's efficiency, the CPU of idle children, the memory of shared weights."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.bare import Bare
from benchmarks.faults import local_ray
from benchmarks.ops import DOMAIN, SLEEP_S
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.executor import Transport

STAGES, BATCHES = 4, 200
IDLE_S = 5.0
WEIGHT_BYTES = 64 << 20
"""Of each of four weights."""


def pipeline(transport: Transport = "channels") -> float:
    """Share of the ideal: four stages that sleep 5 ms, 200 micro-batches of 1 KB, against the slowest stage alone."""
    nodes = [
        helper.make_node("Sleep", [f"v{k}"], [f"v{k + 1}"], domain=DOMAIN, name=f"s{k}")
        for k in range(STAGES)
    ]
    ends = [helper.make_tensor_value_info(f"v{k}", TensorProto.FLOAT, [256]) for k in (0, STAGES)]
    graph = helper.make_graph(nodes, "pipeline", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    options = RuntimeOptions(extensions="benchmarks.ops", max_in_flight=2 * STAGES)
    feeds = {"v0": np.zeros(256, np.float32)}
    with (
        local_ray(),
        HeterogeneousExecutor(
            model,
            [f"cpu:{k}" for k in range(STAGES)],
            overrides={f"s{k}": f"cpu:{k}" for k in range(STAGES)},
            transport=transport,
            options=options,
        ) as ex,
    ):
        for _ in ex.map([feeds] * 20, max_in_flight=2 * STAGES):
            pass
        started = time.perf_counter()
        for _ in ex.map([feeds] * BATCHES, max_in_flight=2 * STAGES):
            pass
        took = time.perf_counter() - started
    return (BATCHES + STAGES - 1) * SLEEP_S / took


def idle_cpu() -> tuple[float, float]:
    """Share of a core that the busiest child of a prepared executor takes while nothing is asked of it, and that an
    actor with nothing in it takes beside it."""
    with local_ray(), _weighted(1 << 18) as ex:
        remote: Any = ray.remote(Bare)
        bare = remote.options(num_cpus=0).remote()
        for _ in range(5):
            ex.run({"x": np.ones((1, 256), np.float32)})
        pids = [c["pid"] for c in ex.stats()["children"].values()]
        pids.append(ray.get(bare.pid.remote()))
        before = [_cpu_s(pid) for pid in pids]
        time.sleep(IDLE_S)
        *children, beside = [_cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
        return max(children) / IDLE_S, beside / IDLE_S


def memory(folder: str | None = None) -> tuple[float, float]:
    """What a model whose weights lie on four children of one machine adds to what is taken without them, over one copy
    of the weights: by the children and the object stores, and with the driver. Of a model in memory, or of one saved
    with external data in `folder`.

    Pages of files that no process maps are not counted: they are the system's cache, and free when memory is short.
    """
    taken = []
    for nbytes in (1 << 18, WEIGHT_BYTES):
        with local_ray(), _weighted(nbytes, folder) as ex:
            for _ in range(3):
                ex.run({"x": np.ones((1, 256), np.float32)})
            pids = [c["pid"] for c in ex.stats()["children"].values()]
            there = sum(map(_pss_bytes, pids)) + _store_bytes()
            taken.append((there, there + _pss_bytes(os.getpid())))
    one = STAGES * WEIGHT_BYTES
    return (taken[1][0] - taken[0][0]) / one, (taken[1][1] - taken[0][1]) / one


def _weighted(nbytes: int, folder: str | None = None) -> HeterogeneousExecutor:
    """Four products, each with a weight of so many bytes, on four children; read from `folder`, if there is one."""
    rows = max(1, nbytes // 4 // 256)
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    value = "x"
    for k in range(STAGES):
        weights.append(numpy_helper.from_array(rng.standard_normal((256, rows)).astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"], name=f"m{k}"))
        nodes.append(helper.make_node("Slice", [f"m{k}", "from", "to", "axis"], [f"v{k}"], name=f"v{k}"))
        value = f"v{k}"
    for name, number in (("from", 0), ("to", 256), ("axis", 1)):
        weights.append(numpy_helper.from_array(np.array([number], np.int64), name))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])
    y = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "weighted", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    places: Any = {f"[mv]{k}": f"cpu:{k}" for k in range(STAGES)}
    source: Any = model
    if folder is not None:
        source = Path(folder, "weighted.onnx")
        Path(folder, "weighted.bin").unlink(missing_ok=True)  # it would be appended to
        onnx.save_model(model, source, save_as_external_data=True, location="weighted.bin")
        del model, weights, graph
    return HeterogeneousExecutor(source, [f"cpu:{k}" for k in range(STAGES)], overrides=places)


def _cpu_s(pid: int) -> float:
    """By the scheduler, to the nanosecond: ticks miss, or hit, whatever runs a hundred times a second."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _pss_bytes(pid: int) -> int:
    """Its own pages, and its share of those that it shares, without the object store's and those of libraries, which
    it shares with whatever runs beside it."""
    taken, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):  # the head of a mapping
            path = fields[5] if len(fields) > 5 else ""
            counts = not path.startswith("/dev/shm") and ".so" not in path.rpartition("/")[2]
        elif fields[0] == "Pss:" and counts:
            taken += int(fields[1]) << 10
    return taken


def _store_bytes() -> int:
    """What lies in the object stores of this machine."""
    (line,) = [x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("Shmem:")]
    return int(line.split()[1]) << 10


def main() -> None:
    """Measure and print all."""
    print(f"pipeline of {STAGES} stages, channels: {pipeline():.2f} of the ideal (>= 0.95)", flush=True)
    idle, beside = idle_cpu()
    print(
        f"idle child: {100 * idle:.2f} % of a core (<= 1 %), a bare actor beside it {100 * beside:.2f} %",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for what, where in (("in memory", None), ("with external data", folder)):
            children, all_ = memory(where)
            print(
                f"weights of a model {what} on four children: {children:.2f} of one copy (<= 1.2), "
                f"{all_:.2f} with the driver",
                flush=True,
            )


if __name__ == "__main__":
    main()
