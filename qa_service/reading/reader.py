"""Questions in, answers out: windows, an engine's logits, spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.errors import InternalError, QaError
from qa_service.manifest import TOKENIZER_FILE, Manifest
from qa_service.protocol import Answer, Question
from qa_service.reading.spans import FloatArray, find_answers
from qa_service.reading.stopwatch import Stopwatch
from qa_service.reading.windows import EncodedQuestion, Int64Array, Window, WindowBuilder

LogitsFunction = Callable[[Int64Array, Int64Array, Int64Array], tuple[FloatArray, FloatArray]]
"""`Engine.logits`: ids, mask and types, int64 [batch, seq], to start and end logits."""

Rows = list[tuple[FloatArray, FloatArray]]
"""Start and end logits, float32 [seq] each, of some windows."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds on what the model is given at once.

    Attributes:
        max_batch_size: Windows in a batch.
        max_batch_tokens: Tokens in a batch, padding included.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 4096


class Reader:
    """Answers questions with an engine's logits; the same for every engine.

    Args:
        model_dir: A prepared model.
        manifest: Its manifest.
        logits: The engine's `logits`.
        limits: Bounds on a batch of windows.

    Attributes:
        model_name: The model's name.
        stopwatch: Where the time of `read` goes.
    """

    def __init__(
        self, model_dir: Path, manifest: Manifest, logits: LogitsFunction, limits: BatchLimits
    ) -> None:
        config = manifest.reading
        tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        window_tokens = min(config.window_tokens, manifest.max_sequence_tokens)
        self._windows = WindowBuilder(tokenizer, window_tokens, config.window_overlap_tokens)
        self._pad_token_id = manifest.pad_token_id
        self._config = config
        self._logits = logits
        self._limits = limits
        self.model_name = manifest.name
        self.stopwatch = Stopwatch()

    def read(self, questions: Sequence[Question]) -> list[list[Answer] | QaError]:
        """Answers each question, or says what is wrong with it; one never fails another.

        Returns:
            For each question, in order: its answers, best first, or its error.
        """
        self.stopwatch.start()
        encoded = [self._encode(question) for question in questions]
        self.stopwatch.lap("tokenize")
        windows = [
            (number, window)
            for number, item in enumerate(encoded)
            if isinstance(item, EncodedQuestion)
            for window in item.windows
        ]
        logits: list[Rows] = [[] for _ in questions]
        for (number, _), row in zip(windows, self._run([w for _, w in windows]), strict=True):
            logits[number].append(row)
        self.stopwatch.lap("model")
        answers = [
            item if isinstance(item, QaError) else self._answers(question, item, rows)
            for question, item, rows in zip(questions, encoded, logits, strict=True)
        ]
        self.stopwatch.lap("read")
        return answers

    def _encode(self, question: Question) -> EncodedQuestion | QaError:
        try:
            return self._windows.encode(question.question, question.text)
        except QaError as error:
            return error

    def _answers(
        self, question: Question, item: EncodedQuestion, rows: Rows
    ) -> list[Answer] | QaError:
        try:
            return find_answers(question.text, item, rows, self._config, question.top_k)
        except QaError as error:
            return error

    def _run(self, windows: Sequence[Window]) -> Rows:
        """Runs the windows, those near in length together; returns logits in their order."""
        rows: dict[int, tuple[FloatArray, FloatArray]] = {}
        for batch in self._batches(windows):
            start, end = self._logits(*padded([windows[i] for i in batch], self._pad_token_id))
            if not len(start) == len(end) == len(batch):
                raise InternalError(f"{len(start)} rows of logits for {len(batch)} windows")
            rows.update({i: (start[row], end[row]) for row, i in enumerate(batch)})
        return [rows[i] for i in range(len(windows))]

    def _batches(self, windows: Sequence[Window]) -> Iterator[list[int]]:
        """Cuts the windows, longest first, into batches within the limits."""
        batch: list[int] = []
        for i in sorted(range(len(windows)), key=lambda i: -len(windows[i])):
            longest = len(windows[batch[0]]) if batch else 0
            if len(batch) == self._limits.max_batch_size or (
                batch and longest * (len(batch) + 1) > self._limits.max_batch_tokens
            ):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


def padded(
    windows: Sequence[Window], pad_token_id: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Stacks windows into ids, mask and types, int64 [batch, seq] each."""
    shape = (len(windows), max(map(len, windows)))
    ids = np.full(shape, pad_token_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window.input_ids
        mask[row, : len(window)] = 1
        types[row, : len(window)] = window.token_type_ids
    return ids, mask, types
