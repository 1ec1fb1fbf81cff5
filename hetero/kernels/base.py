"""What a kernel is: compile once for given specs, bind once to arrays, call many times; and the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hetero.errors import UnsupportedError
from hetero.kernels.families import load
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.types import Array, HostArray, Spec, TensorSpec, ValueType

Call: TypeAlias = Callable[[], object]
Bind: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Any], Call]
"""(inputs, outputs, workspace) -> zero-argument call over exactly these arrays. An omitted operand is None.
Inputs may be read-only and, unless listed in `contiguous`, strided. Outputs are C-contiguous, uninitialised and
never alias an input unless `overwrites` allowed it. The call may run any number of times while inputs change in place,
unless nothing can write them (`widen.is_constant`): those are weights, and what follows from them may be kept."""
View: TypeAlias = Callable[[Sequence[Any]], "tuple[Array, ...] | None"]
"""inputs -> arrays that share memory with inputs[0], or None where these strides allow no view."""
Run: TypeAlias = Callable[[Sequence[Any]], "tuple[Any, ...]"]
"""inputs -> fresh outputs (arrays, SequenceValue, MapValue, None): for outputs whose specs depend on the data."""

Stretch: TypeAlias = Callable[[Sequence[Spec]], "tuple[TensorSpec, int] | None"]
"""Operands' specs -> the one output's, and the bytes of workspace; None where another kernel is for them."""

ANY_VERSION = range(1, 128)
"""For operators in ONNX's own domain that ONNX has no schema of: their version is the opset that the model imports."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel compiled for fixed input specs.

    Either `bind` is set and `outputs` gives every output's spec (None where that output is omitted), with `view`
    beside it for layout operations; or `run` is set, and the outputs' specs depend on the data.
    """

    outputs: tuple[Spec | None, ...] = ()
    bind: Bind | None = None
    view: View | None = None
    run: Run | None = None
    contiguous: frozenset[int] = frozenset()
    """Inputs that must be C-contiguous; the runtime copies where they are not."""
    blocks: frozenset[int] = frozenset()
    """Inputs of which only the matrices (the last two axes) must be contiguous: the bits of the results do not depend
    on how far apart these lie, so that a part of a larger buffer is read where it is. On the host alone."""
    turned: frozenset[int] = frozenset()
    """Of `blocks`, those whose matrices may as well be transposes of contiguous ones."""
    as_they_lie: frozenset[int] = frozenset()
    """Inputs that a kernel of the host takes with any strides: the bits of the results do not depend on them."""
    overwrites: tuple[tuple[int, int], ...] = ()
    """(input, output) pairs: the output may be computed into the input's memory when the input dies here."""
    updates: tuple[tuple[int, int], ...] = ()
    """(input, output) pairs: the output is the input but for elements that the call sets whatever was there, so that a
    state may be updated in place, and a step that is run again gives the same."""
    workspace_bytes: int = 0
    """Bytes of scratch that bind gets as a uint8 array (None where 0)."""
    capture: str | None = None
    """None: may be recorded. Otherwise the reason why not."""
    accepts: Callable[[int, HostArray], bool] | None = None
    """(input, value) -> whether the bound call stays right where that input, one of `KernelDef.values`, has this value
    instead, and nothing else changes: the call then reads the input itself each time."""
    stretch: Stretch | None = None
    """Set where `bind` and `view` go by the arrays that they get, so that they are right for operands of the same
    dtypes and ranks, and of any extents for which this gives what they make."""
    reads: frozenset[int] | None = None
    """Set where `run` only moves handles of values: it gets the provider's own arrays, whatever they are, but for these
    inputs, which come as host arrays. What it makes itself is a host array too."""


CompileFunction: TypeAlias = Callable[[Operation, Sequence[Spec], Any], Compiled]
"""(operation, input specs, xp) -> Compiled. xp is the provider's array module (numpy, cupy). Specs of omitted inputs
are ABSENT. Raises UnsupportedError with a reason, or KernelError where the operands contradict the operator's text."""
CheckFunction: TypeAlias = Callable[[Operation, "Sequence[ValueType | None]"], "str | None"]
"""(operation, declared input types) -> None, or the reason why the kernel will not take them. Used when planning."""


@dataclass(frozen=True, slots=True)
class KernelDef:
    """A kernel as registered.

    `versions` are the schema since-versions whose meaning it implements (another version is not served by it).
    `values` are the inputs whose *value* decides the output's shape (Reshape's shape, Slice's starts…): the runtime
    hands their specs over with `.value` set (a host array), whatever provider the data lives on.
    `portable`: uses nothing but the array module, so it runs on every provider. `metadata`: the result follows from the
    input specs alone and the bound call reads no input (Shape, Size), so that it is known whenever shapes are.
    `strided`: every element of a result comes from the same few operations whatever the operands' strides, so the bits
    do not depend on them (elementwise arithmetic, copies). Sums, products of matrices and vectorised transcendentals
    are not like that: the runtime hands them contiguous operands only, so that a value gives the same bits as a view
    and as a copy that came from another child.
    `views`: a result may be a view of the first operand; of a kernel that does not say so, views are not used.
    """

    domain: str
    op_type: str
    versions: frozenset[int]
    compile: CompileFunction
    dispatch: Dispatch = Dispatch.BACKEND
    values: tuple[int, ...] = ()
    portable: bool = True
    deterministic: bool = True
    metadata: bool = False
    strided: bool = False
    check: CheckFunction | None = None
    views: bool = False


_REGISTRY: dict[tuple[str, str], list[KernelDef]] = {}


def kernel(
    *op_types: str,
    versions: Iterable[int],
    domain: str = "",
    dispatch: Dispatch = Dispatch.BACKEND,
    values: tuple[int, ...] = (),
    portable: bool = True,
    deterministic: bool = True,
    metadata: bool = False,
    strided: bool = False,
    check: CheckFunction | None = None,
    views: bool = False,
) -> Callable[[CompileFunction], CompileFunction]:
    """Register the decorated compile function for `op_types` (one function may serve several of the same shape)."""
    served = frozenset(versions)

    def register(function: CompileFunction) -> CompileFunction:
        for op_type in op_types:
            defs = _REGISTRY.setdefault((domain, op_type), [])
            for other in defs:
                if other.versions & served:
                    raise ValueError(
                        f"{domain}::{op_type} {sorted(other.versions & served)} registered twice"
                    )
            defs.append(
                KernelDef(
                    domain,
                    op_type,
                    served,
                    function,
                    dispatch,
                    values,
                    portable,
                    deterministic,
                    metadata,
                    strided,
                    check,
                    views or dispatch is Dispatch.VIEW,
                )
            )
        return function

    return register


def lookup(domain: str, op_type: str, version: int) -> KernelDef | None:
    """The kernel that implements this schema version, or None. Its family is imported if it was not before."""
    load(domain, op_type)
    for definition in _REGISTRY.get((domain, op_type), ()):
        if version in definition.versions:
            return definition
    return None


def registered() -> tuple[KernelDef, ...]:
    """All kernels, in registration order."""
    return tuple(d for defs in _REGISTRY.values() for d in defs)


def computed(
    outputs: Sequence[Spec | None],
    bind: Bind,
    *,
    contiguous: Iterable[int] = (),
    blocks: Iterable[int] = (),
    turned: Iterable[int] = (),
    as_they_lie: Iterable[int] = (),
    overwrites: Iterable[tuple[int, int]] = (),
    updates: Iterable[tuple[int, int]] = (),
    workspace_bytes: int = 0,
    capture: str | None = None,
    accepts: Callable[[int, HostArray], bool] | None = None,
    stretch: Stretch | None = None,
) -> Compiled:
    """A kernel whose output specs are known."""
    return Compiled(
        tuple(outputs),
        bind=bind,
        contiguous=frozenset(contiguous),
        blocks=frozenset(blocks),
        turned=frozenset(turned),
        as_they_lie=frozenset(as_they_lie),
        overwrites=tuple(overwrites),
        updates=tuple(updates),
        workspace_bytes=workspace_bytes,
        capture=capture,
        accepts=accepts,
        stretch=stretch,
    )


def viewed(
    outputs: Sequence[Spec | None], view: View, bind: Bind, *, stretch: Stretch | None = None
) -> Compiled:
    """A layout operation: a view where strides allow, `bind` (a copy) otherwise."""
    return Compiled(tuple(outputs), bind=bind, view=view, stretch=stretch)


def dynamic(run: Run, *, capture: str = "data-dependent output shape") -> Compiled:
    """A kernel whose output specs depend on the data."""
    return Compiled(run=run, capture=capture)


def handling(run: Run, *, reads: Iterable[int] = (), capture: str) -> Compiled:
    """A kernel that moves handles (see `Compiled.reads`), so that it costs the same on every provider."""
    return Compiled(run=run, capture=capture, reads=frozenset(reads))


def tensor(op: Operation, specs: Sequence[Spec], index: int) -> TensorSpec:
    """specs[index] as a tensor. Raises: UnsupportedError where it is absent or no tensor."""
    spec = specs[index] if index < len(specs) else None
    if not isinstance(spec, TensorSpec):
        raise UnsupportedError(f"input {index} must be a tensor", op=op.id, node=op.name)
    return spec


def given(specs: Sequence[Spec], index: int) -> TensorSpec | None:
    """specs[index], or None where that operand is omitted."""
    spec = specs[index] if index < len(specs) else None
    return spec if isinstance(spec, TensorSpec) else None
