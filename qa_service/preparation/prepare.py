"""Prepares a model: decides what its folder lacks, and has that made."""

from __future__ import annotations

import functools
import hashlib
import re
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from qa_service.engine_catalogue import AUTO, PLAIN_ONNX_FILE, PREPARING_FLAGS, ROWS
from qa_service.errors import SetupError
from qa_service.files import read_text, saved_models, sha256_of
from qa_service.installation import installed_version
from qa_service.instance.model_folder.manifest import (
    MANIFEST_FILE,
    Manifest,
    ReadingConfig,
    load_manifest,
    save_manifest,
)
from qa_service.preparation.encoders import are_whole
from qa_service.preparation.folder import locked, replacing, say
from qa_service.preparation.sources import Source, find_source, package_versions

_FORMAT_VERSION = 6
"""To be incremented when other files are made from the same source."""
NOT_ASKED = "unless it does when it is asked; or give --can_abstain"
"""Why a model is said not to abstain that neither flags nor its files or name say anything of."""

_ABSTAINING_NAME = re.compile(r"squad[-_]?v?2(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PrepareArgs:
    """The flags of prepare_model.py, whose help says what they are; None to find out."""

    model: str = "builtin"
    output_dir: Path = field(default_factory=saved_models)
    can_abstain: bool | None = None
    null_threshold: float | None = None
    precision: str = "fp32"
    tensorrt: bool = False


def prepare(args: PrepareArgs) -> Path:
    """Makes a model's folder, unless it is up to date, and adds missing precisions.

    An up-to-date folder keeps its precisions; one that is made again starts with fp32.

    Raises:
        SetupError: The model cannot be fetched, loaded, exported, quantised or written, or its
            files disagree.
    """
    source = find_source(args.model)
    reading, reason = choose_reading(source, args.can_abstain, args.null_threshold)
    target = args.output_dir / source.name
    if target.resolve() == source.model_dir.resolve():
        raise SetupError(f"{target} would replace the model that it is made from")
    with locked(target, lambda: say(f"waiting for another run to finish {target}")):
        wanted = fingerprint(source, reading)
        refuse_foreign(target, source)
        started = time.monotonic()
        is_made = not is_up_to_date(target, wanted)
        missing = [] if is_made else missing_files(load_manifest(target), args)
        if not (is_made or missing):
            say(f"{target} is up to date")
            return target
        from qa_service.preparation import making  # noqa: PLC0415 - its imports take long

        results = functools.cache(partial(source.results, reading))
        if is_made:
            say(f"preparing {source.label}; {reason}")
            with replacing(target) as folder:
                is_asked = NOT_ASKED in reason
                making.begin(source, reading, wanted, folder, results, is_asked=is_asked)
            missing = missing_files(load_manifest(target), args)
        for name in missing:
            try:
                making.add(name, source, target, results)
            except SetupError as error:
                if args.precision != AUTO or name == PLAIN_ONNX_FILE:
                    raise
                say(f"without {name}: {error}")
                manifest = load_manifest(target)
                without = {**manifest.without, name: str(error)}
                save_manifest(target, msgspec.structs.replace(manifest, without=without))
        say(f"prepared {target} in {time.monotonic() - started:.0f} s")
    return target


def missing_files(manifest: Manifest, args: PrepareArgs) -> list[str]:
    """Names of the files still to make; `auto` leaves out those that failed in an earlier run."""
    flag = f"--precision {'int8' if args.precision == AUTO else args.precision}"
    needed = {
        row.file
        for (engine_type, _), row in ROWS.items()
        if PREPARING_FLAGS.get(row.file) == flag
        and (engine_type == "onnx" or any(map(installed_version, row.engine.packages.values())))
    }
    if args.precision == AUTO:
        needed -= manifest.without.keys()
    if args.tensorrt:
        needed.add(PLAIN_ONNX_FILE)
    return sorted(needed - manifest.files.keys())


def fingerprint(source: Source, reading: ReadingConfig) -> str:
    """A hash of everything that the prepared model depends on."""
    parts = {
        "format": _FORMAT_VERSION,
        "label": source.label,
        "files": [(path.name, sha256_of(path)) for path in source.files()],
        "reading": reading,
        "versions": package_versions(needs_torch=source.needs_torch),
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def refuse_foreign(target: Path, source: Source) -> None:
    """Checks that an existing folder was made from this source."""
    if not target.exists():
        return
    if not (target / MANIFEST_FILE).is_file():
        raise SetupError(f"{target} is no prepared model; move it away, or choose --output_dir")
    try:
        owner = load_manifest(target).source
    except SetupError:
        return  # damaged, or in another version's format: it is made again
    if owner != source.label:
        raise SetupError(f"{target} was made from {owner}; move it away, or choose --output_dir")


def is_up_to_date(target: Path, wanted: str) -> bool:
    """Whether the folder is complete, undamaged, and has the wanted fingerprint."""
    try:
        manifest = load_manifest(target)
    except SetupError:
        return False
    return manifest.fingerprint == wanted and are_whole(target, manifest.files)


def choose_reading(
    source: Source, can_abstain: bool | None = None, null_threshold: float | None = None
) -> tuple[ReadingConfig, str]:
    """Decides how the model's logits are read.

    A model's config does not say whether it was trained to abstain. Flags win over the model's own
    `reading.json`, and that over its name; if none of them says it, the model is asked when it is
    loaded. A flag that is not given is None.

    Returns:
        The decision, and its part on "no answer" in words.
    """
    if null_threshold is not None and can_abstain is False:
        raise SetupError("--null_threshold makes no sense with --no-can_abstain")
    reading, why = _own_reading(source)
    threshold = reading.null_threshold
    if can_abstain is not None or null_threshold is not None:
        why = "as you chose"
        threshold = None if can_abstain is False else threshold or 0.0
    if null_threshold is not None:
        threshold = null_threshold
        reading = msgspec.structs.replace(reading, collection_threshold=None)
    verb = "never abstains" if threshold is None else f"abstains below a threshold of {threshold:g}"
    return msgspec.structs.replace(reading, null_threshold=threshold), f"it {verb} ({why})"


def _own_reading(source: Source) -> tuple[ReadingConfig, str]:
    path = source.reading_file
    try:
        reading = msgspec.json.decode(read_text(path), type=ReadingConfig)
        return reading, f"its {path.name} says so"
    except FileNotFoundError:
        pass
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read {path}: {error}") from None
    if _ABSTAINING_NAME.search(source.label):
        return ReadingConfig(null_threshold=0.0), "guessed from its name; or give --no-can_abstain"
    return ReadingConfig(), NOT_ASKED
