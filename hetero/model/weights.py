"""The weights of a model as arrays: a read-only mapping over the graph's initializers that decodes on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from hetero.errors import ModelError
from hetero.model.tensors import HostConstant, HostStrings, HostTensor
from hetero.types import HostArray


class Weights(Mapping[str, HostArray]):
    """Initializer name -> read-only host array.

    Live: what inlining adds or removes shows. Inline data decode once and are kept; external data are views of the
    mapped file (a view may be unaligned where the file packs tensors without padding).
    """

    __slots__ = ("_graph",)

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def tensor(self, name: str) -> HostConstant:
        """The constant itself: dtype, shape and nbytes without decoding. Raises: KeyError."""
        value = self._graph.initializers[name].const_value
        if not isinstance(value, HostTensor | HostStrings):
            raise ModelError(f"initializer {name!r} has no data", operand=name)
        return value

    def __getitem__(self, name: str) -> HostArray:
        return self.tensor(name).numpy()

    def move(self, name: str, load: Callable[[], HostArray]) -> None:
        """The elements of this weight lie elsewhere too, as the read-only array that `load` returns. That is the weight
        from now on, and what memory it took so far is free when nobody else holds it. Raises: KeyError."""
        self.tensor(name).lazy.move(load)

    def __iter__(self) -> Iterator[str]:
        return iter(self._graph.initializers)

    def __len__(self) -> int:
        return len(self._graph.initializers)

    def __contains__(self, name: object) -> bool:
        return name in self._graph.initializers

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors)"
