"""Counts the answers that are the same with the encoder's weights in float32 and as shipped.

    python -m training.float32_answers DIRECTORY --questions_file dev.json

`DIRECTORY` is all-MiniLM-L6-v2, as it was published. Both models have the built-in adapter; each
answers all questions on ONNX Runtime, in float32.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from qa_service.data.squad import read_squad
from qa_service.engine_catalogue import ONNX_FILE, PYTORCH_FILE
from qa_service.instance.arrays import FloatArray
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.preparation import shipped
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.sources import find_source
from qa_service.progress import progress_bar
from qa_service.wire.messages import Question


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="all-MiniLM-L6-v2 in float32")
    parser.add_argument("--questions_file", type=Path, required=True, help="in SQuAD's format")
    flags = parser.parse_args()
    questions = [Question(one.question, one.context) for one in read_squad(flags.questions_file)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = prepare(PrepareArgs(output_dir=Path(scratch)))
        theirs = answers(folder, questions)
        model = shipped.load(find_source("builtin"))
        replace(model, weights=float32_weights(flags.source)).write_graph(folder / ONNX_FILE)
        ours = answers(folder, questions)
    num_same = sum(one == other for one, other in zip(ours, theirs, strict=True))
    print(f"{num_same} of {len(questions)} answers are the same: {num_same / len(questions):.2%}")
    return 0


def float32_weights(folder: Path) -> Mapping[str, FloatArray]:
    """The published encoder's weights, with the built-in adapter."""
    source = find_source("builtin")
    assert source.adapter_dir is not None
    needed = shipped.encoder_weights(source.model_dir)
    published = load_file(folder / PYTORCH_FILE)
    weights = {name: published[name.removeprefix(shipped.ENCODER_PREFIX)] for name in needed}
    assert all(value.dtype == np.float32 for value in weights.values())
    return shipped.merged(weights, source.adapter_dir)


def answers(
    folder: Path, questions: Sequence[Question]
) -> list[tuple[int | None, int | None] | str]:
    """Each question's best span, or the code of its error."""
    manifest = load_manifest(folder)
    engine = make_engine("onnx", folder, manifest, EngineConfig())
    reader = Reader(folder, manifest, engine.logits, BatchRule(max_batch_size=1))
    found: list[tuple[int | None, int | None] | str] = []
    for question in progress_bar(iterable=questions, desc="asking", unit="question", leave=False):
        (outcome,) = reader.read([question])
        if isinstance(outcome, list):
            found.append((outcome[0].start, outcome[0].end))
        else:
            found.append(outcome.code)
    return found


if __name__ == "__main__":
    sys.exit(main())
