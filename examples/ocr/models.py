"""Where the two models come from: one pinned wheel, two files out of it, each known by its hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

# rapidocr (Apache-2.0) carries PaddleOCR's PP-OCRv6 models (Apache-2.0) as ONNX files inside its wheel.
REQUIREMENT = "rapidocr==3.10.0"
DOWNLOAD_LIMIT_S = 300.0
_CHUNK_BYTES = 1 << 20


class ModelFetchError(Exception):
    """The models could not be fetched, or what was fetched is not what is pinned here."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file of the wheel, with the size and the hash it must have."""

    entry: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return self.entry.rpartition("/")[2]


DET = Pinned(
    entry="rapidocr/models/PP-OCRv6_det_small.onnx",
    size_bytes=9_929_594,
    sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
)
REC = Pinned(
    entry="rapidocr/models/PP-OCRv6_rec_small.onnx",
    size_bytes=21_234_383,
    sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
)


@dataclass(frozen=True, slots=True)
class OcrModels:
    """Paths of the verified model files: `det` finds lines on a page, `rec` reads one line."""

    det: Path
    rec: Path


def default_cache() -> Path:
    """`$HETERO_CACHE` where it is set, else `~/.cache/hetero-ray/models`."""
    chosen = os.environ.get("HETERO_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "hetero-ray" / "models"


def fetch(cache: Path | None = None) -> OcrModels:
    """The models in `cache` (default: `default_cache()`), downloaded first unless they lie there verified.

    Safe to call from several processes at once: files appear in the cache whole or not at all.

    Raises: ModelFetchError when pip cannot get the wheel or a file in it is not the pinned one.
    """
    home = default_cache() if cache is None else cache
    missing = [pinned for pinned in (DET, REC) if not is_verified(home / pinned.name, pinned)]
    if missing:
        with tempfile.TemporaryDirectory(prefix="hetero-ocr-") as scratch:
            unpack(download(Path(scratch)), missing, home)
    return OcrModels(det=home / DET.name, rec=home / REC.name)


def is_verified(path: Path, pinned: Pinned) -> bool:
    """Whether `path` is a file with exactly the pinned bytes. A damaged file is simply fetched again."""
    try:
        if path.stat().st_size != pinned.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == pinned.sha256
    except OSError:
        return False


def download(folder: Path) -> Path:
    """Let pip, as this machine has it configured, put the wheel into `folder`; returns the wheel's path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _cannot_fetch(f"pip took longer than {DOWNLOAD_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise _cannot_fetch(f"pip did not start: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise _cannot_fetch(f"pip ended with {done.returncode}: " + " | ".join(said))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _cannot_fetch(f"pip left {len(wheels)} wheels where one was expected")
    return wheels[0]


def unpack(wheel: Path, wanted: Sequence[Pinned], cache: Path) -> None:
    """Put the wanted files of `wheel` into `cache`, each under its pinned name, once its hash is right.

    A name inside the archive never becomes a path: entries are looked up by the exact names pinned above.
    The archive is refused whole if any name in it tries to leave, since such an archive was made to harm.

    Raises: ModelFetchError, leaving the files already in `cache` as they were.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            for name in names:
                if escapes(name):
                    raise ModelFetchError(f"{wheel.name} holds an entry that leaves its folder: {name!r}")
            for pinned in wanted:
                if names.count(pinned.entry) != 1:
                    found = names.count(pinned.entry)
                    raise ModelFetchError(f"{wheel.name} holds {pinned.entry} {found} times, not once")
            # Everything is verified in scratch before the first file moves into the cache.
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
                for pinned in wanted:
                    _extract(archive, pinned, Path(scratch) / pinned.name)
                for pinned in wanted:
                    (Path(scratch) / pinned.name).replace(cache / pinned.name)
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelFetchError(f"cannot unpack {wheel.name} into {cache}: {error}") from error


def escapes(name: str) -> bool:
    """Whether an archive entry's name is absolute, has a drive, or climbs out, on any system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or bool(windows.drive) or bool(windows.root)
    return rooted or "\\" in name or "\0" in name or ".." in posix.parts


def _extract(archive: zipfile.ZipFile, pinned: Pinned, target: Path) -> None:
    digest, written = hashlib.sha256(), 0
    with archive.open(pinned.entry) as source, target.open("xb") as sink:
        while chunk := source.read(_CHUNK_BYTES):
            written += len(chunk)
            if written > pinned.size_bytes:  # stops a bomb at the size we know, whatever its header says
                raise ModelFetchError(f"{pinned.entry} is larger than its {pinned.size_bytes} bytes")
            digest.update(chunk)
            sink.write(chunk)
    if digest.hexdigest() != pinned.sha256:
        raise ModelFetchError(f"{pinned.entry} has sha256 {digest.hexdigest()}, pinned is {pinned.sha256}")


def _cannot_fetch(reason: str) -> ModelFetchError:
    return ModelFetchError(
        f"cannot fetch {REQUIREMENT}: {reason}. Where there is no network, put {DET.name} and {REC.name} "
        f"into {default_cache()} by hand, or name their folder in $HETERO_CACHE."
    )
