"""Prepares a model: source, model, graph, check, folder."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qa_service.engine_catalogue import (
    AUTO,
    ONNX_FILE,
    PLAIN_ONNX_FILE,
    PREPARING_FLAGS,
    PYTORCH_FILE,
    ROWS,
    Kind,
)
from qa_service.errors import SetupError
from qa_service.files import saved_models
from qa_service.installation import installed_version
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    MANIFEST_FILE,
    Manifest,
    ReadingConfig,
    load_manifest,
    save_manifest,
)
from qa_service.preparation.encoders import sha256_of
from qa_service.preparation.folder import locked, replacing
from qa_service.preparation.reading import NOT_ASKED, choose_reading
from qa_service.preparation.sources import (
    Source,
    as_setup_error,
    find_source,
    package_versions,
)

if TYPE_CHECKING:
    from qa_service.instance.arrays import LogitsFunction
    from qa_service.preparation.results import Results
    from qa_service.preparation.source_model import SourceModel
    from qa_service.preparation.verify import ModelOutputs

_FindResults = Callable[[], "Results | None"]
"""What preparing a shipped model computes, if it is shipped too; read once, when it is needed."""

_FORMAT_VERSION = 6
"""To be incremented when this code writes other files from the same source."""

_LONG = " (minutes for a large model)"


@dataclass(frozen=True, slots=True)
class PrepareArgs:
    """The flags of prepare_model.py.

    Attributes:
        can_abstain: Whether the model may answer "no answer"; None to find out.
        null_threshold: How much a span must outscore "no answer", in logits; None for the model's
            own value, or 0.
        precision: One of the `onnx` engine's, prepared for every installed engine, with fp32.
            `auto` is int8 as far as the model has it.
    """

    model: str = "builtin"
    output_dir: Path = field(default_factory=saved_models)
    can_abstain: bool | None = None
    null_threshold: float | None = None
    precision: str = "fp32"
    tensorrt: bool = False


def prepare(args: PrepareArgs) -> Path:
    """Makes a model's folder, unless it is up to date, and adds missing precisions.

    The folder of an older version gets its known answers. An up-to-date folder keeps its
    precisions; one that is made again starts with fp32.

    Raises:
        SetupError: The model cannot be fetched, loaded, exported, quantised or written, or its
            files disagree.
    """
    source = find_source(args.model)
    reading, reason = choose_reading(source, args.can_abstain, args.null_threshold)
    target = args.output_dir / source.name
    if target.resolve() == source.model_dir.resolve():
        raise SetupError(f"{target} would replace the model that it is made from")
    with locked(target, lambda: print(f"waiting for another run to finish {target}")):
        wanted = fingerprint(source, reading)
        refuse_foreign(target, source)
        started = time.monotonic()
        is_made = not is_up_to_date(target, wanted)
        results = functools.cache(partial(source.results, reading))
        if is_made:
            say(f"preparing {source.label}; {reason}")
            with replacing(target) as folder:
                is_asked = NOT_ASKED in reason
                _make(source, reading, wanted, folder, results, is_asked=is_asked)
        missing = missing_files(load_manifest(target), args)
        for name in missing:
            _add_if_possible(name, source, target, args, results)
        if is_made or missing:
            say(f"prepared {target} in {time.monotonic() - started:.0f} s")
        else:
            say(f"{target} is up to date")
    return target


def say(line: str) -> None:
    """Prints a line at once, also to a pipe or a file."""
    print(line, flush=True)


def missing_files(manifest: Manifest, args: PrepareArgs) -> list[str]:
    """Names of the files still to make; `auto` leaves out those that failed in an earlier run."""
    missing = _needed_files(args) - manifest.files.keys()
    if args.precision == AUTO:
        missing -= manifest.without.keys() - {PLAIN_ONNX_FILE}
    return sorted(missing)


def _needed_files(args: PrepareArgs) -> set[str]:
    """Names of the files to make, besides those that a folder is begun with."""
    precision = "int8" if args.precision == AUTO else args.precision
    flag = f"--precision {precision}"
    needed = {
        row.file
        for (engine_type, _), row in ROWS.items()
        if PREPARING_FLAGS.get(row.file) == flag
        and (engine_type == "onnx" or any(map(installed_version, row.engine.packages.values())))
    }
    if args.tensorrt:
        needed.add(PLAIN_ONNX_FILE)
    return needed | {KNOWN_ANSWERS_FILE}


def _add_if_possible(
    name: str, source: Source, target: Path, args: PrepareArgs, results: _FindResults
) -> None:
    """Adds a file; with `auto`, a failure is only noted in the manifest."""
    if name == KNOWN_ANSWERS_FILE:
        _add_known_answers(source, target)
        return
    try:
        if reason := load_manifest(target).without.get(ONNX_FILE):
            raise SetupError(f"{name} is made from {ONNX_FILE}, which this model lacks: {reason}")
        with replacing(target) as folder:
            _link_files(target, folder, besides=name)
            if name == PLAIN_ONNX_FILE:
                _add_plain(source, folder)
            else:
                _add_precision(folder / name, results())
    except SetupError as error:
        if args.precision != AUTO or name == PLAIN_ONNX_FILE:
            raise
        say(f"without {name}: {error}")
        manifest = load_manifest(target)
        without = {**manifest.without, name: str(error)}
        save_manifest(target, msgspec.structs.replace(manifest, without=without))


def _link_files(target: Path, folder: Path, *, besides: str) -> None:
    """Puts a prepared model's files into a new folder, but the one that is made again.

    No file of a prepared model is ever written to, so both folders may have the same: a copy would
    be of hundreds of megabytes.
    """

    def link(source: str, copy: str) -> None:
        try:
            os.link(source, copy)
        except OSError:  # not every file system has links
            shutil.copy2(source, copy)

    without = shutil.ignore_patterns(besides)
    shutil.copytree(target, folder, copy_function=link, ignore=without, dirs_exist_ok=True)


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
    return manifest.fingerprint == wanted and all(
        (target / name).is_file() and sha256_of(target / name) == digest
        for name, digest in manifest.files.items()
    )


def _make(
    source: Source,
    reading: ReadingConfig,
    wanted: str,
    folder: Path,
    results: _FindResults,
    *,
    is_asked: bool,
) -> None:
    """Writes the files, checks them, and then writes the manifest.

    Args:
        is_asked: Whether the model is asked if it abstains.
    """
    from qa_service.preparation import verify  # noqa: PLC0415
    from qa_service.preparation.source_model import quiet_libraries  # noqa: PLC0415

    loaded = _opened(source, reading)
    with quiet_libraries():
        with as_setup_error("its files cannot be written"):
            loaded.save(folder)
        manifest = _manifest(source, reading, wanted, folder, loaded)
        if is_asked:
            say("asking it questions without an answer")
        if is_asked and verify.can_abstain(folder, manifest, loaded.logits):
            say("it abstains: asked questions without an answer, it found none")
            asked = msgspec.structs.replace(manifest.reading, null_threshold=0.0)
            manifest = msgspec.structs.replace(manifest, reading=asked, can_abstain=True)
        if shipped := results():
            manifest, words = _with_results(loaded, shipped, folder, manifest)
        else:
            manifest, words = _with_computed(loaded, folder, manifest)
    save_manifest(folder, manifest)
    say(words)
    if not manifest.may_pad:
        say("its windows run one by one: padding changes its logits")


def _with_results(
    loaded: SourceModel, results: Results, folder: Path, manifest: Manifest
) -> tuple[Manifest, str]:
    """Writes the ONNX file and the shipped known answers, and asks it for them."""
    from qa_service.preparation import known  # noqa: PLC0415

    say("writing the ONNX file, and asking it for the known answers")
    layers = loaded.write_graph(folder / ONNX_FILE)
    (folder / KNOWN_ANSWERS_FILE).write_bytes(results.known)
    for name in (ONNX_FILE, KNOWN_ANSWERS_FILE):
        manifest = _with_file(manifest, folder / name)
    manifest = msgspec.structs.replace(manifest, differences=results.differences)
    known.prove(folder, manifest, ("onnx", "fp32"))
    return manifest, f"fused the attention of {layers} layers in the ONNX file"


def _with_computed(loaded: SourceModel, folder: Path, manifest: Manifest) -> tuple[Manifest, str]:
    """Writes the ONNX file and the known answers, and compares each file with the source."""
    from qa_service.preparation import verify  # noqa: PLC0415

    answered = verify.source_answers(folder, manifest, loaded.logits)
    if PYTORCH_FILE in manifest.files and all(map(installed_version, ("torch", "transformers"))):
        say("comparing the file that PyTorch loads with the source")
        verify.verify(folder, manifest, "pytorch", answered)
    try:
        words = _export(loaded, folder, manifest, answered)
        manifest = _with_file(manifest, folder / ONNX_FILE)
    except SetupError as error:
        if PYTORCH_FILE not in manifest.files:
            raise
        (folder / ONNX_FILE).unlink(missing_ok=True)
        words = f"only the pytorch engine can serve this model: {error}"
        manifest = msgspec.structs.replace(manifest, without={ONNX_FILE: str(error)})
    return _with_known_answers(folder, manifest, loaded.logits), words


def _opened(source: Source, reading: ReadingConfig) -> SourceModel:
    """Loads the source's model; of a stranger, finds out what its config does not say."""
    from qa_service.preparation import measuring  # noqa: PLC0415
    from qa_service.preparation.source_model import (  # noqa: PLC0415
        open_model,
        quiet_libraries,
    )

    if source.is_shipped:
        return open_model(source)
    if source.needs_torch:
        say("starting PyTorch")
    with quiet_libraries():
        loaded = open_model(source)
        say("finding the longest sequence that it takes")
        return measuring.measured(loaded, reading.window_tokens)


def _export(loaded: SourceModel, folder: Path, manifest: Manifest, answered: ModelOutputs) -> str:
    """Writes the ONNX file, fused if it can be, and checks it; returns a report in words."""
    from qa_service.preparation import verify  # noqa: PLC0415

    say("writing the ONNX file")
    layers = loaded.write_graph(folder / ONNX_FILE)
    say("comparing the ONNX file with the source")
    manifest = _with_file(manifest, folder / ONNX_FILE)
    difference = verify.verify(folder, manifest, "onnx", answered)
    fused = f"fused the attention of {layers} layers in the ONNX file"
    if not layers:
        has_sympy = installed_version("sympy")
        why = "this architecture's is not supported" if has_sympy else "that needs sympy"
        fused = f"left attention unfused in the ONNX file: {why}"
    return (
        f"{fused}\nit gives the same {len(verify.QUESTIONS)} answers; "
        f"largest difference between logits {difference:.1e}"
    )


def _add_precision(path: Path, results: Results | None) -> None:
    """Adds a file made from its `model.onnx` to a prepared model."""
    from qa_service.preparation.source_model import quiet_libraries  # noqa: PLC0415

    kind = next(kind for kind, row in ROWS.items() if row.file == path.name)
    manifest = load_manifest(path.parent)
    with quiet_libraries():
        say(f"converting to {kind[1]} for {kind[0]}{'' if results else _LONG}")
        _convert(path, kind, manifest, results.corrections if results else b"")
        manifest = _with_file(manifest, path)
        is_known = results is not None and results.has(*kind)
        manifest, words = _compared(path, kind, manifest, is_known=is_known)
    save_manifest(path.parent, manifest)
    say(f"{path.name} gives {words}")


def _convert(path: Path, kind: Kind, manifest: Manifest, corrections: bytes) -> None:
    """Writes a file in a lower precision."""
    from qa_service.preparation import graphs, openvino_int8, quantize  # noqa: PLC0415

    fp32 = path.with_name(ONNX_FILE)
    if kind[1] == "fp16":
        graphs.convert_to_fp16(fp32, path)
    elif kind[0] == "openvino":
        openvino_int8.quantize(fp32, path)
    elif corrections:
        quantize.quantize_as_before(fp32, path, corrections)
    else:
        quantize.quantize(fp32, path, quantize.calibration_inputs(path.parent, manifest))


def _compared(
    path: Path, kind: Kind, manifest: Manifest, *, is_known: bool
) -> tuple[Manifest, str]:
    """Compares a file with the known answers; if it was never measured, also other answers.

    Returns:
        The manifest, and what the file gives in words.
    """
    from qa_service.preparation import known, verify  # noqa: PLC0415

    if is_known:
        known.prove(path.parent, manifest, kind)
        return manifest, "the known answers"
    say("comparing its answers with those in fp32")
    same = verify.verify_precision(path.parent, manifest, *kind)
    manifest = _with_differences(path.parent, manifest, [path.name])
    return manifest, f"{same:.0f} % of the answers that fp32 gives"


def _add_plain(source: Source, folder: Path) -> None:
    """Adds the graph unfused to a prepared model: TensorRT has none of the fused operators."""
    from qa_service.preparation.source_model import (  # noqa: PLC0415
        open_model,
        quiet_libraries,
    )

    with quiet_libraries():
        say("writing the ONNX file for TensorRT")
        open_model(source).write_plain_graph(folder / PLAIN_ONNX_FILE)
    save_manifest(folder, _with_file(load_manifest(folder), folder / PLAIN_ONNX_FILE))
    say(f"wrote {PLAIN_ONNX_FILE} for TensorRT")


def _add_known_answers(source: Source, target: Path) -> None:
    """Adds what the source's model computes to a folder that was prepared without."""
    from qa_service.preparation.source_model import (  # noqa: PLC0415
        open_model,
        quiet_libraries,
    )

    with quiet_libraries(), replacing(target) as folder:
        _link_files(target, folder, besides=KNOWN_ANSWERS_FILE)
        logits = open_model(source).logits
        save_manifest(folder, _with_known_answers(folder, load_manifest(target), logits))


def _with_known_answers(folder: Path, manifest: Manifest, logits: LogitsFunction) -> Manifest:
    """Writes what the source's model computes, and compares each file with it."""
    from qa_service.preparation import known  # noqa: PLC0415

    say("asking it for the answers by which instances prove themselves")
    path = known.save(folder, known.known_answers(folder, manifest, logits))
    return _with_differences(folder, _with_file(manifest, path), list(manifest.files))


def _with_differences(folder: Path, manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The manifest with the largest differences of files from the known answers."""
    from qa_service.preparation import known  # noqa: PLC0415

    found = known.differences(folder, manifest, names)
    return msgspec.structs.replace(manifest, differences={**manifest.differences, **found})


def _with_file(manifest: Manifest, path: Path) -> Manifest:
    """The manifest with a new file of its folder."""
    files = dict(sorted({**manifest.files, path.name: sha256_of(path)}.items()))
    without = {name: why for name, why in manifest.without.items() if name != path.name}
    return msgspec.structs.replace(manifest, files=files, without=without)


def _manifest(
    source: Source, reading: ReadingConfig, wanted: str, folder: Path, loaded: SourceModel
) -> Manifest:
    return Manifest(
        name=source.name,
        source=source.label,
        fingerprint=wanted,
        files={path.name: sha256_of(path) for path in sorted(folder.iterdir())},
        inputs=loaded.inputs,
        pad_token_id=loaded.pad_token_id,
        max_sequence_tokens=loaded.max_sequence_tokens,
        can_abstain=reading.null_threshold is not None,
        reading=msgspec.structs.replace(reading, null_position=loaded.null_position),
        versions=package_versions(needs_torch=source.needs_torch),
        may_pad=loaded.may_pad,
        without={PYTORCH_FILE: "it was made from an ONNX graph"} if source.graph else {},
    )
