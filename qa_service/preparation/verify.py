"""Runs a model to find what its config does not say, and compares each prepared file with it.

Configs name the number of positions in a dozen ways, and some count two too many; none says whether
a row's logits change with its padding (those of a convolution do). In fp32 a file must give the
same logits and answers; in a lower precision, most of the answers that `model.onnx` gives in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.errors import QaError, SetupError
from qa_service.instance.arrays import FloatArray, Int64Array, Logits, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.reader.windows import sample_rows
from qa_service.preparation import known
from qa_service.preparation.source_model import SourceModel
from qa_service.preparation.sources import first_line
from qa_service.wire.messages import Answer, Question

MIN_SEQUENCE_TOKENS = 16
"""A window has a question, a text and special tokens."""

_SHORT, _LONG = 21, 40
"""Tokens of two rows; the first is run alone and padded."""
MAX_LOGIT_DIFFERENCE = 1e-3
"""Far above the effect of another order of float32 operations (1e-5), far below what matters."""

MIN_SAME_PERCENT = 80
"""Minimum share of `OWN_QUESTIONS` that a lower precision answers with float32's span. The built-in
model's int8 file has 95 %; a broken graph next to none."""


_LONG_TEXT = " ".join(
    f"In year {year} the observatory counted {year * 7 % 93} comets and {year * 5 % 71} eclipses."
    for year in range(1800, 1860)
)
QUESTIONS = (
    *(Question(question, text) for _, question, text in known.QUESTIONS),
    Question("What did the lamp burn?", known.TEXT, top_k=3),
    Question("How many comets were counted in 1855?", _LONG_TEXT),
)

NUM_ASKED = 24
"""How many of `OWN_QUESTIONS` a model is asked, to see whether it abstains; with as many without an
answer, seconds of a large model's time."""

MIN_ABSTAINING_SHARE = 0.75
"""Of the questions without an answer, and of the others' answers. A model that was never trained on
such questions gives a span to nearly all."""

Outcomes = Sequence[list[Answer] | QaError]


def measured(loaded: SourceModel, window_tokens: int) -> SourceModel:
    """Finds the longest sequence that a model takes, and whether rows may be padded."""
    longest = _longest(loaded, min(window_tokens, loaded.max_sequence_tokens))
    if longest < min(window_tokens, loaded.max_sequence_tokens):
        loaded = replace(loaded, max_sequence_tokens=longest)
    rows = sample_rows(loaded.tokenizer, 1, longest)
    first, second = (np.stack(loaded.logits(*rows)) for _ in range(2))
    if not np.abs(first - second).max() <= MAX_LOGIT_DIFFERENCE:
        raise SetupError("the model gives different logits for the same question")
    # Whether padding leaves a row's logits unchanged.
    short, long = min(_SHORT, longest - 1), min(_LONG, longest)
    alone = sample_rows(loaded.tokenizer, 1, short)
    ids, mask, types = sample_rows(loaded.tokenizer, 2, long)
    ids[0, :short], types[0, :short] = alone[0][0], alone[2][0]
    ids[0, short:], mask[0, short:], types[0, short:] = loaded.pad_token_id, 0, 0
    padded = np.stack(loaded.logits(ids, mask, types))[:, :1, :short]
    difference = np.abs(padded - np.stack(loaded.logits(*alone))).max()
    return replace(loaded, may_pad=bool(difference <= MAX_LOGIT_DIFFERENCE))


def _longest(loaded: SourceModel, stated: int) -> int:
    """The longest sequence, up to the stated one, that the model runs."""
    if stated < MIN_SEQUENCE_TOKENS:
        raise SetupError(
            f"the model takes {stated} tokens, and the server needs {MIN_SEQUENCE_TOKENS}"
        )
    if not _obstacle(loaded, stated):
        return stated
    if reason := _obstacle(loaded, MIN_SEQUENCE_TOKENS):
        raise SetupError(f"the model cannot be run on a question: {reason}")
    able, unable = MIN_SEQUENCE_TOKENS, stated
    while unable - able > 1:
        middle = (able + unable) // 2
        able, unable = (middle, unable) if not _obstacle(loaded, middle) else (able, middle)
    return able


def _obstacle(loaded: SourceModel, tokens: int) -> str:
    """Why the model cannot run a row of a length; empty if it can."""
    try:
        loaded.logits(*sample_rows(loaded.tokenizer, 1, tokens))
    except Exception as error:  # models raise anything
        return first_line(error) or type(error).__name__
    return ""


def can_abstain(model_dir: Path, manifest: Manifest, logits: LogitsFunction) -> bool:
    """Whether a model says of texts without an answer that they have none, and only of those.

    The questions are `OWN_QUESTIONS` with their own texts, and with a text of another article.
    """
    asked = read_squad(OWN_QUESTIONS)
    texts = list(dict.fromkeys(question.context for question in asked))
    some = asked[:: max(1, len(asked) // NUM_ASKED)][:NUM_ASKED]
    right = [Question(one.question, one.context) for one in some]
    far = len(texts) // 2
    wrong = [
        Question(one.question, texts[(texts.index(one.context) + far) % len(texts)]) for one in some
    ]
    reading = msgspec.structs.replace(manifest.reading, null_threshold=0.0)
    reader = Reader(
        model_dir, msgspec.structs.replace(manifest, reading=reading), logits, BatchRule()
    )
    found = [
        not isinstance(result, QaError) and result[0].start is not None
        for result in reader.read([*right, *wrong])
    ]
    num_answered, num_abstained = sum(found[: len(some)]), len(some) - sum(found[len(some) :])
    return min(num_answered, num_abstained) >= MIN_ABSTAINING_SHARE * len(some)


class ModelOutputs(NamedTuple):
    """What gave all logits of real tokens, float32 [tokens of `QUESTIONS`], and the answers."""

    logits: FloatArray
    outcomes: Outcomes


def answered(
    name: str, model_dir: Path, manifest: Manifest, logits: LogitsFunction
) -> ModelOutputs:
    """Asks an engine or the source's model, called `name`, the `QUESTIONS`."""
    seen: list[FloatArray] = []

    def recorded(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        start, end = logits(ids, mask, types)
        seen.append(np.concatenate((start[mask == 1], end[mask == 1])))
        return start, end

    try:
        answers = Reader(model_dir, manifest, recorded, BatchRule()).read(QUESTIONS)
    except Exception as error:  # a model's own code and an engine's raise anything
        reason = first_line(error) or type(error).__name__
        raise SetupError(f"{name} cannot run the model on a question: {reason}") from None
    return ModelOutputs(np.concatenate(seen), answers)


def verify(model_dir: Path, manifest: Manifest, engine_type: str, theirs: ModelOutputs) -> float:
    """Compares an engine with the source's model; returns the largest difference of a logit."""
    engine = make_engine(engine_type, model_dir, manifest, EngineConfig())
    ours = answered(engine_type, model_dir, manifest, engine.logits)
    difference = float(np.abs(ours.logits - theirs.logits).max())
    if not difference <= MAX_LOGIT_DIFFERENCE:  # in this form, NaN fails too
        raise SetupError(
            f"the {engine_type} engine's file is wrong: its logits differ from the source's by "
            f"{difference:.3g}, more than {MAX_LOGIT_DIFFERENCE:g}"
        )
    for question, our, their in zip(QUESTIONS, ours.outcomes, theirs.outcomes, strict=True):
        if _spans(our) != _spans(their):
            raise SetupError(
                f"the {engine_type} engine's file is wrong: it answers {question.question!r} with "
                f"{_spans(our)}, the source with {_spans(their)}"
            )
    return difference


def verify_precision(
    model_dir: Path, manifest: Manifest, engine_type: str, precision: str
) -> float:
    """The percent of `OWN_QUESTIONS` that a lower precision answers as `model.onnx` does."""
    questions = [Question(q.question, q.context) for q in read_squad(OWN_QUESTIONS)]
    spans = []
    for kind in ((engine_type, precision), ("onnx", "fp32")):
        engine = make_engine(kind[0], model_dir, manifest, EngineConfig(precision=kind[1]))
        read = Reader(model_dir, manifest, engine.logits, BatchRule()).read(questions)
        spans.append([_spans(result) for result in read])
    same: float = 100 * np.mean([ours == theirs for ours, theirs in zip(*spans, strict=True)])
    if same < MIN_SAME_PERCENT:
        raise SetupError(
            f"in {precision} this model gives only {same:.0f} % of the answers that it gives in "
            f"fp32, less than {MIN_SAME_PERCENT} %; serve it in fp32"
        )
    return same


def _spans(result: list[Answer] | QaError) -> list[tuple[int | None, int | None]] | str:
    if isinstance(result, QaError):
        return result.code
    return [(answer.start, answer.end) for answer in result]
