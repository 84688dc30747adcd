"""Makes `models/builtin/results.xz` and `models/all-MiniLM-L6-v2/results.xz`, and all `SHA256SUMS`.

    python -m training.shipped_results

It prepares the built-in model and the encoder with everything computed, and keeps the results, so
that other machines need not compute them: run it after the adapter or how weights are rounded has
changed, with every engine installed (`make test` installs them). The hashes are those of all files
that preparing reads, but for the `reading.json` of a model; `--sums` makes only these.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import onnx

from qa_service.engine_catalogue import ONNX_FILE, ONNX_INT8_FILE
from qa_service.instance.model_folder.manifest import KNOWN_ANSWERS_FILE, load_manifest
from qa_service.preparation import sentence_graph, shipped
from qa_service.preparation.encoders import (
    MINILM_DIR,
    MODELS_DIR,
    RESULTS_FILE,
    SUMS_FILE,
    Results,
    save_results,
    sha256_of,
)
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.quantize import corrections
from qa_service.preparation.sentence_encoder import MAX_TOKENS
from qa_service.preparation.sources import READING_FILE, find_source
from qa_service.retrieval.encoder_folder import ENCODER_FILE, KNOWN_FILE

NOT_SUMMED = (SUMS_FILE, READING_FILE, "MODEL_CARD.md", "README.md")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sums", action="store_true", help="make only the files of hashes")
    if not parser.parse_args().sums:
        adapter = MODELS_DIR / "builtin"
        with tempfile.TemporaryDirectory() as scratch:
            answers = answers_results(adapter, Path(scratch))
            embedding = embedding_results(Path(scratch))
        save_results(adapter, answers)
        save_results(MINILM_DIR, embedding)
    for folder in filter(Path.is_dir, MODELS_DIR.iterdir()):
        (folder / SUMS_FILE).write_text(sums_of(folder))
    return 0


def sums_of(folder: Path) -> str:
    """The hashes of a shipped folder's files, as `sha256sum` writes them."""
    files = (path for path in sorted(folder.iterdir()) if path.name not in NOT_SUMMED)
    return "".join(f"{sha256_of(path)}  {path.name}\n" for path in files)


def answers_results(adapter: Path, scratch: Path) -> Results:
    copied = _copy_without_results(adapter, scratch / "model")
    folder = prepare(PrepareArgs(str(copied), scratch / "prepared", precision="int8"))
    manifest = load_manifest(folder)
    return Results(
        computed_of=find_source(str(copied)).identity(manifest.reading),
        corrections=corrections(folder / ONNX_FILE, folder / ONNX_INT8_FILE),
        known=(folder / KNOWN_ANSWERS_FILE).read_bytes(),
        differences=manifest.differences,
    )


def embedding_results(scratch: Path) -> Results:
    copied = _copy_without_results(MINILM_DIR, scratch / "encoder")
    fp32, folder = scratch / "embedding.onnx", scratch / "embedding"
    folder.mkdir()
    weights = shipped.encoder_weights(copied)
    onnx.save(shipped.filled(copied / shipped.EMBEDDING_GRAPH, weights), str(fp32))
    sentence_graph.write(copied, folder, MAX_TOKENS)
    return Results(
        computed_of=sentence_graph.identity_of(copied),
        corrections=corrections(fp32, folder / ENCODER_FILE),
        known=(folder / KNOWN_FILE).read_bytes(),
    )


def _copy_without_results(folder: Path, copy: Path) -> Path:
    """A copy of a shipped folder, of which everything is computed."""
    return shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(RESULTS_FILE))


if __name__ == "__main__":
    sys.exit(main())
