"""A loaded model: the normalised graph, its signature, its weights and its digest."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.digest import model_digest, structure_digest
from hetero.model.functions import check_calls, inline_shadowing
from hetero.model.gradient import expand_gradients, resolve_gradients
from hetero.model.inference import infer, value_type
from hetero.model.normalise import normalise, spell_domains
from hetero.model.source import ModelSource, library, read
from hetero.model.tensors import HostConstant, renamed
from hetero.model.weights import Weights
from hetero.types import Dim, Shape, TensorType, ValueType


@dataclass(slots=True, eq=False)
class Model:
    """A model in normal form.

    `ir`: the graph; the only copy, changed by inlining alone. All nodes and values have distinct, non-empty names (an
    output that is left out has the empty one), and the main graph alone has initializers.
    `inputs`: what a caller must feed. `optional_inputs`: inputs with a default among the weights. `outputs`: with None
    where inference found no type. All in the model's order.
    """

    ir: ir.Model
    name: str
    opsets: dict[str, int]
    inputs: tuple[tuple[str, ValueType], ...]
    optional_inputs: tuple[str, ...]
    outputs: tuple[tuple[str, ValueType | None], ...]
    declared: dict[str, Shape]
    """Where the file names extents of computed values: what it says, before inference made the best of it. Of values
    inside, plain symbols alone."""
    metadata: dict[str, str]
    weights: Weights
    _structure: bytes = field(repr=False)
    _constants: tuple[HostConstant, ...] = field(repr=False)
    _digest: str | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the graph and of every weight's bytes as loaded; inlining does not change it.

        Holds no path, so it is the same on every machine. The first use reads all weights, a later one nothing.
        """
        if self._digest is None:
            self._digest = model_digest(self._structure, self._constants)
        return self._digest

    def refresh(self) -> None:
        """Infer all types again and take over those of the outputs, after the graph was changed."""
        infer(self.ir)
        expand_gradients(self.ir)  # those of functions that were inlined
        self.opsets.update(self.ir.opset_imports)
        self.outputs = _outputs(self.ir.graph)


def load_model(source: ModelSource, *, base_dir: str | os.PathLike[str] | None = None) -> Model:
    """Load, check, normalise and infer a model; `source` is never changed.

    `source`: a path to an .onnx file, its bytes, an onnx.ModelProto or an onnx_ir.Model. External data are mapped, not
    read, and must lie in the directory of the path, or in `base_dir`.
    Raises: ModelError for anything that is no sound model.
    """
    with _no_collections():
        return _load(source, base_dir)


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collections inside. Loading makes millions of objects and drops next to none, so each collection
    scans them all in vain: at 100,000 nodes a third of the time, growing with the square."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(source: ModelSource, base_dir: str | os.PathLike[str] | None) -> Model:
    model = read(source, base_dir)
    graph = model.graph
    with library("the model cannot be normalised"):
        spell_domains(model)
        resolve_gradients(model)
        check_calls(model)
        if (model.ir_version or 0) < 4:
            # Before IR 4 every initializer had to be listed as an input too; none was meant to be fed.
            kept = [v for v in graph.inputs if not v.is_initializer()]
            graph.inputs.clear()
            graph.inputs.extend(kept)
        normalise(model)
        inline_shadowing(model)
        declared = _declared(graph)
        infer(model)
        expand_gradients(model)
    inputs: list[tuple[str, ValueType]] = []
    optional: list[str] = []
    for value in graph.inputs:
        type_ = value_type(value)
        name = value.name
        if name is None or type_ is None:
            raise ModelError(f"input {name!r} has no type", operand=name)
        if value.is_initializer():
            optional.append(name)
        else:
            inputs.append((name, type_))
    weights = Weights(graph)
    return Model(
        ir=model,
        name=graph.name or "model",
        opsets=dict(model.opset_imports),
        inputs=tuple(inputs),
        optional_inputs=tuple(optional),
        outputs=_outputs(graph),
        declared=declared,
        metadata=dict(model.metadata_props),
        weights=weights,
        _structure=structure_digest(model),
        # Copies of the handles: inlining may rename or drop an initializer.
        _constants=tuple(renamed(weights.tensor(name), name) for name in weights),
    )


def _plain(dim: Dim) -> Dim:
    return dim if isinstance(dim, str) and dim.isidentifier() else None


def _declared(graph: ir.Graph) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for node in graph:
        for value in node.outputs:
            type_ = value_type(value) if value.name and value.shape is not None else None
            if isinstance(type_, TensorType) and type_.shape is not None and value.name:
                # Expressions inside come from tools, not from authors, and reading hundreds of them takes seconds.
                kept = type_.shape if value.is_graph_output() else tuple(map(_plain, type_.shape))
                if any(isinstance(d, str) for d in kept):
                    found[value.name] = kept
    return found


def _outputs(graph: ir.Graph) -> tuple[tuple[str, ValueType | None], ...]:
    return tuple((v.name or "", value_type(v)) for v in graph.outputs)
