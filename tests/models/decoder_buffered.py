"""The test decoder with caches of fixed capacity: com.microsoft's GroupQueryAttention, or TensorScatter of opset 24."""

from __future__ import annotations

import numpy as np
import onnx

from tests.models.decoder_parts import (
    FLOAT,
    INT32,
    INT64,
    MICROSOFT,
    Array,
    Config,
    Graph,
    angles_of,
    caches,
    weights_of,
)


def contrib(config: Config, *, lengths: bool = True) -> onnx.ModelProto:
    """input_ids (batch, sequence), seqlens_k (batch,), total_sequence_length () and past_key_values.{i}.key/value
    (batch, kv_heads, max_length, size) -> logits, present.{i}.… of the pasts' shape.

    lengths: False takes attention_mask (batch, total) in place of the two lengths, as onnxruntime-genai's exports do.
    """
    g, weights = Graph(config), weights_of(config)
    if not lengths:
        _lengths_of_mask(g)
    cos, sin = (g.constant(n, t) for n, t in zip(("cos_cache", "sin_cache"), angles_of(config), strict=True))
    x = g.embed(weights)
    first = "model.layers.0.input_layernorm.weight"
    y = g.node(
        "SimplifiedLayerNormalization",
        [x, g.constant(first, weights[first])],
        first.removesuffix(".weight"),
        axis=-1,
        epsilon=config.epsilon,
        stash_type=1,
    )
    for k in range(config.layers):
        layer = f"model.layers.{k}."
        name = layer + "self_attn"
        q, keys, values = (g.linear(y, f"{name}.{part}_proj", weights) for part in "qkv")
        pasts = [f"past_key_values.{k}.{part}" for part in ("key", "value")]
        mixed = g.nodes_of(
            "GroupQueryAttention",
            [q, keys, values, *pasts, "seqlens_k", "total_sequence_length", cos, sin],
            [name + "/output", f"present.{k}.key", f"present.{k}.value"],
            name + "/GroupQueryAttention",
            domain=MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            do_rotary=1,
            scale=float(1 / np.sqrt(config.size)),
        )[0]
        mixed = g.linear(mixed, name + ".o_proj", weights)
        y, x = _skip_norm(g, x, mixed, layer + "post_attention_layernorm", weights)
        y = g.swiglu(y, layer, weights)
        following = f"model.layers.{k + 1}.input_layernorm" if k + 1 < config.layers else "model.norm"
        y, x = _skip_norm(g, x, y, following, weights)
    g.head(y, weights)
    past, present = caches(config, config.max_length, config.max_length)
    total = "total_sequence_length"
    sizes = (
        [("seqlens_k", INT32, ["batch_size"]), (total, INT32, [])]
        if lengths
        else [("attention_mask", INT64, ["batch_size", total])]
    )
    return g.model([_ids(), *sizes, *past], [_logits(config), *present], 21)


def _lengths_of_mask(g: Graph) -> None:
    sums = g.node("ReduceSum", ["attention_mask", g.integers(1)], "model/lengths/ReduceSum", keepdims=0)
    less = g.node("Sub", [sums, g.integers(1)], "model/lengths/Sub")
    g.nodes_of("Cast", [less], ["seqlens_k"], "model/lengths/Cast", to=INT32)
    shape = g.node("Shape", ["attention_mask"], "model/total/Shape")
    extent = g.node("Gather", [shape, g.integer(1)], "model/total/Gather", axis=0)
    g.nodes_of("Cast", [extent], ["total_sequence_length"], "model/total/Cast", to=INT32)


def _skip_norm(g: Graph, x: str, y: str, name: str, weights: dict[str, Array]) -> tuple[str, str]:
    """The norm of x + y, and x + y."""
    scale = g.constant(name + ".weight", weights[name + ".weight"])
    outputs = g.nodes_of(
        "SkipSimplifiedLayerNormalization",
        [x, y, scale],
        [name + "/output", "", "", name + "/sum"],
        name + "/SkipLayerNorm",
        domain=MICROSOFT,
        epsilon=g.config.epsilon,
    )
    return outputs[0], outputs[3]


def scatter(config: Config) -> onnx.ModelProto:
    """Opset 24: input_ids, position_ids (batch, sequence), write_indices (batch,), where the new steps begin,
    nonpad_kv_seqlen (batch,), where they end, and past_key_values.{i}.key/value (batch, kv_heads, max_length, size)
    -> logits, present.{i}.… of the pasts' shape."""
    g, weights = Graph(config), weights_of(config)
    cos, sin = (g.constant(n, t) for n, t in zip(("cos_cache", "sin_cache"), angles_of(config), strict=True))
    x = g.embed(weights)
    for k in range(config.layers):
        layer = f"model.layers.{k}."
        name = layer + "self_attn"
        y = _norm(g, x, layer + "input_layernorm", weights)
        q, keys, values = (
            _heads(g, g.linear(y, f"{name}.{part}_proj", weights), count, f"{name}/{part}")
            for part, count in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
        )
        q, keys = (
            g.node("RotaryEmbedding", [part, cos, sin, "position_ids"], f"{name}/rotary_{n}")
            for n, part in (("q", q), ("k", keys))
        )
        stores = [
            g.nodes_of(
                "TensorScatter",
                [f"past_key_values.{k}.{part}", new, "write_indices"],
                [f"present.{k}.{part}"],
                f"{name}/TensorScatter_{part}",
                axis=2,
            )[0]
            for part, new in (("key", keys), ("value", values))
        ]
        mixed = g.node(
            "Attention",
            [q, *stores, "", "", "", "nonpad_kv_seqlen"],
            name + "/Attention",
            is_causal=1,
            scale=float(1 / np.sqrt(config.size)),
        )
        mixed = g.node("Transpose", [mixed], name + "/Transpose", perm=[0, 2, 1, 3])
        mixed = g.node("Reshape", [mixed, g.integers(0, 0, config.hidden)], name + "/Reshape")
        x = g.node("Add", [x, g.linear(mixed, name + ".o_proj", weights)], layer + "Add")
        y = _norm(g, x, layer + "post_attention_layernorm", weights)
        x = g.node("Add", [x, g.swiglu(y, layer, weights)], layer + "Add_1")
    g.head(_norm(g, x, "model.norm", weights), weights)
    past, present = caches(config, config.max_length, config.max_length)
    inputs = [
        _ids(),
        ("position_ids", INT64, ["batch_size", "sequence_length"]),
        ("write_indices", INT64, ["batch_size"]),
        ("nonpad_kv_seqlen", INT64, ["batch_size"]),
        *past,
    ]
    return g.model(inputs, [_logits(config), *present], 24, ir_version=11)


def _norm(g: Graph, x: str, name: str, weights: dict[str, Array]) -> str:
    scale = g.constant(name + ".weight", weights[name + ".weight"])
    return g.node("RMSNormalization", [x, scale], name, axis=-1, epsilon=g.config.epsilon)


def _heads(g: Graph, x: str, count: int, name: str) -> str:
    split = g.node("Reshape", [x, g.integers(0, 0, count, g.config.size)], name + "/Reshape")
    return g.node("Transpose", [split], name + "/Transpose", perm=[0, 2, 1, 3])


def _ids() -> tuple[str, int, list[int | str]]:
    return "input_ids", INT64, ["batch_size", "sequence_length"]


def _logits(config: Config) -> tuple[str, int, list[int | str]]:
    return "logits", FLOAT, ["batch_size", "sequence_length", config.vocab]
