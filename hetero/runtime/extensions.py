"""The extensions of one child: its operations prepared once, their caches, and what they compile to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hetero.errors import HeteroError, KernelError, UnsupportedError
from hetero.extensions.contract import Extension, ExtensionContext
from hetero.extensions.registry import failed, find
from hetero.kernels.base import Call, Compiled, computed, dynamic
from hetero.program.operation import Operation
from hetero.program.program import Dispatch, Instruction, Program
from hetero.providers.base import Provider
from hetero.types import STRING, SequenceValue, Spec, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An operation as its extension prepared it for one child: the extension, the child's context, its state."""

    op: Operation
    extension: Extension
    context: ExtensionContext
    state: Any


class Extensions:
    """One child's extensions. Caches outlive a new assignment; everything goes with `close`."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._contexts: dict[tuple[str, str], ExtensionContext] = {}
        self._prepared: dict[Operation, Prepared] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._prepared)

    def prepare(self, programs: Iterable[Program]) -> None:
        """Prepare every extension operation of `programs`, bodies included, in place of what was prepared before.

        Raises: KernelError (of phase prepare) where an extension is not registered here, or its prepare fails; then
        what was prepared before stays.
        """
        prepared: dict[Operation, Prepared] = {}
        for program in programs:
            for instruction in _instructions(program):
                if instruction.dispatch is Dispatch.EXTENSION:
                    prepared[instruction.op] = self._prepare(instruction.op)
        self._prepared = prepared

    def _prepare(self, op: Operation) -> Prepared:
        extension = find(op)
        if extension is None:
            _fail(
                f"no extension {op.id}-{op.version} is registered in this process: name the module that registers it "
                "in RuntimeOptions.extensions",
                op,
                phase="prepare",
            )
        if self._provider.kind not in extension.kinds:
            _fail(f"extension {op.id} does not run on {self._provider.name}", op, phase="prepare")
        context = self._contexts.get((op.domain, op.op_type))
        if context is None:
            provider = self._provider
            context = ExtensionContext(provider.name, provider.kind, provider.array_module, {})
            self._contexts[op.domain, op.op_type] = context
        try:
            return Prepared(op, extension, context, extension.prepare(op, context))
        except Exception as error:
            failed(error, op, "prepare", phase="prepare")

    def compile(self, op: Operation, specs: Sequence[Spec], provider: Provider) -> Compiled:
        """The operation for these inputs; what it runs belongs to this child, and stops working when that is closed.

        Raises: KernelError where it was not prepared, or for another provider; where its rule fails or gives too many
        or too few outputs. UnsupportedError for strings away from the host.
        """
        prepared = self._prepared.get(op)
        if prepared is None:
            _fail(f"extension {op.id} was not prepared on {self._provider.name}", op)
        if provider is not self._provider:
            _fail(f"extension {op.id} was prepared for {self._provider.name}, not for {provider.name}", op)
        outputs = _specs(prepared, specs)
        if not provider.is_host and any(s is not None and s.dtype == STRING for s in outputs or ()):
            raise UnsupportedError("strings live on the host only", op=op.id, node=op.name or None)
        if outputs is None or not prepared.extension.in_session:
            why = "has outputs whose shapes the data decide" if outputs is None else "runs outside sessions"
            return dynamic(
                lambda inputs: self.run(prepared, inputs, outputs), capture=f"extension {op.id} {why}"
            )

        def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Call:
            return lambda: self.fill(prepared, inputs, targets)

        seam = None if prepared.extension.in_capture else f"extension {op.id} does not run inside capture"
        return computed(outputs, bind, capture=seam)

    def run(
        self, prepared: Prepared, inputs: Sequence[Any], outputs: Sequence[TensorSpec | None] | None
    ) -> tuple[Any, ...]:
        """Run outside the stream's order: fresh outputs of these specs (None: whatever comes)."""
        xp = prepared.context.xp
        targets = None
        if outputs is not None:
            targets = [None if s is None else xp.empty(s.shape, s.dtype) for s in outputs]
        found = self.fill(prepared, inputs, targets)
        return tuple(targets if found is None and targets is not None else found or ())

    def fill(
        self, prepared: Prepared, inputs: Sequence[Any], targets: Sequence[Any] | None
    ) -> tuple[Any, ...] | None:
        """Run into `targets`. Without targets: the results, none of which shares memory with an input.

        Raises: KernelError for what the extension raises (its cause), a wrong number of outputs, a result that is no
        array or not of the rule's spec; where this child does not hold `prepared`.
        """
        op = prepared.op
        if self._closed or self._prepared.get(op) is not prepared:
            _fail(f"extension {op.id} is run with a context that it was not prepared for", op)
        lent = [_lent(x) for x in inputs]
        try:
            returned = prepared.extension.run(prepared.state, lent, targets, prepared.context)
        except HeteroError as error:
            raise error.at(op=op.id, node=op.name or None) from error.__cause__
        except Exception as error:
            failed(error, op, "run")
        if returned is None and targets is not None:
            return None
        results = _results(op, returned)
        if targets is None:
            return tuple(_own(r, inputs, prepared.context.xp, op) for r in results)
        for k, (target, result) in enumerate(zip(targets, results, strict=True)):
            if target is not None and result is not target:
                _store(op, k, result, target)
        return None

    def close(self) -> None:
        """Drop states and caches. A second call does nothing."""
        self._closed = True
        self._prepared = {}
        for context in self._contexts.values():
            context.cache.clear()
        self._contexts.clear()


def _instructions(program: Program) -> Iterator[Instruction]:
    for instruction in program.instructions:
        yield instruction
        for body in instruction.op.bodies().values():
            yield from _instructions(body)


def extension_operations(programs: Iterable[Program]) -> list[Operation]:
    """The operations of extensions in `programs`, bodies included."""
    return [i.op for p in programs for i in _instructions(p) if i.dispatch is Dispatch.EXTENSION]


def _specs(prepared: Prepared, inputs: Sequence[Spec]) -> tuple[TensorSpec | None, ...] | None:
    """What the rule says, held against the node."""
    op = prepared.op
    try:
        found = prepared.extension.outputs(op, inputs)
        if found is None:
            return None
        specs = tuple(
            [None if s is None else TensorSpec(np.dtype(s.dtype), _extents(s.shape)) for s in found]
        )
    except HeteroError as error:
        raise error.at(op=op.id, node=op.name or None) from error.__cause__
    except Exception as error:
        failed(error, op, "the shape rule")
    if len(specs) != len(op.present_outputs):
        _fail(
            f"the shape rule of extension {op.id} gives {len(specs)} outputs, the node has {len(op.present_outputs)}",
            op,
        )
    for k, (spec, present) in enumerate(zip(specs, op.present_outputs, strict=True)):
        if present and spec is None:
            _fail(f"the shape rule of extension {op.id} gives no spec for output {k}", op)
    return tuple([s if present else None for s, present in zip(specs, op.present_outputs, strict=True)])


def _extents(shape: Iterable[Any]) -> tuple[int, ...]:
    extents = tuple(int(d) for d in shape)
    if min(extents, default=0) < 0:
        raise ValueError(f"a negative extent in {list(extents)}")
    return extents


def _results(op: Operation, returned: Any) -> list[Any]:
    if returned is None:
        _fail(f"run of extension {op.id} returned nothing, and its rule left the outputs to it", op)
    results = list(returned) if isinstance(returned, list | tuple) else [returned]
    if len(results) != len(op.present_outputs):
        _fail(
            f"run of extension {op.id} gave {len(results)} outputs, the node has {len(op.present_outputs)}",
            op,
        )
    return results


def _lent(value: Any) -> Any:
    """A view that cannot be written, where NumPy can say so: inputs are the caller's, or weights."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, SequenceValue):
        return SequenceValue([_lent(v) for v in value], value.dtype)
    return value


def _own(value: Any, inputs: Sequence[Any], xp: Any, op: Operation) -> Any:
    """A result as a value that shares no memory with an input."""
    if value is None:
        return None
    if isinstance(value, SequenceValue):
        return SequenceValue([_own(v, inputs, xp, op) for v in value], value.dtype)
    array = _array(value, op)
    held = [v for x in inputs for v in (x if isinstance(x, SequenceValue) else (x,)) if v is not None]
    return array.copy() if any(xp.may_share_memory(array, v) for v in held) else array


def _store(op: Operation, index: int, result: Any, target: Any) -> None:
    array = _array(result, op)
    if array.dtype != target.dtype or array.shape != target.shape:
        _fail(
            f"run of extension {op.id} gave output {index} as {TensorSpec(array.dtype, array.shape)}, its rule says "
            f"{TensorSpec(target.dtype, target.shape)}",
            op,
        )
    target[...] = array


def _array(value: Any, op: Operation) -> Any:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not all(hasattr(value, name) for name in ("dtype", "shape", "nbytes")):
        _fail(f"run of extension {op.id} gave a {type(value).__name__}, not an array", op)
    return value


def _fail(message: str, op: Operation, phase: str = "run") -> NoReturn:
    raise KernelError(message, op=op.id, node=op.name or None, phase=phase)
