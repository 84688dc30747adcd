"""What preparing a shipped model computes, kept with the model: it is the same on every machine.

    models/builtin/results.xz, models/all-MiniLM-L6-v2/results.xz: a `Results`, MessagePack in xz

The rounding of a graph in int8, and what the model answers by NumPy: to compute it takes a minute
of one core. `training/shipped_results.py` makes the files; a test computes them again. Results of
another model, or for other windows, are not used: they are computed.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterable
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.preparation.encoders import sha256_of

RESULTS_FILE = "results.xz"


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file.

    Attributes:
        computed_of: `identity` of what it was computed of.
        corrections: Of the graph in int8, see `quantize.corrections`.
        known: The file of known answers, or of known embeddings.
        differences: Those of the manifest, for every engine that was installed.
    """

    computed_of: str
    corrections: bytes
    known: bytes
    differences: dict[str, dict[str, float]] = {}


def identity(files: Iterable[Path], reading: ReadingConfig | None = None) -> str:
    """A hash of a model's files, and of how its windows are cut."""
    hashes = sorted((path.name, sha256_of(path)) for path in files)
    windows = (reading.window_tokens, reading.window_overlap_tokens) if reading else ()
    return hashlib.sha256(msgspec.json.encode((hashes, windows))).hexdigest()


def load_results(folder: Path, computed_of: str) -> Results | None:
    """Reads the results; None if there are none, or if they are another model's."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        return None
    try:
        results = msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Results)
    except (OSError, EOFError, lzma.LZMAError, msgspec.DecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None
    return results if results.computed_of == computed_of else None


def save_results(folder: Path, results: Results) -> None:
    data = lzma.compress(msgspec.msgpack.encode(results), preset=9)
    (folder / RESULTS_FILE).write_bytes(data)
