"""Questions in, answers out: windows, an engine's logits, spans."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.batching import BatchRule
from qa_service.errors import InternalError, QaError
from qa_service.manifest import TOKENIZER_FILE, Manifest
from qa_service.protocol import Answer, Question
from qa_service.reading.spans import FloatArray, Peak, answers_at_peak, find_answers
from qa_service.reading.stopwatch import Stopwatch
from qa_service.reading.windows import EncodedQuestion, Int64Array, Window, WindowBuilder

LogitsFunction = Callable[[Int64Array, Int64Array, Int64Array], tuple[FloatArray, FloatArray]]
"""`Engine.logits`: ids, mask and types, int64 [batch, seq], to start and end logits."""

PeaksFunction = Callable[[Int64Array, Int64Array, Int64Array, Int64Array], FloatArray]
"""`Engine.peaks`: the same and the text's mask to the best span of each row, float32 [batch, 4]."""

Outcomes = list[list[Answer] | QaError]
"""For each question, in order: its answers, best first, or its error."""

Logits = tuple[FloatArray, FloatArray]
"""Start and end logits of a window, float32 [seq] each."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """What the model says of windows, by their number: the logits, or the best they offer."""

    logits: dict[int, Logits] = field(default_factory=dict)
    peaks: dict[int, Peak] = field(default_factory=dict)


class Reader:
    """Answers questions with an engine's logits; the same for every engine.

    Args:
        model_dir: A prepared model.
        manifest: Its manifest.
        logits: The engine's `logits`.
        rule: Which windows run together.
        peaks: The engine's `peaks`, if it chooses spans itself.

    Attributes:
        model_name: The model's name.
        rule: Which windows run together; may be set anew.
    """

    def __init__(
        self,
        model_dir: Path,
        manifest: Manifest,
        logits: LogitsFunction,
        rule: BatchRule,
        peaks: PeaksFunction | None = None,
    ) -> None:
        config = manifest.reading
        tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._windows = WindowBuilder(
            tokenizer, manifest.window_tokens, config.window_overlap_tokens
        )
        self._pad_token_id = manifest.pad_token_id
        self._config = config
        self._logits = logits
        self._peaks = peaks
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
        windows: list[Window] = []
        places, lone = [], set()
        for question, item in zip(questions, encoded, strict=True):
            first = len(windows)
            windows += item.windows if isinstance(item, EncodedQuestion) else ()
            places.append(range(first, len(windows)))
            if len(places[-1]) == question.top_k == 1:
                lone.add(first)
        scores = yield from self._run(windows, lone, stopwatch)
        outcomes = [
            item if isinstance(item, QaError) else self._answers(question, item, scores, place)
            for question, item, place in zip(questions, encoded, places, strict=True)
        ]
        stopwatch.lap("read")
        return outcomes

    def _encode(self, question: Question) -> EncodedQuestion | QaError:
        try:
            return self._windows.encode(question.question, question.text)
        except QaError as error:
            return error

    def _answers(
        self, question: Question, item: EncodedQuestion, scores: _Scores, place: range
    ) -> list[Answer] | QaError:
        text, config = question.text, self._config
        try:
            if place and (peak := scores.peaks.get(place[0])):
                found = answers_at_peak(text, item, peak, config)
                return found or find_answers(text, item, self._run_logits(item.windows), config)
            logits = [scores.logits[number] for number in place]
            return find_answers(text, item, logits, config, question.top_k)
        except QaError as error:
            return error

    def _run(
        self, windows: Sequence[Window], lone: set[int], stopwatch: Stopwatch
    ) -> Generator[None, None, _Scores]:
        """Runs the windows, those near in length together.

        Args:
            windows: What to run.
            lone: Numbers of those whose best span is all that is asked for.
            stopwatch: Told how long the model took.
        """
        scores = _Scores()
        for number, batch in enumerate(self._batches(windows)):
            if number:
                yield
                stopwatch.start()
            rows = [windows[i] for i in batch]
            if self._peaks and lone.issuperset(batch):
                scores.peaks.update(zip(batch, self._run_peaks(self._peaks, rows), strict=True))
            else:
                scores.logits.update(zip(batch, self._run_logits(rows), strict=True))
            stopwatch.lap("model")
        return scores

    def _run_logits(self, windows: Sequence[Window]) -> list[Logits]:
        start, end = self._logits(*padded(windows, self._pad_token_id))
        if not len(start) == len(end) == len(windows):
            raise InternalError(f"{len(start)} rows of logits for {len(windows)} windows")
        return list(zip(start, end, strict=True))

    def _run_peaks(self, peaks: PeaksFunction, windows: Sequence[Window]) -> list[Peak]:
        ids, mask, types = padded(windows, self._pad_token_id)
        text = np.zeros_like(mask)
        for row, window in zip(text, windows, strict=True):
            row[window.text_begin : window.text_end] = 1
        found = peaks(ids, mask, types, text)
        if len(found) != len(windows):
            raise InternalError(f"{len(found)} spans for {len(windows)} windows")
        return [
            Peak(int(first) - window.text_begin, int(last) - window.text_begin, score, total)
            for window, (first, last, score, total) in zip(windows, found.tolist(), strict=True)
        ]

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
