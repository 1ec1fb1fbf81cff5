"""From what a user names to provider instances: kinds, entry points, options, the default list."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module, metadata
from typing import Any, TypeAlias

from hetero.errors import ProviderError
from hetero.providers.base import Provider, ProviderConfig, checked_options

ProviderLike: TypeAlias = "str | tuple[str, Mapping[str, Any]] | Provider"
"""A name ("cuda:1"), a name with options (("sim:0", {"except_ops": ["Softmax"]})), or a provider of one's own."""

GROUP = "hetero.providers"
"""Entry-point group in which a third party's distribution names its kind and class."""
_BUILT_IN = {
    "cpu": "hetero.providers.cpu:CpuProvider",
    "sim": "hetero.providers.simulated:SimulatedProvider",
    "cuda": "hetero.providers.cuda:CudaProvider",
}
_ORT_NAMES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(?::(0|[1-9][0-9]{0,5}))?")


def resolve(providers: Sequence[ProviderLike] | None = None) -> tuple[Provider, ...]:
    """Provider instances, in the order given; by default every CUDA device found, then the CPU.

    onnxruntime's names (CPUExecutionProvider, CUDAExecutionProvider with its `device_id`) are understood.

    Raises: ProviderError for an empty list, an unknown kind, a malformed name, two of one name, an unknown option or
    one of the wrong type, a device that is not there. Nothing is left open then.
    """
    if providers is None:
        providers = default_names()
    if isinstance(providers, str | bytes | Mapping) or not isinstance(providers, Iterable):
        raise ProviderError(f"providers must be a list, not {providers!r}")
    wanted = list(providers)
    if not wanted:
        raise ProviderError("the list of providers is empty")
    configs = [config_of(entry) for entry in wanted]
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise ProviderError(f"provider {name} is given twice", device=name)
    made: list[Provider] = []
    try:
        for entry, config in zip(wanted, configs, strict=True):
            made.append(entry if isinstance(entry, Provider) else create(config))
    except BaseException:
        for entry, provider in zip(wanted, made, strict=False):
            if provider is not entry:
                provider.close()
        raise
    return tuple(made)


def create(config: ProviderConfig) -> Provider:
    """A new instance. Raises: ProviderError."""
    kind, _ = _split(config.name)
    return _class_of(kind)(config)


def config_of(entry: ProviderLike) -> ProviderConfig:
    """What creates the provider that `entry` means; creates none itself.

    Raises: ProviderError for anything about its name or options that can be told without the device.
    """
    if isinstance(entry, Provider):
        return entry.config
    options: Mapping[str, Any] = {}
    name: Any = entry
    if isinstance(entry, tuple | list) and len(entry) == 2:
        name, options = entry
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise ProviderError(f"a provider is a name, a pair (name, options) or a Provider, not {entry!r}")
    options = dict(options)
    if name in _ORT_NAMES:
        name = _ORT_NAMES[name]
        if name == "cuda":
            name = f"cuda:{options.pop('device_id', 0)}"
    kind, index = _split(name)
    cls = _class_of(kind)
    if index is None and cls.indexed:
        name = f"{kind}:0"
    ops = _op_names(name, "ops", options.pop("ops", None))
    except_ops = _op_names(name, "except_ops", options.pop("except_ops", None))
    plain = tuple(sorted((_option_name(name, k), _plain(name, k, v)) for k, v in options.items()))
    config = ProviderConfig(name, plain, ops, except_ops or frozenset())
    checked_options(config, cls.declared_options)
    return config


def kinds() -> tuple[str, ...]:
    """Every kind there is a name for, sorted: built in, or from an installed distribution."""
    return tuple(sorted({*_BUILT_IN, *(e.name for e in metadata.entry_points(group=GROUP))}))


def is_kind(name: str) -> bool:
    """Whether there is a kind of this name; quicker than `kinds` for those built in."""
    return name in _BUILT_IN or name in kinds()


def default_names() -> tuple[str, ...]:
    """Every CUDA device found, then "cpu"."""
    return (*(f"cuda:{i}" for i in range(cuda_device_count())), "cpu")


def cuda_device_count() -> int:
    """How many CUDA devices this process can use: 0 without CuPy, the CUDA provider, a driver or a device."""
    if importlib.util.find_spec("cupy") is None or importlib.util.find_spec("hetero.providers.cuda") is None:
        return 0
    try:
        count: int = import_module("cupy").cuda.runtime.getDeviceCount()
    except Exception:
        # CuPy installed on a machine without a (matching) driver: no device, whichever way it says so.
        return 0
    return count


def _split(name: str) -> tuple[str, str | None]:
    match = _NAME.fullmatch(name)
    if match is not None:
        return match[1], match[2]
    kind = name.split(":", 1)[0]
    if ":" in name and kind in kinds():
        raise ProviderError(
            f"provider {name!r} has a malformed index: write {kind} or {kind}:N, N from 0", device=name
        )
    raise _unknown(name)


def _class_of(kind: str) -> type[Provider]:
    """Built-in kinds come from this package whether or not it is installed as a distribution."""
    if kind in _BUILT_IN:
        module, _, attribute = _BUILT_IN[kind].partition(":")
        try:
            found: Any = getattr(import_module(module), attribute)
        except ImportError as error:
            if kind != "cuda":
                raise
            raise ProviderError(
                "no CUDA device found: the cuda provider needs an NVIDIA GPU and CuPy, which the extra cuda12 or "
                "cuda13 installs",
                device=kind,
            ) from error
        return _checked_class(kind, found)
    entries = list(metadata.entry_points(group=GROUP, name=kind))
    if not entries:
        raise _unknown(kind)
    if len({e.value for e in entries}) > 1:
        values = ", ".join(sorted(e.value for e in entries))
        raise ProviderError(f"provider {kind} is claimed by several distributions: {values}", device=kind)
    entry = next(iter(entries))
    try:
        found = entry.load()
    except Exception as error:
        raise ProviderError(
            f"provider {kind} ({entry.value}) cannot be loaded: {error}", device=kind
        ) from error
    return _checked_class(kind, found)


def _checked_class(kind: str, found: Any) -> type[Provider]:
    if not (isinstance(found, type) and issubclass(found, Provider)) or found.kind != kind:
        raise ProviderError(f"provider {kind}: {found!r} is not a Provider of that kind", device=kind)
    return found


def _unknown(name: str) -> ProviderError:
    return ProviderError(f"unknown provider {name!r}; there are: {', '.join(kinds())}", device=name)


def _op_names(provider: str, option: str, value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    # A lone string would otherwise be taken for its letters.
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(v, str) and v for v in value
    ):
        raise ProviderError(
            f"{option} of {provider} must be a list of op names, not {value!r}", device=provider
        )
    return frozenset(value)


def _option_name(provider: str, name: Any) -> str:
    if not isinstance(name, str):
        raise ProviderError(f"option {name!r} of {provider}: names are strings", device=provider)
    return name


def _plain(provider: str, option: str, value: Any) -> Any:
    """`value` with lists as tuples. Raises: ProviderError unless it is plain data: it must reach actors as it is."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(provider, option, v) for v in value)
    raise ProviderError(
        f"option {option!r} of {provider} must be plain data (numbers, text, lists of them), not {value!r}",
        device=provider,
    )
