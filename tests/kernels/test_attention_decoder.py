"""A small decoder of com.microsoft's operators, token by token against onnxruntime: whole, and split over devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero
from tests.kernels.attention_peer import DOMAIN

LAYERS, HEADS, KV_HEADS, SIZE, VOCABULARY, BATCH, CAPACITY = 2, 4, 2, 16, 11, 2, 16
HIDDEN, KV_HIDDEN = HEADS * SIZE, KV_HEADS * SIZE
STEPS = 8


class _Graph:
    """Nodes and weights in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def weight(self, name: str, *shape: int) -> str:
        scale = 1.0 if len(shape) == 1 else shape[0] ** -0.5
        array = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = f"{op}/{outputs[0]}"
        self.nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return outputs[0]


def _layer(g: _Graph, i: int, stream: str, normed: str, packed: bool) -> tuple[str, str]:
    """Attention and a feed-forward part, each behind a norm of its sum with the stream."""
    if packed:
        qkv = [g.add("MatMul", [normed, g.weight(f"qkv.{i}", HIDDEN, HIDDEN + 2 * KV_HIDDEN)], [f"qkv_{i}"])]
        qkv += ["", ""]
    else:
        columns = {"q": HIDDEN, "k": KV_HIDDEN, "v": KV_HIDDEN}
        qkv = [
            g.add("MatMul", [normed, g.weight(f"{n}.{i}", HIDDEN, c)], [f"{n}_{i}"])
            for n, c in columns.items()
        ]
    past = [f"past.{i}.key", f"past.{i}.value"]
    g.add(
        "GroupQueryAttention",
        [*qkv, *past, "seqlens_k", "total_sequence_length", "cos", "sin"],
        [f"attended_{i}", f"present.{i}.key", f"present.{i}.value"],
        DOMAIN,
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        do_rotary=1,
        local_window_size=7 if i == 1 else -1,
    )
    projected = g.add("MatMul", [f"attended_{i}", g.weight(f"o.{i}", HIDDEN, HIDDEN)], [f"projected_{i}"])
    g.add(
        "SkipSimplifiedLayerNormalization",
        [projected, stream, g.weight(f"norm1.{i}", HIDDEN)],
        [f"normed1_{i}", "", "", f"stream1_{i}"],
        DOMAIN,
    )
    up = g.add("MatMul", [f"normed1_{i}", g.weight(f"up.{i}", HIDDEN, HIDDEN)], [f"up_{i}"])
    act = g.add("Tanh", [up], [f"act_{i}"])
    down = g.add("MatMul", [act, g.weight(f"down.{i}", HIDDEN, HIDDEN)], [f"down_{i}"])
    g.add(
        "SkipSimplifiedLayerNormalization",
        [down, f"stream1_{i}", g.weight(f"norm2.{i}", HIDDEN)],
        [f"normed2_{i}", "", "", f"stream2_{i}"],
        DOMAIN,
    )
    return f"stream2_{i}", f"normed2_{i}"


def decoder(packed: bool) -> onnx.ModelProto:
    """tokens (batch, sequence), the caches and their lengths -> logits (batch, sequence, vocabulary), the caches."""
    g = _Graph()
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(SIZE // 2) / (SIZE // 2))
    for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        g.weights.append(numpy_helper.from_array(table.astype(np.float32), name))
    stream = g.add("Gather", [g.weight("embedding", VOCABULARY, HIDDEN), "tokens"], ["embedded"])
    normed = g.add(
        "SimplifiedLayerNormalization",
        [stream, g.weight("norm0", HIDDEN)],
        ["normed_in"],
        axis=-1,
        epsilon=1e-6,
    )
    for i in range(LAYERS):
        stream, normed = _layer(g, i, stream, normed, packed)
    g.add("MatMul", [normed, g.weight("head", HIDDEN, VOCABULARY)], ["logits"])

    def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    caches = [f"{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, [1]),
        *(floats(f"past.{c}", "batch", KV_HEADS, "past", SIZE) for c in caches),
    ]
    outputs = [
        floats("logits", "batch", "sequence", VOCABULARY),
        *(floats(f"present.{c}", "batch", KV_HEADS, "present", SIZE) for c in caches),
    ]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def steps(capacity: int, prompt: int, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """The feeds of a prompt and of STEPS tokens after it, but for caches that come from the step before."""
    rng = np.random.default_rng(1)
    feeds = {
        f"past.{i}.{kind}": np.zeros((BATCH, KV_HEADS, capacity, SIZE), np.float32)
        for i in range(LAYERS)
        for kind in ("key", "value")
    }
    held = np.array(lengths, np.int32)
    for step in range(STEPS + 1):
        new = prompt if step == 0 else 1
        feeds["tokens"] = rng.integers(0, VOCABULARY, (BATCH, new))
        feeds["seqlens_k"] = held - 1
        feeds["total_sequence_length"] = np.array([prompt + step], np.int32)
        yield feeds
        held = held + 1
        if step == 0:
            feeds = {}


def compare(model: onnx.ModelProto, providers: list[Any], capacity: int, lengths: list[int]) -> list[Any]:
    """Every step's outputs, after they were found to be onnxruntime's; caches go from step to step on both sides."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    peer = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    prompt = max(lengths)
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    found = []
    # Where it copies a buffer, onnxruntime clears what lies behind the last step: a shorter prompt's padding.
    whole_caches = not capacity or len(set(lengths)) == 1
    with hetero.HeterogeneousExecutor(model, providers=providers, children="inline") as executor:
        for step, feeds in enumerate(steps(capacity, prompt, lengths)):
            results = executor.run({**ours, **feeds})
            names = [o.name for o in peer.get_outputs()]
            expected = dict(zip(names, peer.run(None, {**theirs, **feeds}), strict=True))
            for name in names:
                a, b = results[name], expected[name]
                assert a.shape == b.shape, name
                if step == 0 and name == "logits":  # rows of padding are nobody's
                    for entry, length in enumerate(lengths):
                        np.testing.assert_allclose(a[entry, :length], b[entry, :length], rtol=2e-3, atol=2e-4)
                elif name == "logits" or step == 0 or whole_caches:
                    np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4, err_msg=f"step {step}, {name}")
            ours = {n.replace("present", "past"): results[n] for n in names if n != "logits"}
            theirs = {n.replace("present", "past"): expected[n] for n in names if n != "logits"}
            found.append([results[n] for n in names])
    return found


PROVIDERS = {
    "all": ["sim:0", "cpu"],
    "attention": [("sim:0", {"ops": [f"{DOMAIN}::GroupQueryAttention"]}), "cpu"],
}


@pytest.mark.parametrize(
    ("packed", "capacity", "lengths"),
    [(False, 0, [3, 5]), (False, CAPACITY, [5, 5]), (True, CAPACITY, [3, 5])],
    ids=["growing", "buffer", "packed, buffer"],
)
def test_a_decoder_gives_onnxruntimes_tokens_and_the_same_bits_wherever_it_runs(
    packed: bool, capacity: int, lengths: list[int]
) -> None:
    model = decoder(packed)
    whole = compare(model, ["cpu"], capacity, lengths)
    for name, providers in PROVIDERS.items():
        placed = {p.op: p.provider for p in hetero.plan(model, providers=providers).placements}
        assert placed[f"{DOMAIN}::GroupQueryAttention"] == "sim:0"
        assert placed["MatMul"] == ("sim:0" if name == "all" else "cpu")
        split = compare(model, providers, capacity, lengths)
        for step, (a, b) in enumerate(zip(whole, split, strict=True)):
            for x, y in zip(a, b, strict=True):
                assert x.tobytes() == y.tobytes(), f"{name}, step {step}"
