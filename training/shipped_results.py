"""Makes `models/builtin/results.xz` and `models/all-MiniLM-L6-v2/results.xz`, and all `SHA256SUMS`.

    python -m training.shipped_results

It prepares the built-in model and the encoder with everything computed, and keeps the results, so
that other machines need not compute them: run it after the adapter or how weights are rounded has
changed, with every engine installed (`make test` installs them). The hashes are those of all files
that preparing reads, but for the `reading.json` of a model; `--sums` makes only these.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from tokenizers import Tokenizer

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.engine_catalogue import ONNX_FILE, ONNX_INT8_FILE
from qa_service.files import sha256_of
from qa_service.instance.model_folder.manifest import (
    CONFIG_FILE,
    KNOWN_ANSWERS_FILE,
    TOKENIZER_FILE,
    load_manifest,
)
from qa_service.preparation import sentence_graph, shipped
from qa_service.preparation.encoders import (
    MINILM_DIR,
    MODELS_DIR,
    RESULTS_FILE,
    SUMS_FILE,
    Results,
)
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.quantize import corrections, quantize
from qa_service.preparation.sentence_encoder import MAX_TOKENS
from qa_service.preparation.sentence_graph import graph_input, lowest_cosine
from qa_service.preparation.shipped import PlainBert
from qa_service.preparation.sources import READING_FILE, find_source
from qa_service.retrieval.encoder import MAX_CHARS_PER_TOKEN
from qa_service.retrieval.encoder_folder import ENCODER_FILE, KnownEmbedding

KNOWN_TEXTS = 8
"""Questions and passages that are kept with their embeddings."""
COMPARED_SHARE = 4
"""One passage in so many is compared: NumPy takes 0.1 s of two cores for each."""
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
    # A copy without results, of which everything is computed.
    ignored = shutil.ignore_patterns(RESULTS_FILE)
    copied = shutil.copytree(adapter, scratch / "model", ignore=ignored)
    folder = prepare(PrepareArgs(str(copied), scratch / "prepared", precision="int8"))
    manifest = load_manifest(folder)
    return Results(
        computed_of=find_source(str(copied)).identity(manifest.reading),
        corrections=corrections(folder / ONNX_FILE, folder / ONNX_INT8_FILE),
        known=(folder / KNOWN_ANSWERS_FILE).read_bytes(),
        differences=manifest.differences,
    )


def embedding_results(scratch: Path) -> Results:
    """Rounds the encoder's graph for the project's own questions, and compares it with NumPy."""
    fp32, int8 = scratch / "embedding.onnx", scratch / ENCODER_FILE
    weights = shipped.encoder_weights(MINILM_DIR)
    onnx.save(shipped.filled(MINILM_DIR / shipped.EMBEDDING_GRAPH, weights), str(fp32))
    tokenizer = Tokenizer.from_file(str(MINILM_DIR / TOKENIZER_FILE))
    tokenizer.enable_truncation(MAX_TOKENS)
    own = read_squad(OWN_QUESTIONS)
    passages = list(dict.fromkeys(question.context for question in own))
    questions = [question.question for question in own]
    texts = [tokenizer.encode(text).ids for text in [*passages, *questions]]
    quantize(fp32, int8, [graph_input(ids) for ids in texts])
    plain = PlainBert(weights, json.loads((MINILM_DIR / CONFIG_FILE).read_bytes()))
    long = " ".join(passages)[: MAX_CHARS_PER_TOKEN * MAX_TOKENS]  # is cut after `MAX_TOKENS`
    known = [long, *passages[: KNOWN_TEXTS // 2], *questions[: KNOWN_TEXTS // 2]]
    compared = [*passages[::COMPARED_SHARE], *questions]
    cosine = lowest_cosine(int8, _embeddings(plain, tokenizer, compared))
    print(f"embeddings have a cosine of {cosine:.3f} with NumPy's, or more")
    return Results(
        computed_of=sentence_graph.identity_of(MINILM_DIR),
        corrections=corrections(fp32, int8),
        known=msgspec.json.encode(_embeddings(plain, tokenizer, known)),
    )


def _embeddings(
    plain: PlainBert, tokenizer: Tokenizer, texts: Sequence[str]
) -> list[KnownEmbedding]:
    found = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        mean = plain.states(*graph_input(ids).values()).mean(axis=1)
        (embedding,) = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).tolist()
        found.append(KnownEmbedding(text, ids, embedding))
    return found


def save_results(folder: Path, results: Results) -> None:
    data = lzma.compress(msgspec.msgpack.encode(results), preset=9)
    (folder / RESULTS_FILE).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
