"""Makes the files of a prepared model, and compares each with the model that it is made of.

`prepare` decides which; this module loads what they are made with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from qa_service.engine_catalogue import ONNX_FILE, PLAIN_ONNX_FILE, PYTORCH_FILE, ROWS
from qa_service.errors import SetupError
from qa_service.files import sha256_of
from qa_service.installation import installed_version
from qa_service.instance.arrays import LogitsFunction
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    Manifest,
    ReadingConfig,
    load_manifest,
    save_manifest,
)
from qa_service.preparation import graphs, known, quantize, verify
from qa_service.preparation.encoders import Results
from qa_service.preparation.folder import link_files, replacing, say
from qa_service.preparation.source_model import SourceModel, open_model, quiet_libraries
from qa_service.preparation.sources import Source, as_setup_error, package_versions

FindResults = Callable[[], Results | None]
"""What preparing a shipped model computes, if it is shipped too; read once, when it is needed."""


def begin(
    source: Source,
    reading: ReadingConfig,
    fingerprint: str,
    folder: Path,
    find_results: FindResults,
    *,
    is_asked: bool,
) -> None:
    """Fills a new folder: what every model has, and then the manifest.

    Args:
        is_asked: Whether the model is asked if it abstains.
    """
    if source.needs_torch:
        say("starting PyTorch")
    with quiet_libraries():
        loaded = open_model(source)
        if not source.is_shipped:
            say("finding the longest sequence that it takes")
            loaded = verify.measured(loaded, reading.window_tokens)
        with as_setup_error("its files cannot be written"):
            loaded.save(folder)
        manifest = Manifest(
            name=source.name,
            source=source.label,
            fingerprint=fingerprint,
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
        if is_asked:
            manifest = _asked_whether_it_abstains(folder, manifest, loaded.logits)
        if results := find_results():
            manifest = _with_results(loaded, results, folder, manifest)
        else:
            manifest = _with_computed(loaded, folder, manifest)
    save_manifest(folder, manifest)
    if not manifest.may_pad:
        say("its windows run one by one: padding changes its logits")


def _asked_whether_it_abstains(
    folder: Path, manifest: Manifest, logits: LogitsFunction
) -> Manifest:
    say("asking it questions without an answer")
    if not verify.can_abstain(folder, manifest, logits):
        return manifest
    say("it abstains: asked questions without an answer, it found none")
    reading = msgspec.structs.replace(manifest.reading, null_threshold=0.0)
    return msgspec.structs.replace(manifest, reading=reading, can_abstain=True)


def _with_results(
    loaded: SourceModel, results: Results, folder: Path, manifest: Manifest
) -> Manifest:
    """Writes the ONNX file and the shipped known answers, and asks it for them."""
    say("writing the ONNX file, and asking it for the known answers")
    layers = loaded.write_graph(folder / ONNX_FILE)
    (folder / KNOWN_ANSWERS_FILE).write_bytes(results.known)
    for name in (ONNX_FILE, KNOWN_ANSWERS_FILE):
        manifest = _with_file(manifest, folder / name)
    manifest = msgspec.structs.replace(manifest, differences=results.differences)
    known.prove(folder, manifest, ("onnx", "fp32"))
    say(f"fused the attention of {layers} layers in the ONNX file")
    return manifest


def _with_computed(loaded: SourceModel, folder: Path, manifest: Manifest) -> Manifest:
    """Writes the ONNX file and the known answers, and compares each file with the source."""
    path = folder / ONNX_FILE
    theirs = verify.answered("its source", folder, manifest, loaded.logits)
    if PYTORCH_FILE in manifest.files and all(map(installed_version, ("torch", "transformers"))):
        say("comparing the file that PyTorch loads with the source")
        verify.verify(folder, manifest, "pytorch", theirs)
    try:
        say("writing the ONNX file")
        layers = loaded.write_graph(path)
        say("comparing the ONNX file with the source")
        difference = verify.verify(folder, _with_file(manifest, path), "onnx", theirs)
    except SetupError as error:
        if PYTORCH_FILE not in manifest.files:
            raise
        path.unlink(missing_ok=True)
        say(f"only the pytorch engine can serve this model: {error}")
        manifest = msgspec.structs.replace(manifest, without={ONNX_FILE: str(error)})
    else:
        manifest = _with_file(manifest, path)
        has_sympy = installed_version("sympy")
        why = "this architecture's is not supported" if has_sympy else "that needs sympy"
        fused = f"fused the attention of {layers} layers in the ONNX file"
        say(fused if layers else f"left attention unfused in the ONNX file: {why}")
        say(
            f"it gives the same {len(verify.QUESTIONS)} answers; "
            f"largest difference between logits {difference:.1e}"
        )
    say("asking it for the answers by which instances prove themselves")
    path = folder / KNOWN_ANSWERS_FILE
    path.write_bytes(msgspec.json.encode(known.known_answers(folder, manifest, loaded.logits)))
    return _with_differences(folder, _with_file(manifest, path), list(manifest.files))


def add(name: str, source: Source, target: Path, find_results: FindResults) -> None:
    manifest = load_manifest(target)
    if reason := manifest.without.get(ONNX_FILE):
        raise SetupError(f"{name} is made from {ONNX_FILE}, which this model lacks: {reason}")
    with quiet_libraries(), replacing(target) as folder:
        link_files(target, folder, besides=name)
        if name == PLAIN_ONNX_FILE:  # TensorRT has none of the fused operators
            say("writing the ONNX file for TensorRT")
            open_model(source).write_plain_graph(folder / name)
            manifest = _with_file(manifest, folder / name)
            say(f"wrote {name} for TensorRT")
        else:
            manifest = _with_precision(folder / name, manifest, find_results())
        save_manifest(folder, manifest)


def _with_precision(path: Path, manifest: Manifest, results: Results | None) -> Manifest:
    """Converts `model.onnx`, and compares its answers; if never measured, more than the known."""
    folder, fp32 = path.parent, path.with_name(ONNX_FILE)
    kind = next(kind for kind, row in ROWS.items() if row.file == path.name)
    long = "" if results else " (minutes for a large model)"
    say(f"converting to {kind[1]} for {kind[0]}{long}")
    if kind[1] == "fp16":
        graphs.convert_to_fp16(fp32, path)
    elif kind[0] == "openvino":
        graphs.compress_for_openvino(fp32, path)
    elif results and results.corrections:
        quantize.quantize_as_before(fp32, path, results.corrections)
    else:
        quantize.quantize(fp32, path, quantize.calibration_inputs(folder, manifest))
    manifest = _with_file(manifest, path)
    if results and " ".join(kind) in results.differences:
        known.prove(folder, manifest, kind)
        say(f"{path.name} gives the known answers")
        return manifest
    say("comparing its answers with those in fp32")
    same = verify.verify_precision(folder, manifest, *kind)
    manifest = _with_differences(folder, manifest, [path.name])
    say(f"{path.name} gives {same:.0f} % of the answers that fp32 gives")
    return manifest


def _with_differences(folder: Path, manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The manifest with the largest differences of files from the known answers."""
    found = known.differences(folder, manifest, names)
    return msgspec.structs.replace(manifest, differences={**manifest.differences, **found})


def _with_file(manifest: Manifest, path: Path) -> Manifest:
    files = dict(sorted({**manifest.files, path.name: sha256_of(path)}.items()))
    without = {name: why for name, why in manifest.without.items() if name != path.name}
    return msgspec.structs.replace(manifest, files=files, without=without)
