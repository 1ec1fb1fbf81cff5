"""Initializers as they arrive at an actor: parts of files that it maps, or parcels of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from actors.parcels import Wire, unpack
from hetero.errors import TransportError
from hetero.mapped import FileRange, open_ranges
from hetero.types import HostArray, TensorSpec


class NotHereError(TransportError):
    """This process cannot open a file that holds its weights, or what is there is another file."""


@dataclass(frozen=True, slots=True)
class InFiles:
    """Initializers as parts of files."""

    ranges: tuple[FileRange, ...]
    specs: tuple[TensorSpec, ...]


Content: TypeAlias = "Wire | InFiles"
"""What a group of initializers arrives as."""


def arrived(names: Sequence[Sequence[str]], contents: Sequence[Content]) -> dict[str, HostArray]:
    """The initializers of an actor, by name; read-only. They stay shared.

    Raises: NotHereError.
    """
    found: dict[str, HostArray] = {}
    in_files = [content for content in contents if isinstance(content, InFiles)]
    try:
        parts = iter(open_ranges([place for content in in_files for place in content.ranges]))
    except OSError as error:
        raise NotHereError(f"weights cannot be mapped: {error}", phase="prepare") from error
    for group, content in zip(names, contents, strict=True):
        if isinstance(content, InFiles):
            arrays = [next(parts).view(spec.dtype).reshape(spec.shape) for spec in content.specs]
        else:
            arrays = unpack(content)
        found.update(zip(group, arrays, strict=True))
    return found
