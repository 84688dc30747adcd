"""Questions in, answers out: windows, an engine's logits, spans."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.batching import BatchRule
from qa_service.errors import InternalError, QaError
from qa_service.manifest import TOKENIZER_FILE, Manifest
from qa_service.protocol import Answer, Question
from qa_service.reading.spans import FloatArray, find_answers
from qa_service.reading.stopwatch import Stopwatch
from qa_service.reading.windows import EncodedQuestion, Int64Array, Window, WindowBuilder

LogitsFunction = Callable[[Int64Array, Int64Array, Int64Array], tuple[FloatArray, FloatArray]]
"""`Engine.logits`: ids, mask and types, int64 [batch, seq], to start and end logits."""

Outcomes = list[list[Answer] | QaError]
"""For each question, in order: its answers, best first, or its error."""

Rows = list[tuple[FloatArray, FloatArray]]
"""Start and end logits, float32 [seq] each, of some windows."""


class Reader:
    """Answers questions with an engine's logits; the same for every engine.

    Args:
        model_dir: A prepared model.
        manifest: Its manifest.
        logits: The engine's `logits`.
        rule: Which windows run together.

    Attributes:
        model_name: The model's name.
        rule: Which windows run together; may be set anew.
    """

    def __init__(
        self, model_dir: Path, manifest: Manifest, logits: LogitsFunction, rule: BatchRule
    ) -> None:
        config = manifest.reading
        tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._windows = WindowBuilder(
            tokenizer, manifest.window_tokens, config.window_overlap_tokens
        )
        self._pad_token_id = manifest.pad_token_id
        self._config = config
        self._logits = logits
        self.rule = rule
        self.model_name = manifest.name

    def read(self, questions: Sequence[Question]) -> Outcomes:
        """Answers each question, or says what is wrong with it; one never fails another.

        Returns:
            For each question, in order: its answers, best first, or its error.
        """
        steps = self.steps(questions, Stopwatch())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outcomes: Outcomes = end.value
                return outcomes

    def steps(
        self, questions: Sequence[Question], stopwatch: Stopwatch
    ) -> Generator[None, None, Outcomes]:
        """Reads, pausing after the tokenizing and between two runs of the model.

        So other work can come between, and the tokenizing be done while the model runs for others.

        Args:
            questions: What is asked.
            stopwatch: Adds up where the time goes, pauses left out.
        """
        stopwatch.start()
        encoded = [self._encode(question) for question in questions]
        stopwatch.lap("tokenize")
        yield
        stopwatch.start()
        windows = [
            (number, window)
            for number, item in enumerate(encoded)
            if isinstance(item, EncodedQuestion)
            for window in item.windows
        ]
        logits: list[Rows] = [[] for _ in questions]
        rows = yield from self._run([window for _, window in windows], stopwatch)
        for (number, _), row in zip(windows, rows, strict=True):
            logits[number].append(row)
        answers = [
            item if isinstance(item, QaError) else self._answers(question, item, rows)
            for question, item, rows in zip(questions, encoded, logits, strict=True)
        ]
        stopwatch.lap("read")
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

    def _run(self, windows: Sequence[Window], stopwatch: Stopwatch) -> Generator[None, None, Rows]:
        """Runs the windows, those near in length together; returns logits in their order."""
        rows: dict[int, tuple[FloatArray, FloatArray]] = {}
        for batch in self._batches(windows):
            if rows:
                yield
                stopwatch.start()
            start, end = self._logits(*padded([windows[i] for i in batch], self._pad_token_id))
            if not len(start) == len(end) == len(batch):
                raise InternalError(f"{len(start)} rows of logits for {len(batch)} windows")
            rows.update({i: (start[row], end[row]) for row, i in enumerate(batch)})
            stopwatch.lap("model")
        return [rows[i] for i in range(len(windows))]

    def _batches(self, windows: Sequence[Window]) -> Iterator[list[int]]:
        """Cuts the windows, longest first, into batches by the rule."""
        batch: list[int] = []
        for i in sorted(range(len(windows)), key=lambda i: -len(windows[i])):
            if batch and not self.rule.admits(len(batch), len(windows[batch[0]]), len(windows[i])):
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
