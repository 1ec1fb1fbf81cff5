"""What an extension is: a family of operations that a user adds, and what it is told about where it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec, TensorType, ValueType, numpy_dtype, onnx_dtype


@dataclass(frozen=True, slots=True, eq=False)
class ExtensionContext:
    """The child that an operation was prepared for, and the only one it runs on.

    `device`: the provider instance ("sim:0"); `kind`: what kind it is; `xp`: the array module of the arrays that `run`
    gets; `cache`: a mapping that the family shares on this child, kept until the child is closed.
    """

    device: str
    kind: str
    xp: Any
    cache: MutableMapping[Hashable, Any]


class Extension(ABC):
    """A family of operations. Stateless: what belongs to one operation on one child is what `prepare` returns.

    `domain`, `name`: what nodes say. `versions`: the opset versions of `domain` it is for. `kinds`: the kinds of
    provider it runs on ("cpu": NumPy arrays of the host; "sim", "cuda": arrays of `context.xp` on the device).
    `values`: the inputs whose value the shape rule needs; their specs have `.value` set then.
    `in_session`: it only enqueues work on the provider's stream, so it may run between kernels without a wait.
    `in_capture`: it may be recorded as well: it allocates nothing, waits for nothing and reads nothing on the host.
    Otherwise it is a seam: all work before it has ended when it runs.
    """

    domain: str
    name: str
    versions: Collection[int] = (1,)
    kinds: Collection[str] = ("cpu",)
    values: tuple[int, ...] = ()
    in_session: bool = False
    in_capture: bool = False

    @property
    def id(self) -> str:
        """ "com.example::Scale"."""
        return f"{self.domain}::{self.name}"

    def check(self, op: Operation, types: Sequence[ValueType | None]) -> str | None:
        """None where it takes inputs of these declared types, or the reason why not; asked while planning."""
        return None

    @abstractmethod
    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec | None] | None:
        """The rule: a spec per output of the node (None where `op.present_outputs` says that it is left out), or None
        where the data decide. Raises: anything, where the inputs make no sense; it becomes a KernelError."""

    def types(self, op: Operation, inputs: Sequence[ValueType | None]) -> Sequence[ValueType | None]:
        """What planning may know of the outputs; None for unknown. By default what `outputs` says of known shapes."""
        unknown = [None] * len(op.present_outputs)
        specs: list[TensorSpec] = []
        for declared in inputs:
            if not isinstance(declared, TensorType) or declared.dtype is None or declared.shape is None:
                return unknown
            shape = tuple(d for d in declared.shape if isinstance(d, int))
            if len(shape) != len(declared.shape):
                return unknown
            specs.append(TensorSpec(numpy_dtype(declared.dtype), shape))
        found = None if self.values else self.outputs(op, specs)
        if found is None:
            return unknown
        return [None if s is None else TensorType(onnx_dtype(s.dtype), tuple(s.shape)) for s in found]

    def prepare(self, op: Operation, context: ExtensionContext) -> Any:
        """Called once per operation on each child that runs it, before the first step; returns its state."""
        return None

    @abstractmethod
    def run(
        self, state: Any, inputs: Sequence[Any], outputs: Sequence[Any] | None, context: ExtensionContext
    ) -> Sequence[Any] | None:
        """Compute. `inputs`: contiguous arrays (None: left out) that must not be written or kept. `outputs`: arrays of
        the rule's specs to fill, uninitialised (None: left out); None where the data decide the shapes.

        Returns None when it has filled `outputs`, or a sequence of results, one per output: fresh arrays.
        """
