"""Children on a cluster of several nodes: where they go, what they see, what they share; what is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import ray
from onnx import TensorProto, helper, numpy_helper
from ray.experimental import get_object_locations

from benchmarks.models import encoder
from cluster import LocalCluster
from hetero import HeterogeneousExecutor, RuntimeOptions
from hetero.errors import ClosedError, OptionError, TransportError

ROOT = Path(__file__).parents[2]
TABLE_BYTES = 32 << 20
TEXT = '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { a = Neg(x) b = Exp(a) y = Abs(b) }'
X = {"x": np.zeros(3, np.float32)}


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first test, since it is of a process that has no Ray yet."""
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def remembered(*args: Any, **keywords: Any) -> str:
        made.append(Path(mkdtemp(*args, **keywords)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", remembered)
    before = dict(os.environ)
    with pytest.raises(TransportError, match="cannot start a local cluster"):
        LocalCluster(1, resources=[{"CPU": 1}]).start()
    assert dict(os.environ) == before
    assert made
    assert not made[0].exists()
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalCluster]:
    """Three nodes with two fake GPUs each, in the zones a, b and c; the second one has slots."""
    zones = [{"zone": zone} for zone in "abc"]
    with LocalCluster(
        3, cpus_per_node=1, gpus_per_node=2, labels=zones, resources=[{}, {"slot": 4}], store_bytes=96 << 20
    ) as cluster:
        yield cluster
        directory = str(cluster._directory)
    assert set(opened(directory)) <= {os.getpid()}  # Ray does not close all of its own files


def executor(providers: list[Any], model: Any = TEXT, **ray_options: Any) -> HeterogeneousExecutor:
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    return HeterogeneousExecutor(proto, providers, ray_options=ray_options)


def three(kind: str) -> list[Any]:
    """One provider for each node of TEXT."""
    return [(f"{kind}:{k}", {"ops": [op]}) for k, op in enumerate(("Neg", "Exp", "Abs"))]


def node_of(ex: HeterogeneousExecutor) -> dict[str, str]:
    return {name: child["node_id"] for name, child in ex.stats()["children"].items()}


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_stages_spread_over_nodes_give_the_bits_of_the_whole(nodes: LocalCluster) -> None:
    model = encoder(layers=3, hidden=32, heads=4)
    x = {"x": np.random.default_rng(0).standard_normal((2, 6, 32)).astype(np.float32)}
    with HeterogeneousExecutor(
        model,
        ["sim:0", "sim:1", "sim:2"],
        stages="auto",
        ray_options={"strategy": "STRICT_SPREAD", "address": nodes.address},
    ) as ex:
        assert set(node_of(ex).values()) == {node.id for node in nodes.nodes}
        got = [ex.run(x), *ex.map([x, x])]
    with HeterogeneousExecutor(model, ["cpu"], children="inline") as whole:
        want = {k: v.tobytes() for k, v in whole.run(x).items()}
    assert all({k: v.tobytes() for k, v in one.items()} == want for one in got)


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_children_go_where_their_labels_and_resources_are_and_see_the_gpus_they_reserved(
    nodes: LocalCluster,
) -> None:
    first, second, third = three("sim")
    where: dict[str, Any] = {
        "labels": {"sim:0": {"zone": "b"}, "cpu": {"zone": "in(c, d)"}},
        "resources": {"sim": {"GPU": 1}, "sim:1": {"slot": 1}},
    }
    with executor([first, second, ("cpu", third[1])], **where) as ex:
        _, b, c = (node.id for node in nodes.nodes)
        assert node_of(ex) == {"sim:0": b, "sim:1": b, "cpu": c}
        seen = {name: child["visible_devices"] for name, child in ex.stats()["children"].items()}
        assert {seen["sim:0"], seen["sim:1"]} == {"0", "1"}
        assert seen["cpu"] == ""
        assert ex.run(X)["y"].tolist() == [1, 1, 1]


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_children_that_fit_no_node_are_an_error_that_says_what_there_is(nodes: LocalCluster) -> None:
    with pytest.raises(TransportError, match=r"no room for all children.*GPU: 3.*GPU: . of 6 free"):
        HeterogeneousExecutor(
            onnx.parser.parse_model(TEXT),
            ["sim:0"],
            options=RuntimeOptions(start_timeout_s=1.0),
            ray_options={"resources": {"sim": {"GPU": 3}}},
        )


def lookups() -> onnx.ModelProto:
    """Two children look into one table of 32 MiB; a third does without."""
    table = np.arange(TABLE_BYTES // 4, dtype=np.float32).reshape(-1, 1024)
    names = (("x", TensorProto.INT64, [None]), ("y", TensorProto.FLOAT, [None, 1024]))
    x, y = (helper.make_tensor_value_info(*row) for row in names)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["t", "x"], ["a"], name="first"),
            helper.make_node("Neg", ["a"], ["b"], name="middle"),
            helper.make_node("Gather", ["t", "x"], ["c"], name="second"),
            helper.make_node("Add", ["b", "c"], ["y"], name="sum"),
        ],
        "g",
        [x],
        [y],
        [numpy_helper.from_array(table, "t")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def private_bytes(pid: int) -> int:
    """Memory that the process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private"))


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_weight_is_once_on_each_node_that_needs_it_however_many_children_do(nodes: LocalCluster) -> None:
    providers = ["cpu:0", "cpu:1", "cpu:2"]
    overrides = {"first": "cpu:0", "second": "cpu:1", "middle": "cpu:2", "sum": "cpu:2"}
    packed = {"strategy": "STRICT_PACK", "labels": {"cpu:0": {"zone": "b"}}, "cpus_per_child": 0}
    options = RuntimeOptions(map_weights=False)
    with HeterogeneousExecutor(
        lookups(), providers, overrides=overrides, options=options, ray_options=packed
    ) as ex:
        rows = np.arange(4)
        assert not ex.run({"x": rows})["y"].any()
        head, needs, not_needed = (node.id for node in nodes.nodes)
        assert set(node_of(ex).values()) == {needs}
        large = [
            where["node_ids"]
            for where in get_object_locations(list(ex._children._held.weights.refs.values())).values()  # type: ignore[attr-defined]
            if where["object_size"] >= TABLE_BYTES
        ]
        assert [sorted(ids) for ids in large] == [
            sorted((head, needs))
        ]  # the driver's own copy, and one more
        assert not_needed not in large[0]
        # cpu:2 has no use for the table. Had another a copy of its own, it would have 32 MiB more than that one.
        own = {name: private_bytes(child["pid"]) for name, child in ex.stats()["children"].items()}
    assert max(own["cpu:0"], own["cpu:1"]) - own["cpu:2"] < 24 << 20


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_nodes_come_go_and_die(nodes: LocalCluster) -> None:
    before = nodes.nodes
    added = [nodes.add_node(labels={"zone": "d"}, num_gpus=0) for _ in range(2)]
    assert [node.number for node in added] == [3, 4]
    assert nodes.nodes == (*before, *added)
    with executor(["sim:0"], labels={"sim": {"zone": "d"}}) as ex:
        want = ex.run(X)
        home = node_of(ex)["sim:0"]
        lost, other = sorted(added, key=lambda node: node.id != home)
        assert lost.id == home
        nodes.kill_raylet(lost)
        while node_of(ex) == {"sim:0": home}:  # until it is noticed; no step is lost meanwhile
            assert all(np.array_equal(ex.run(X)[name], value) for name, value in want.items())
        assert node_of(ex) == {"sim:0": other.id}
    nodes.remove_node(other)
    assert nodes.nodes == before
    with pytest.raises(OptionError, match=r"no node 3; there are: \[0, 1, 2\]"):
        nodes.remove_node(3)
    last = nodes.add_node(labels={"zone": "e"})
    nodes.remove_node(last.number)
    alive = {row["NodeID"] for row in ray.nodes() if row["Alive"]}
    assert last.id not in alive
    assert {node.id for node in before} <= alive


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_an_address_must_be_that_of_the_ray_this_process_is_connected_to(nodes: LocalCluster) -> None:
    with pytest.raises(TransportError, match=r"not to address=127\.0\.0\.1:1"):
        executor(["sim:0"], address="127.0.0.1:1")
    with pytest.raises(TransportError, match="connected to another Ray"):
        LocalCluster(1).start()
    for node in (0, nodes.nodes[0]):
        with pytest.raises(OptionError, match="head cannot go"):
            nodes.kill_raylet(node)


# -- without a cluster -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"nodes": 1, "labels": [{}, {}]}, "labels are given for 2 nodes of 1"),
        ({"nodes": 1, "resources": [{}, {}]}, "resources are given for 2 nodes of 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        LocalCluster(**keywords)


def test_a_cluster_that_does_not_run_has_no_address() -> None:
    cluster = LocalCluster(1)
    cluster.close()
    for use in (lambda: cluster.address, cluster.add_node):
        with pytest.raises(ClosedError):
            use()
    assert cluster.nodes == ()


# -- what is left ------------------------------------------------------------------------------------------------
HEAD = """
    import os, signal, subprocess, sys
    import numpy as np, onnx.parser, ray
    from cluster import LocalCluster
    from hetero import HeterogeneousExecutor
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Exp(x) }')
    x = {"x": np.zeros(1, np.float32)}
"""
OWNER = """
    before = dict(os.environ)
    try:
        with LocalCluster(2, cpus_per_node=1, labels=[{}, {"zone": "far"}], token=False) as cluster:
            with HeterogeneousExecutor(model, ["cpu"], ray_options={"labels": {"cpu": {"zone": "far"}}}) as ex:
                assert ex.run(x)["y"].tolist() == [1]
                guest = [sys.executable, "-c", os.environ["GUEST"], cluster.address]
                done = subprocess.run(guest, capture_output=True, text=True)
                assert done.stdout.strip() == "[1.0]", done.stderr
                cluster.kill_raylet(1)
                print("folder", cluster._directory, flush=True)
                signal.pause()
    except KeyboardInterrupt:
        changed = sorted({k for k, _ in before.items() ^ os.environ.items()})
        print("interrupted", changed, ray.is_initialized(), flush=True)
"""
GUEST = """
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ
    with HeterogeneousExecutor(model, ["sim:0"], ray_options={"address": sys.argv[1]}) as ex:
        print(ex.run(x)["y"].tolist())
"""


def script(text: str) -> str:
    return textwrap.dedent(HEAD) + textwrap.dedent(text)


def said(process: subprocess.Popen[str], word: str) -> list[str]:
    """The rest of the line that begins with `word`; Ray prints lines of its own between ours."""
    assert process.stdout is not None
    for line in process.stdout:
        first, *words = line.split() or [""]
        if first == word:
            return words
    raise AssertionError(process.communicate(timeout=20)[1])


def opened(directory: str) -> list[int]:
    """Processes with a file of a session's folder open, by whatever name they go."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                links = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
                if any(directory in link for link in links):
                    found.append(int(entry.name))
    return found


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_others_may_join_and_nothing_is_left_after_ctrl_c_with_orphans_of_a_dead_node_about() -> None:
    """Another process joins by address, without a token; then the signal goes to the whole process group, as from a
    terminal, while a child of a killed raylet still lives. The environment is afterwards as it was."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HETERO_"))}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script(OWNER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**variables, "GUEST": script(GUEST)},
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        (directory,) = said(process, "folder")
        assert opened(directory)
        os.killpg(process.pid, signal.SIGINT)
        assert said(process, "interrupted") == ["[]", "False"]
        assert not Path(directory).exists()
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert not opened(directory)
    finally:
        with process:  # however the test ended, its process goes
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
