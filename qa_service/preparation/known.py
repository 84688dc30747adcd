"""Makes a model's known answers: rows of input, and what its source computes for them.

The questions are of all kinds that a server gets. Further rows hold the vocabulary, of a large one
the most frequent words, so that known answers depend on their embeddings too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from qa_service.engine_catalogue import (
    ONNX_FILE,
    PROCESSOR_FLAGS,
    PYTORCH_FILE,
    ROWS,
    Kind,
    is_installed,
)
from qa_service.errors import QaError, SetupError
from qa_service.instance.arrays import FloatArray, Int64Array, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.costs_dir import COSTS_DIR
from qa_service.instance.model_folder.known_answers import (
    VOCABULARY,
    KnownAnswers,
    KnownRow,
    load_known_answers,
    row_lengths,
    tolerance_of,
)
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE, Manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.reader.windows import PairLayout, Window, WindowBuilder, padded
from qa_service.instance.self_test import SelfTest
from qa_service.machine import processor
from qa_service.preparation.sources import first_line

logger = logging.getLogger(__name__)

NUM_PLACES = 48
"""Random places of a vocabulary row whose logits are kept, with the best ones: damage to the
weights of a word is seen best at that word."""
MAX_WORDS = 16_384
"""Of the vocabulary. With the built-in model they are 96 % of the tokens of a text, and take
PyTorch 5 s on a core; the other 13,000 would take 4 s more."""
ROWS_AT_ONCE = 8
"""Of the vocabulary, of one length: PyTorch takes less time for each than for one by one."""
NUM_COMPARED, NUM_COMPARED_EXACT = 24, 4
"""The number of vocabulary rows that are compared with a file, in a precision below float32 and in
float32: below float32 a row is occasionally far off, and 24 are one of each length of a window."""
_NEVER_IN_A_TEXT = re.compile(r"\[unused\d+\]|<(unused|extra_id_)?\d+>")
_QUESTION_TOKENS = 8
"""Words of a vocabulary row that stand where the question does."""

TEXT = (
    "The lighthouse on Skerry Point was built in 1849 by the engineer Alan Brown. Its lamp burned "
    "whale oil until 1911. The keeper in 1953, Ellen Moray, climbed the tower before the storm. "
)
QUESTIONS = (
    ("a short question", "Who built it?", "Alan Brown built it in 1849."),
    ("a question for a number", "How many?", "There were 17 boats; 3 sank."),
    ("a question without an answer", "Who painted the chapel?", "The lamp burned whale oil."),
    ("a one-word text", "What is it?", "Tea."),
    ("German with an emoji", "Wo ist es?", "In Zürich 🗼."),
    ("Japanese", "どこ?", "東京にある。"),
    ("Russian", "Кто?", "Анна едет."),
    ("Arabic", "أين؟", "في القاهرة."),
    ("capitals and digits", "WHEN WAS IT?", "IT WAS ON 24/11/1859."),
    ("several lines", "Who came first?", "Anna came first,\r\nBen second."),
)
_FP32 = "fp32"
_SOURCE_KIND = ("pytorch", _FP32)
"""What gave the known answers: it needs no measure but of what its batches change."""
_FULL_WINDOW = "a full window"
_LAST_WINDOW = "the last of several windows"


def known_answers(model_dir: Path, manifest: Manifest, source: LogitsFunction) -> KnownAnswers:
    """Asks the source's model, in float32."""
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
    draw = np.random.default_rng(0)

    def answered(named: Sequence[tuple[str, Window]]) -> Iterator[KnownRow]:
        start, end = source(*padded([window for _, window in named], manifest.pad_token_id))
        for row, (name, window) in enumerate(named):
            if not (np.isfinite(start[row]).all() and np.isfinite(end[row]).all()):
                raise SetupError(f"the model's logits are not finite: asked {name}")
            # Of the vocabulary the best places and random ones, of a question all.
            is_question = not name.startswith(VOCABULARY)
            num_places = len(window) if is_question else min(NUM_PLACES, len(window))
            places = {int(start[row].argmax()), int(end[row].argmax())}
            places |= set(draw.choice(len(window), num_places, replace=False).tolist())
            kept = sorted(places)
            yield KnownRow(
                name=name,
                ids=window.input_ids.tolist(),
                types=window.token_type_ids.tolist(),
                text=(window.text_begin, window.text_end),
                places=kept,
                start=_rounded(start[row, kept]),
                end=_rounded(end[row, kept]),
            )

    questions = list(_question_windows(tokenizer, manifest))
    rows = [row for name, window, _ in questions for row in answered([(name, window)])]
    vocabulary = list(_vocabulary_windows(tokenizer, manifest, draw))
    by_name = {row.name: row for batch in _batches(vocabulary) for row in answered(batch)}
    return KnownAnswers(
        rows=[
            msgspec.structs.replace(row, asked=asked)
            for row, (_, _, asked) in zip(rows, questions, strict=True)
        ],
        vocabulary=[by_name[name] for name, _ in vocabulary],
    )


def _batches(named: Iterable[tuple[str, Window]]) -> Iterator[list[tuple[str, Window]]]:
    """Rows of one length: they have no padding, which not every model may have."""
    ordered = sorted(named, key=lambda pair: len(pair[1]))
    for _, group in itertools.groupby(ordered, lambda pair: len(pair[1])):
        rows = list(group)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            yield rows[first : first + ROWS_AT_ONCE]


def differences(
    model_dir: Path, manifest: Manifest, file_names: Iterable[str]
) -> dict[str, dict[str, float]]:
    """The largest differences of each engine and precision that runs one of the files on this CPU.

    By row; the rows of the vocabulary, of which some are compared, are one. An engine that cannot
    run the model is left out, as it is when engines are measured.
    """
    found: dict[str, dict[str, float]] = {}
    for kind in itertools.chain.from_iterable(map(_kinds_of, file_names)):
        name = " ".join(kind)
        try:
            with _self_test(model_dir, manifest, kind, lambda _: math.inf) as (known, test):
                test.check()
                num_compared = NUM_COMPARED_EXACT if kind[1] == _FP32 else NUM_COMPARED
                for _ in known.vocabulary[: 0 if kind == _SOURCE_KIND else num_compared]:
                    test.check_next()
        except Exception as error:  # engines' libraries may raise anything
            logger.info("%s cannot run this model: %s", name, first_line(error))
            continue
        its = found[name] = {}
        for row, difference in test.largest.items():
            key = VOCABULARY if row.startswith(VOCABULARY) else row
            its[key] = max(its.get(key, 0.0), float(f"{difference:.3g}"))
    return found


def prove(model_dir: Path, manifest: Manifest, kind: Kind) -> None:
    """Asks an engine the known answers, as an instance does before it serves."""
    tolerances = tolerance_of(manifest, kind, "cpu")
    try:
        with _self_test(model_dir, manifest, kind, tolerances) as (_, test):
            test.check()
    except Exception as error:  # engines' libraries may raise anything
        raise SetupError(f"{ROWS[kind].file} is wrong: {first_line(error)}") from None


@contextlib.contextmanager
def _self_test(
    model_dir: Path, manifest: Manifest, kind: Kind, tolerances: Callable[[str], float]
) -> Iterator[tuple[KnownAnswers, SelfTest]]:
    """An engine's test; what the engine keeps goes with it, of a model that was never served."""
    known = load_known_answers(model_dir, manifest)
    kept = model_dir / COSTS_DIR
    was_there = kept.exists()
    try:
        engine = make_engine(kind[0], model_dir, manifest, EngineConfig(precision=kind[1]))
        reader = Reader(model_dir, manifest, engine.logits, BatchRule())
        name = " ".join(kind)
        yield known, SelfTest(known, reader, engine, manifest, tolerances=tolerances, name=name)
    finally:
        if not was_there:
            shutil.rmtree(kept, ignore_errors=True)


def _kinds_of(file_name: str) -> Iterator[Kind]:
    """The engines and precisions that run a file here, and that a server may take or be given."""
    for kind, row in ROWS.items():
        is_measured = row.file not in (ONNX_FILE, PYTORCH_FILE) or "cpu" in row.tried_on
        if row.file != file_name or "cpu" not in row.devices or not is_measured:
            continue
        runs_here = not row.requires or PROCESSOR_FLAGS[row.requires] & processor().flags
        if runs_here and is_installed(row.engine.module):
            yield kind


def _question_windows(
    tokenizer: Tokenizer, manifest: Manifest
) -> Iterator[tuple[str, Window, tuple[str, str] | None]]:
    """A window of each kind of question, as far as the model has room for it.

    With the question and the text if they are all in it: where a longer text is cut depends on how
    the model is read, which its owner may change.
    """
    overlap_tokens = manifest.reading.window_overlap_tokens
    builder = WindowBuilder(tokenizer, manifest.window_tokens, overlap_tokens)
    for name, question, text in QUESTIONS:
        if windows := _windows(builder, question, text):
            yield name, windows[0], (question, text) if len(windows) == 1 else None
    words = TEXT.split() * (1 + 2 * manifest.window_tokens // len(TEXT.split()))
    for num_words in range(1, len(words) + 1):
        windows = _windows(builder, "Who?", " ".join(words[:num_words]))
        if len(windows) > 1:  # as soon as there are two, the last is as short as it can be
            yield _FULL_WINDOW, windows[0], None
            yield _LAST_WINDOW, windows[-1], None
            return


def _windows(builder: WindowBuilder, question: str, text: str) -> Sequence[Window]:
    try:
        return builder.encode(question, text).windows
    except QaError:  # its window is too short
        return ()


def _vocabulary_windows(
    tokenizer: Tokenizer, manifest: Manifest, draw: np.random.Generator
) -> Iterator[tuple[str, Window]]:
    """Rows of the words of the vocabulary, of a large one the most frequent, in any order.

    Their lengths are in turn those that engines pad to, until each word is in a row and each length
    has one.
    """
    layout = PairLayout.of(tokenizer)
    words: Int64Array = draw.permutation(np.array(frequent_words(tokenizer), np.int64))
    lengths = row_lengths(manifest.window_tokens) if len(words) else []
    first = 0
    for number, length in enumerate(itertools.cycle(lengths)):
        if number >= len(lengths) and first >= len(words):
            return
        room = length - layout.special_tokens
        question_tokens = min(_QUESTION_TOKENS, room // 2)
        its = words.take(range(first, first + room), mode="wrap")
        first += room
        (window,) = layout.windows([(its[:question_tokens], its[question_tokens:], 0)])
        yield f"{VOCABULARY}, row {number + 1}", window


def frequent_words(tokenizer: Tokenizer) -> list[int]:
    """Ids of up to `MAX_WORDS` words: tokenizers are trained to number the frequent ones first."""
    special = tokenizer.get_added_tokens_decoder().keys()
    words = {
        number
        for word, number in tokenizer.get_vocab().items()
        if number not in special and not _NEVER_IN_A_TEXT.fullmatch(word)
    }
    return sorted(words)[:MAX_WORDS]


def _rounded(logits: FloatArray) -> list[float]:
    """With the digits that a float32 has."""
    return [float(f"{value:.7g}") for value in logits.tolist()]
