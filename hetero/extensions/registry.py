"""Which extensions there are: registered in this process, named by entry points, or in modules that options name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib import import_module, metadata
from typing import Any, NoReturn, TypeVar

from hetero.errors import KernelError, MemoryLimitError, OptionError
from hetero.extensions.contract import Extension
from hetero.kernels.base import Compiled, KernelDef, lookup
from hetero.program.operation import Operation
from hetero.program.program import Dispatch
from hetero.program.schema import signature
from hetero.types import Spec, ValueType

GROUP = "hetero.extensions"
"""Entry-point group. An entry is named after a domain; loading it registers that domain's extensions."""
_STANDARD = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"}
)
_registry: dict[tuple[str, str], list[tuple[Extension, KernelDef]]] = {}

Registered = TypeVar("Registered", bound="Extension | type[Extension]")


def register(extension: Registered, *, replace: bool = False) -> Registered:
    """Add an extension (an instance, or a class that is made without arguments) and return it: also a decorator.

    replace: take the place of those registered for the same versions, for notebooks that run a cell again.
    Raises: OptionError for what is no extension, a malformed domain, name or version, a domain of the ONNX standard,
    an operation that this package or another extension already implements, in_capture without in_session.
    """
    made: Any = extension() if isinstance(extension, type) else extension
    _check(made)
    served = frozenset(made.versions)
    known = _registry.get((made.domain, made.name), [])
    rivals = [other for other, definition in known if definition.versions & served]
    if rivals and not replace:
        raise OptionError(
            f"{made.id} {sorted(served)} is registered already, by {_where(rivals[0])}", op=made.id
        )
    kept = [(other, definition) for other, definition in known if other not in rivals]
    _registry[made.domain, made.name] = [*kept, (made, _definition(made, served))]
    return extension


def unregister(domain: str, name: str) -> None:
    """Forget the extensions of this name; does nothing where there are none. Running executors keep theirs."""
    _registry.pop((domain, name), None)


def find(op: Operation) -> Extension | None:
    """The extension for this operation at its version, or None."""
    found = _find(op)
    return None if found is None else found[0]


def definition(op: Operation) -> KernelDef | None:
    """The extension for this operation as the runtime sees kernels, or None."""
    found = _find(op)
    return None if found is None else found[1]


def serves(domain: str) -> bool:
    """Whether any extension is of this domain."""
    if domain in _STANDARD:
        return False
    _load_entry(domain)
    return any(key[0] == domain for key in _registry)


def refusal(extension: Extension, op: Operation, types: Sequence[ValueType | None], kind: str) -> str | None:
    """Why the extension does not run this operation on a provider of this kind, or None.

    Raises: KernelError where its own check fails.
    """
    if kind not in extension.kinds:
        return f"{extension.id} is an extension for {', '.join(sorted(extension.kinds))} only"
    try:
        return extension.check(op, types)
    except Exception as error:
        failed(error, op, "check", phase="plan")


def load_modules(names: str | Iterable[str]) -> None:
    """Import the modules that register extensions: a list of names, or one text with commas between them.

    Raises: OptionError for one that cannot be imported, with the cause.
    """
    for name in names.split(",") if isinstance(names, str) else names:
        if name.strip():
            _import(name.strip())


def home_modules(ops: Iterable[Operation]) -> tuple[str, ...]:
    """The modules of the extensions among `ops`, for another process to import; sorted.

    Raises: OptionError for an extension whose module other processes cannot import.
    """
    found: set[str] = set()
    for op in ops:
        extension = find(op)
        if extension is None:
            continue
        module = type(extension).__module__
        if module == "__main__":
            raise OptionError(
                f"extension {extension.id} is defined in the main script, which children in other processes cannot "
                'import: put it into a module, or use children="inline"',
                op=op.id,
                node=op.name,
            )
        found.add(module)
    return tuple(sorted(found))


def failed(error: Exception, op: Operation, what: str, phase: str = "run") -> NoReturn:
    """Raises: KernelError (MemoryLimitError where memory ran out) for an error of the user's `what`, which it names and
    keeps as its cause."""
    kind = MemoryLimitError if isinstance(error, MemoryError) else KernelError
    raise kind(
        f"{what} of extension {op.id} failed: {type(error).__name__}: {error}",
        op=op.id,
        node=op.name or None,
        phase=phase,
    ) from error


def _find(op: Operation) -> tuple[Extension, KernelDef] | None:
    if op.domain in _STANDARD:
        return None
    _load_entry(op.domain)
    for extension, definition in _registry.get((op.domain, op.op_type), ()):
        if op.version in definition.versions:
            return extension, definition
    return None


def _definition(extension: Extension, served: frozenset[int]) -> KernelDef:
    def unprepared(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
        raise KernelError(
            f"extension {op.id} runs in a child executor only, which prepares it; there is none here",
            op=op.id,
            node=op.name or None,
        )

    return KernelDef(
        extension.domain,
        extension.name,
        served,
        unprepared,
        dispatch=Dispatch.EXTENSION,
        values=tuple(extension.values),
        portable=any(kind != "cpu" for kind in extension.kinds),
        deterministic=False,  # never folded: it is prepared for the device, not for the host
    )


def _check(made: Any) -> None:
    if not isinstance(made, Extension):
        raise OptionError(f"an extension is an instance or a subclass of Extension, not {made!r}")
    where = _where(made)
    for label in ("domain", "name"):
        text = getattr(made, label, None)
        if (
            not isinstance(text, str)
            or not text
            or not text.replace(".", "_").replace("-", "_").isidentifier()
        ):
            raise OptionError(f"{label} of {where} must be an ONNX name, not {text!r}", operand=label)
    if made.domain in _STANDARD:
        raise OptionError(
            f"{where} must have a domain of its own: {made.domain!r} is the ONNX standard's", operand="domain"
        )
    for label, kind in (("versions", int), ("kinds", str), ("values", int)):
        given = getattr(made, label)
        listed = isinstance(given, Collection) and not isinstance(given, str | bytes)
        if not listed or not all(type(v) is kind for v in given):
            raise OptionError(
                f"{label} of {where} must list {kind.__name__} values, not {given!r}", operand=label
            )
    if not made.versions or min(made.versions) < 1:
        raise OptionError(f"versions of {where} must be opset versions from 1, not {made.versions!r}")
    if not made.kinds:
        raise OptionError(f"kinds of {where} is empty: no provider would run it", operand="kinds")
    if made.in_capture and not made.in_session:
        raise OptionError(
            f"{where} is in_capture but not in_session: what waits cannot be recorded", operand="in_capture"
        )
    for version in made.versions:
        if lookup(made.domain, made.name, version) or signature(made.domain, made.name, version):
            raise OptionError(f"{made.id}-{version} of {where} is built in already", op=made.id)


def _where(extension: Extension) -> str:
    cls = type(extension)
    return f"{cls.__module__}.{cls.__qualname__}"


@cache
def _load_entry(domain: str) -> None:
    for entry in metadata.entry_points(group=GROUP, name=domain):
        try:
            entry.load()
        except Exception as error:
            raise OptionError(
                f"the extensions of domain {domain!r} ({entry.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error


def _import(name: str) -> None:
    try:
        import_module(name)
    except Exception as error:
        raise OptionError(
            f"extension module {name!r} cannot be imported: {type(error).__name__}: {error}",
            operand="extensions",
        ) from error
