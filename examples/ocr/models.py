"""Where the two models come from: one pinned wheel, two files out of it, each known by its hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples import wheels
from examples.wheels import FetchError, Pinned, default_cache

# rapidocr (Apache-2.0) carries PaddleOCR's PP-OCRv6 models (Apache-2.0) as ONNX files inside its wheel.
REQUIREMENT = "rapidocr==3.10.0"


class ModelFetchError(FetchError):
    """The two models could not be fetched; says what to do where there is no network."""


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


def fetch(cache: Path | None = None) -> OcrModels:
    """The models in `cache` (default: `default_cache()`), downloaded first unless they lie there verified.

    Safe to call from several processes at once: files appear in the cache whole or not at all.

    Raises: ModelFetchError when pip cannot get the wheel or a file in it is not the pinned one.
    """
    home = default_cache() if cache is None else cache
    try:
        wheels.fetch({REQUIREMENT: (DET, REC)}, home)
    except FetchError as error:
        raise ModelFetchError(
            f"{error}. Where there is no network, put {DET.name} and {REC.name} "
            f"into {home} by hand, or name their folder in $HETERO_CACHE."
        ) from error
    return OcrModels(det=DET.at(home), rec=REC.at(home))
