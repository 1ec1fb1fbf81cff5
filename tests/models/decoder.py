"""A small Llama-style decoder made on the spot, in three forms with the same weights and so the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime

from tests.models.decoder_buffered import contrib, scatter
from tests.models.decoder_parts import BENCHMARK, SMALL, Array, Config
from tests.models.decoder_plain import plain

__all__ = ["BENCHMARK", "FORMS", "SMALL", "Config", "Form", "Peer", "build", "prompt"]

Form = Literal["plain", "contrib", "scatter"]
FORMS: tuple[Form, ...] = ("plain", "contrib", "scatter")


def build(config: Config = SMALL, form: Form = "plain") -> onnx.ModelProto:
    """RMSNorm, rotary embedding, grouped-query attention, SwiGLU, lm head; see the forms' own docstrings."""
    return {"plain": plain, "contrib": contrib, "scatter": scatter}[form](config)


def prompt(config: Config = SMALL, length: int = 7, batch: int = 1, seed: int = 3) -> Array:
    """Token ids, int64 (batch, length)."""
    return np.random.default_rng(seed).integers(0, config.vocab, (batch, length))


@dataclass
class Peer:
    """onnxruntime with a cache that is carried by hand, for one of the forms."""

    config: Config
    form: Form
    session: onnxruntime.InferenceSession = field(init=False)

    def __post_init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # it warns of each TensorScatter that cannot write in place
        model = build(self.config, self.form).SerializeToString()
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def greedy(self, ids: Array) -> Iterator[tuple[Array, Array]]:
        """Tokens (batch,) and the logits (batch, vocab) that each is the maximum of, without end."""
        config, past = self.config, 0
        held = 0 if self.form == "plain" else config.max_length
        empty: Any = np.zeros((len(ids), config.kv_heads, held, config.size), np.float32)
        caches = [empty] * (2 * config.layers)
        while True:
            outputs = self.session.run(None, self._feeds(ids, past, caches))
            past += ids.shape[1]
            logits, caches = outputs[0][:, -1], outputs[1:]
            tokens = logits.argmax(axis=-1)
            yield tokens, logits
            ids = tokens[:, None]

    def _feeds(self, ids: Array, past: int, caches: list[Array]) -> dict[str, Array]:
        batch, new = ids.shape
        names = [i.name for i in self.session.get_inputs() if i.name.startswith("past")]
        feeds = {"input_ids": ids, **dict(zip(names, caches, strict=True))}
        if self.form == "plain":
            feeds["attention_mask"] = np.ones((batch, past + new), np.int64)
            feeds["position_ids"] = np.tile(np.arange(past, past + new), (batch, 1))
        elif self.form == "scatter":
            feeds["position_ids"] = np.tile(np.arange(past, past + new), (batch, 1))
            feeds["write_indices"] = np.full(batch, past)
            feeds["nonpad_kv_seqlen"] = np.full(batch, past + new)
        else:
            feeds["seqlens_k"] = np.full(batch, past + new - 1, np.int32)
            feeds["total_sequence_length"] = np.array(past + new, np.int32)
        return feeds
