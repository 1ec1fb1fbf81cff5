"""The table's models on this machine: fetched from the package index into a cache, each verified against its pin."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from examples import wheels
from examples.wheels import Pinned
from tests.models.table import PACKAGES, Model, Package

PINS = Path(__file__).with_name("pins.txt")
"""One line for each model: sha256, size in bytes, path below the cache (package-version/path in the wheel)."""


@dataclass(frozen=True)
class Entry:
    """A model of the table with its package."""

    package: Package
    model: Model

    def __str__(self) -> str:
        return f"{self.package.requirement.partition('==')[0]}/{self.model.name}"

    @property
    def pinned(self) -> Pinned:
        """What the model's file must be, and where in the cache it lies.

        Raises: KeyError for a model without a line in `PINS`.
        """
        home = self.package.requirement.replace("==", "-")
        path = PurePosixPath(self.package.folder, f"{self.model.name}.onnx")
        sha256, size_bytes = pins()[f"{home}/{path}"]
        return Pinned(str(path), size_bytes, sha256, folder=f"{home}/{path.parent}")


def entries() -> tuple[Entry, ...]:
    """Every model of the table."""
    return tuple(Entry(package, model) for package in PACKAGES for model in package.models)


def cache_folder() -> Path:
    """`$HETERO_MODELS` where it is set, else where the examples keep theirs."""
    chosen = os.environ.get("HETERO_MODELS")
    return Path(chosen) if chosen else wheels.default_cache()


def fetch(wanted: Iterable[Entry], folder: Path) -> dict[str, Path]:
    """Paths of the wanted models in `folder`, by name; downloads, in one go, the wheels of those that are not there.

    Raises: FetchError when the index cannot be reached or has other bytes than those pinned.
    """
    by_wheel: dict[str, list[Pinned]] = {}
    paths: dict[str, Path] = {}
    for entry in wanted:
        pinned = entry.pinned
        by_wheel.setdefault(entry.package.requirement, []).append(pinned)
        paths[str(entry)] = pinned.at(folder)
    wheels.fetch(by_wheel, folder)
    return paths


@cache
def pins() -> dict[str, tuple[str, int]]:
    """Path below the cache -> (sha256, size in bytes)."""
    lines = [line.split() for line in PINS.read_text().splitlines()]
    return {path: (sha256, int(size)) for sha256, size, path in lines}
