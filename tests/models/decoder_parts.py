"""What every form of the test decoder shares: its sizes, its weights, and the parts that do not touch the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama-style decoder; `kv_heads` divides `heads`, which divides `hidden`."""

    layers: int = 3
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    vocab: int = 500
    max_length: int = 320
    tied: bool = False
    seed: int = 1
    theta: float = 10_000.0
    epsilon: float = 1e-5

    @property
    def size(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


SMALL = Config()
"""For tests: milliseconds a step."""
BENCHMARK = Config(layers=12, hidden=768, heads=12, kv_heads=4, inner=2048, vocab=2000, max_length=512)
"""For measuring a step."""


def weights_of(config: Config) -> dict[str, Array]:
    """Seeded weights by name, float32, matrices as (in, out).

    Their scales keep activations near 1, give attention sharp peaks (the tokens far back matter) and logits a deviation
    of about 4, so that the greedy token's margin is orders of magnitude above rounding.
    """
    rng = np.random.default_rng(config.seed)

    def matrix(rows: int, columns: int, gain: float) -> Array:
        return (rng.standard_normal((rows, columns)) * (gain / np.sqrt(rows))).astype(np.float32)

    def scale() -> Array:
        return rng.uniform(0.8, 1.2, config.hidden).astype(np.float32)

    hidden, kv = config.hidden, config.kv_heads * config.size
    weights = {"model.embed_tokens.weight": rng.standard_normal((config.vocab, hidden)).astype(np.float32)}
    for k in range(config.layers):
        layer = f"model.layers.{k}."
        weights |= {
            layer + "input_layernorm.weight": scale(),
            layer + "self_attn.q_proj.weight": matrix(hidden, hidden, 1.5),
            layer + "self_attn.k_proj.weight": matrix(hidden, kv, 1.5),
            layer + "self_attn.v_proj.weight": matrix(hidden, kv, 1.5),
            layer + "self_attn.o_proj.weight": matrix(hidden, hidden, 1.5),
            layer + "post_attention_layernorm.weight": scale(),
            layer + "mlp.gate_proj.weight": matrix(hidden, config.inner, 1.5),
            layer + "mlp.up_proj.weight": matrix(hidden, config.inner, 1.5),
            layer + "mlp.down_proj.weight": matrix(config.inner, hidden, 1.5),
        }
    weights["model.norm.weight"] = scale()
    if not config.tied:
        weights["lm_head.weight"] = matrix(hidden, config.vocab, 4.0)
    return weights


def angles_of(config: Config) -> tuple[Array, Array]:
    """Cosines and sines, float32 (max_length, size / 2), of the rotation at each position."""
    frequencies = inverse_frequencies(config)
    angles = np.arange(config.max_length, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def inverse_frequencies(config: Config) -> Array:
    """float32 (size / 2,): radians per position."""
    exponents = np.arange(0, config.size, 2, dtype=np.float32) / np.float32(config.size)
    return (1 / np.float32(config.theta) ** exponents).astype(np.float32)


@dataclass
class Graph:
    """Nodes and initializers as they are collected; nodes are named as an exporter does, by path."""

    config: Config
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def node(self, op: str, inputs: Sequence[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        return self.nodes_of(op, inputs, [name], name, domain=domain, **attributes)[0]

    def nodes_of(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node with these outputs; returns their names."""
        made = helper.make_node(op, list(inputs), list(outputs), name=name, domain=domain, **attributes)
        self.nodes.append(made)
        return list(outputs)

    def constant(self, name: str, value: Array) -> str:
        """An initializer, once by name."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        """An int64 initializer (n,)."""
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """An int64 initializer without axes."""
        return self.constant(f"int_{value}", np.array(value, np.int64))

    def linear(self, x: str, name: str, weights: dict[str, Array]) -> str:
        """x @ weight."""
        return self.node(
            "MatMul", [x, self.constant(name + ".weight", weights[name + ".weight"])], name + "/MatMul"
        )

    def swiglu(self, x: str, layer: str, weights: dict[str, Array]) -> str:
        """down(silu(gate(x)) * up(x))."""
        gate = self.linear(x, layer + "mlp.gate_proj", weights)
        sigmoid = self.node("Sigmoid", [gate], layer + "mlp.act_fn/Sigmoid")
        silu = self.node("Mul", [gate, sigmoid], layer + "mlp.act_fn/Mul")
        up = self.linear(x, layer + "mlp.up_proj", weights)
        return self.linear(self.node("Mul", [silu, up], layer + "mlp/Mul"), layer + "mlp.down_proj", weights)

    def embed(self, weights: dict[str, Array]) -> str:
        """(batch, sequence, hidden) of input_ids."""
        table = self.constant("model.embed_tokens.weight", weights["model.embed_tokens.weight"])
        return self.node("Gather", [table, "input_ids"], "model.embed_tokens/Gather")

    def head(self, x: str, weights: dict[str, Array]) -> None:
        """logits of x; a tied head reads the embedding's table."""
        if not self.config.tied:
            weight = self.constant("lm_head.weight", weights["lm_head.weight"])
            self.nodes_of("MatMul", [x, weight], ["logits"], "lm_head/MatMul")
            return
        table = self.node("Transpose", ["model.embed_tokens.weight"], "lm_head/Transpose", perm=[1, 0])
        product = self.node("MatMul", [x, table], "lm_head/MatMul")
        scale = self.constant("lm_head.scale", np.float32(4 / np.sqrt(self.config.hidden)))
        self.nodes_of("Mul", [product, scale], ["logits"], "lm_head/Mul")

    def model(
        self,
        inputs: Sequence[tuple[str, int, Sequence[int | str]]],
        outputs: Sequence[tuple[str, int, Sequence[int | str]]],
        opset: int,
        *,
        ir_version: int = 10,
    ) -> onnx.ModelProto:
        """The model with these (name, dtype, shape)s; com.microsoft is imported where it is used."""
        domains = {n.domain for n in self.nodes} - {""}
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [helper.make_tensor_value_info(*i) for i in inputs],
            [helper.make_tensor_value_info(*o) for o in outputs],
            list(self.initializers.values()),
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def caches(
    config: Config, past: int | str, present: int | str
) -> tuple[list[tuple[str, int, list[int | str]]], list[tuple[str, int, list[int | str]]]]:
    """Declarations of past_key_values.{i}.key/value and present.{i}.key/value with these extents of axis 2."""
    names = [f"{k}.{part}" for k in range(config.layers) for part in ("key", "value")]

    def shape(extent: int | str) -> list[int | str]:
        return ["batch_size", config.kv_heads, extent, config.size]

    return (
        [(f"past_key_values.{n}", FLOAT, shape(past)) for n in names],
        [(f"present.{n}", FLOAT, shape(present)) for n in names],
    )
