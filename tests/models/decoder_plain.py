"""The test decoder in plain ONNX operators, the way optimum exports a Llama: the cache grows by Concat."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.models.decoder_parts import (
    FLOAT,
    INT64,
    Array,
    Config,
    Graph,
    caches,
    inverse_frequencies,
    weights_of,
)

LOWEST = float(np.finfo(np.float32).min)


def plain(config: Config, opset: int = 17) -> onnx.ModelProto:
    """input_ids (batch, sequence), attention_mask (batch, past + sequence), position_ids (batch, sequence) and
    past_key_values.{i}.key/value (batch, kv_heads, past, size) -> logits (batch, sequence, vocab), present.{i}.…"""
    g, weights = Graph(config), weights_of(config)
    x = g.embed(weights)
    cos, sin = _rotation(g)
    mask = _mask(g)
    for k in range(config.layers):
        layer = f"model.layers.{k}."
        y = _norm(g, x, layer + "input_layernorm", weights, opset)
        y = _attention(g, y, k, cos, sin, mask, weights)
        x = g.node("Add", [x, y], layer + "Add")
        y = _norm(g, x, layer + "post_attention_layernorm", weights, opset)
        x = g.node("Add", [x, g.swiglu(y, layer, weights)], layer + "Add_1")
    x = _norm(g, x, "model.norm", weights, opset)
    g.head(x, weights)
    past, present = caches(config, "past_sequence_length", "past_sequence_length + sequence_length")
    total = "past_sequence_length + sequence_length"
    return g.model(
        [
            ("input_ids", INT64, ["batch_size", "sequence_length"]),
            ("attention_mask", INT64, ["batch_size", total]),
            ("position_ids", INT64, ["batch_size", "sequence_length"]),
            *past,
        ],
        [("logits", FLOAT, ["batch_size", "sequence_length", config.vocab]), *present],
        opset,
    )


def _norm(g: Graph, x: str, name: str, weights: dict[str, Array], opset: int) -> str:
    squares = g.node("Pow", [x, g.constant("two", np.float32(2))], name + "/Pow")
    if opset < 18:
        mean = g.node("ReduceMean", [squares], name + "/ReduceMean", axes=[-1], keepdims=1)
    else:
        mean = g.node("ReduceMean", [squares, g.integers(-1)], name + "/ReduceMean", keepdims=1)
    shifted = g.node("Add", [mean, g.constant("epsilon", np.float32(g.config.epsilon))], name + "/Add")
    root = g.node("Sqrt", [shifted], name + "/Sqrt")
    inverse = g.node("Div", [g.constant("one", np.float32(1)), root], name + "/Div")
    normed = g.node("Mul", [x, inverse], name + "/Mul")
    return g.node("Mul", [g.constant(name + ".weight", weights[name + ".weight"]), normed], name + "/Mul_1")


def _rotation(g: Graph) -> tuple[str, str]:
    """Cosines and sines (batch, 1, sequence, size) of position_ids."""
    name = "model.rotary_emb"
    places = g.node("Unsqueeze", ["position_ids", g.integers(2)], name + "/Unsqueeze")
    places = g.node("Cast", [places], name + "/Cast", to=FLOAT)
    frequencies = g.constant(name + ".inv_freq", inverse_frequencies(g.config)[None, None])
    half = g.node("MatMul", [places, frequencies], name + "/MatMul")
    angles = g.node("Concat", [half, half], name + "/Concat", axis=-1)
    turned = [g.node(op, [angles], f"{name}/{op}") for op in ("Cos", "Sin")]
    cos, sin = (g.node("Unsqueeze", [t, g.integers(1)], t + "_heads") for t in turned)
    return cos, sin


def _extent(g: Graph, value: str, axis: int, name: str) -> str:
    shape = g.node("Shape", [value], name + "/Shape")
    return g.node("Gather", [shape, g.integer(axis)], name + "/Gather", axis=0)


def _mask(g: Graph) -> str:
    """What is added to the scores, (batch, 1, sequence, total): 0 where a query sees a key, else the lowest float."""
    name = "model/mask"
    batch = _extent(g, "input_ids", 0, name + "/batch")
    queries = _extent(g, "input_ids", 1, name + "/sequence")
    past = _extent(g, "past_key_values.0.key", 2, name + "/past")
    total = g.node("Add", [past, queries], name + "/total")
    rows = g.node("Range", [past, total, g.integer(1)], name + "/Range")
    columns = g.node("Range", [g.integer(0), total, g.integer(1)], name + "/Range_1")
    rows = g.node("Reshape", [rows, g.integers(-1, 1)], name + "/Reshape")
    hidden = g.node("Greater", [columns, rows], name + "/Greater")
    hidden = g.node("Unsqueeze", [hidden, g.integers(0, 1)], name + "/Unsqueeze")
    sizes = [
        g.node("Unsqueeze", [e, g.integers(0)], f"{name}/Unsqueeze_{k}")
        for k, e in enumerate((batch, queries, total))
    ]
    shape = g.node("Concat", [sizes[0], g.integers(1), sizes[1], sizes[2]], name + "/Concat", axis=0)
    hidden = g.node("Expand", [hidden, shape], name + "/Expand")
    padded = g.node("Unsqueeze", ["attention_mask", g.integers(1, 2)], name + "/padding/Unsqueeze")
    padded = g.node("Cast", [padded], name + "/padding/Cast", to=TensorProto.BOOL)
    padded = g.node("Not", [padded], name + "/padding/Not")
    hidden = g.node("Or", [hidden, padded], name + "/Or")
    lowest, zero = g.constant("lowest", np.float32(LOWEST)), g.constant("zero", np.float32(0))
    return g.node("Where", [hidden, lowest, zero], name + "/Where")


def _heads(g: Graph, x: str, count: int, name: str) -> str:
    split = g.node("Reshape", [x, g.integers(0, 0, count, g.config.size)], name + "/Reshape")
    return g.node("Transpose", [split], name + "/Transpose", perm=[0, 2, 1, 3])


def _rotate(g: Graph, x: str, cos: str, sin: str, name: str) -> str:
    half = g.config.size // 2
    low = g.node("Slice", [x, g.integers(0), g.integers(half), g.integers(3)], name + "/Slice")
    high = g.node("Slice", [x, g.integers(half), g.integers(g.config.size), g.integers(3)], name + "/Slice_1")
    turned = g.node("Concat", [g.node("Neg", [high], name + "/Neg"), low], name + "/Concat", axis=-1)
    along, across = g.node("Mul", [x, cos], name + "/Mul"), g.node("Mul", [turned, sin], name + "/Mul_1")
    return g.node("Add", [along, across], name + "/Add")


def _repeated(g: Graph, x: str, name: str) -> str:
    """(batch, kv_heads, total, size) with each head as often as query heads share it."""
    config = g.config
    shape = g.node("Shape", [x], name + "/Shape")
    sizes = [g.node("Gather", [shape, g.integers(axis)], f"{name}/Gather_{axis}", axis=0) for axis in (0, 2)]
    groups = config.heads // config.kv_heads
    wide = g.node(
        "Concat",
        [sizes[0], g.integers(config.kv_heads, groups), sizes[1], g.integers(config.size)],
        name + "/Concat",
        axis=0,
    )
    lifted = g.node("Unsqueeze", [x, g.integers(2)], name + "/Unsqueeze")
    expanded = g.node("Expand", [lifted, wide], name + "/Expand")
    joined = g.node(
        "Concat",
        [sizes[0], g.integers(config.heads), sizes[1], g.integers(config.size)],
        name + "/Concat_1",
        axis=0,
    )
    return g.node("Reshape", [expanded, joined], name + "/Reshape")


def _attention(g: Graph, x: str, index: int, cos: str, sin: str, mask: str, weights: dict[str, Array]) -> str:
    config = g.config
    name = f"model.layers.{index}.self_attn"
    q, k, v = (
        _heads(g, g.linear(x, f"{name}.{part}_proj", weights), count, f"{name}/{part}")
        for part, count in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    q, k = (_rotate(g, part, cos, sin, f"{name}/rotary_{n}") for n, part in (("q", q), ("k", k)))
    for part, new in (("key", k), ("value", v)):
        past, present = f"past_key_values.{index}.{part}", f"present.{index}.{part}"
        g.nodes_of("Concat", [past, new], [present], f"{name}/Concat_{part}", axis=2)
    k, v = (_repeated(g, f"present.{index}.{part}", f"{name}/repeat_{part}") for part in ("key", "value"))
    k = g.node("Transpose", [k], name + "/Transpose", perm=[0, 1, 3, 2])
    scores = g.node("MatMul", [q, k], name + "/MatMul")
    root = g.constant("attention_scale", np.float32(1 / np.sqrt(config.size)))
    scores = g.node("Add", [g.node("Mul", [scores, root], name + "/Mul"), mask], name + "/Add")
    chances = g.node("Softmax", [scores], name + "/Softmax", axis=-1)
    mixed = g.node("MatMul", [chances, v], name + "/MatMul_1")
    mixed = g.node("Transpose", [mixed], name + "/Transpose_1", perm=[0, 2, 1, 3])
    mixed = g.node("Reshape", [mixed, g.integers(0, 0, config.hidden)], name + "/Reshape")
    return g.linear(mixed, name + ".o_proj", weights)
