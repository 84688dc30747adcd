"""Answers questions: cuts windows, runs an engine, finds spans in its logits."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qa_service.data.squad import AGREEMENT_QUESTIONS, read_squad
from qa_service.errors import InternalError, QaError
from qa_service.instance.arrays import (
    NUM_BEST,
    BestSpansFunction,
    Logits,
    LogitsFunction,
    Rows,
)
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.learned_costs import LearnedCosts
from qa_service.instance.messages import Answers, ModelFacts
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE, Manifest
from qa_service.instance.reader.spans import (
    NEAR_BEST,
    BestSpans,
    Candidate,
    answers_at_best_spans,
    find_answers,
    find_spans,
)
from qa_service.instance.reader.windows import (
    EncodedQuestion,
    Window,
    WindowBuilder,
    sample_rows,
)
from qa_service.instance.stages import Stopwatch
from qa_service.wire.messages import Answer, Question, Task
from qa_service.wire.sections import sections
from qa_service.wire.spans import SegmentResult, merge, to_answers

Outcome = Answers | SegmentResult | QaError
"""A task's outcome: its answers, its result as a segment, or its error."""

EncodedTasks = list[tuple[Task, EncodedQuestion | QaError]]
"""Each task with its windows, or its error."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """The logits, or the best spans, of each window, by its index."""

    logits: dict[int, Logits] = field(default_factory=dict)
    best_spans: dict[int, BestSpans] = field(default_factory=dict)


class Reader:
    """Answers questions with an engine's logits; the same for every engine.

    Attributes:
        rule: Which windows run together; each runs alone if rows may not be padded.
        learned: The costs measured on the model's runs, which `rule` then follows; may be set.
    """

    def __init__(
        self,
        model_dir: Path,
        manifest: Manifest,
        logits: LogitsFunction,
        rule: BatchRule,
        best_spans: BestSpansFunction | None = None,
    ) -> None:
        config = manifest.reading
        tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._windows = WindowBuilder(
            tokenizer, manifest.window_tokens, config.window_overlap_tokens
        )
        self.sample_rows = functools.partial(sample_rows, tokenizer)
        self._pad_token_id = manifest.pad_token_id
        self._config = config
        self.logits = logits
        self._best_spans = best_spans
        self.rule = rule if manifest.may_pad else replace(rule, max_batch_size=1)
        self.learned: LearnedCosts | None = None
        self.model = ModelFacts(
            manifest.name,
            manifest.window_tokens,
            config.window_overlap_tokens,
            config.null_log_score,
            passage_weight=config.passage_weight,
            collection_null_log_score=config.collection_null_log_score,
        )

    def read(self, questions: Sequence[Question]) -> list[list[Answer] | QaError]:
        """Returns each question's answers, best first, or its error; none affects another."""
        stopwatch = Stopwatch()
        parts = [self._cut(question) for question in questions]
        tasks = [task for part in parts for _, task in part]
        outcomes = iter(self.answer(self.encode(tasks, stopwatch), stopwatch))
        return [
            self._merged(question, [(start, next(outcomes)) for start, _ in part])
            for question, part in zip(questions, parts, strict=True)
        ]

    def usual_lengths(self) -> Iterator[int]:
        """The tokens of each window of the questions that ship with the project, long and short."""
        asked = read_squad(AGREEMENT_QUESTIONS)
        pairs = [(one.question, one.context) for one in asked]
        for encoded in self._windows.encode_batch(pairs):
            if isinstance(encoded, EncodedQuestion):
                yield from map(len, encoded.windows)

    def encode(self, tasks: Sequence[Task], stopwatch: Stopwatch) -> EncodedTasks:
        """Tokenizes; this needs no model."""
        stopwatch.start()
        encoded = self._windows.encode_batch([(task.question, task.text) for task in tasks])
        stopwatch.lap("tokenize")
        return list(zip(tasks, encoded, strict=True))

    def answer(self, encoded: EncodedTasks, stopwatch: Stopwatch) -> list[Outcome]:
        """Runs the model and reads its logits; returns an outcome for each task, in order."""
        stopwatch.start()
        windows: list[Window] = []
        places: list[range] = []
        lone: set[int] = set()
        for task, item in encoded:
            first = len(windows)
            if isinstance(item, EncodedQuestion):
                windows += item.windows
                if _is_lone(task, item):
                    lone.add(first)
            places.append(range(first, len(windows)))
        scores = self._run(windows, lone, stopwatch)
        outcomes = [
            item if isinstance(item, QaError) else self._outcome(task, item, scores, place)
            for (task, item), place in zip(encoded, places, strict=True)
        ]
        stopwatch.lap("read")
        return outcomes

    def _cut(self, question: Question) -> list[tuple[int, Task]]:
        """A task for each section of a text, with the section's start in code points."""
        asked, text, top_k = question.question, question.text, question.top_k
        cut = list(sections(question, self.model.window_tokens, self.model.overlap_tokens))
        if len(cut) == 1:
            return [(0, Task(asked, text, top_k))]
        return [(s.start, Task(asked, text[s.start : s.end], top_k, s.core)) for s in cut]

    def _merged(
        self, question: Question, outcomes: Sequence[tuple[int, Outcome]]
    ) -> list[Answer] | QaError:
        """The answers to a question, or the first error of its sections."""
        found: list[tuple[int, SegmentResult]] = []
        for start, outcome in outcomes:
            if isinstance(outcome, Answers):
                return outcome.answers
            if isinstance(outcome, QaError):
                return outcome
            found.append((start, outcome))
        best = merge(found)
        return to_answers(question.text, best, self.model.null_log_score, question.top_k)

    def _outcome(self, task: Task, item: EncodedQuestion, scores: _Scores, place: range) -> Outcome:
        text, config = task.text, self._config
        try:
            if place and (best_spans := scores.best_spans.get(place[0])):
                found = answers_at_best_spans(text, item, best_spans, config)
                logits = [] if found else self.run_logits(item.windows)
                return Answers(found or find_answers(text, item, logits, config))
            logits = [scores.logits[number] for number in place]
            if task.core:
                return find_spans(text, item, logits, config, top_k=task.top_k, core=task.core)
            return Answers(find_answers(text, item, logits, config, task.top_k))
        except QaError as error:
            return error

    def _run(self, windows: Sequence[Window], lone: set[int], stopwatch: Stopwatch) -> _Scores:
        """Runs the windows, those near in length together; `lone` ones need only best spans."""
        scores = _Scores()
        for batch in self._batches(windows):
            rows = [windows[i] for i in batch]
            started_s = time.perf_counter()
            if self.chooses_spans and lone.issuperset(batch):
                scores.best_spans.update(zip(batch, self.run_best_spans(rows), strict=True))
            else:
                scores.logits.update(zip(batch, self.run_logits(rows), strict=True))
            self._learn(rows, (time.perf_counter() - started_s) * 1e3)
        stopwatch.lap("model")
        return scores

    def _learn(self, rows: Sequence[Window], took_ms: float) -> None:
        if self.learned:
            self.learned.observe(len(rows), max(map(len, rows)), took_ms)
            if self.learned.table is not self.rule.costs:
                self.rule = replace(self.rule, costs=self.learned.table)

    def run_logits(self, windows: Sequence[Window]) -> list[Logits]:
        """Runs the model on windows, padded to one length; returns each window's logits."""
        start, end = self.logits(*padded(windows, self._pad_token_id))
        if not len(start) == len(end) == len(windows):
            raise InternalError(f"{len(start)} rows of logits for {len(windows)} windows")
        return list(zip(start, end, strict=True))

    @property
    def chooses_spans(self) -> bool:
        """Whether the engine finds the best spans of a window by itself."""
        return self._best_spans is not None

    def run_best_spans(self, windows: Sequence[Window]) -> list[BestSpans]:
        """The best spans of windows, which the engine finds; only if it chooses spans."""
        assert self._best_spans is not None
        ids, mask, types = padded(windows, self._pad_token_id)
        text = np.zeros_like(mask)
        for row, window in zip(text, windows, strict=True):
            row[window.text_begin : window.text_end] = 1
        found = self._best_spans(ids, mask, types, text)
        if len(found) != len(windows):
            raise InternalError(f"{len(found)} rows of spans for {len(windows)} windows")
        return [
            self._as_best_spans(window, row)
            for window, row in zip(windows, found.tolist(), strict=True)
        ]

    def _as_best_spans(self, window: Window, row: Sequence[float]) -> BestSpans:
        log_total, numbers, log_scores = row[0], row[1 : NUM_BEST + 1], row[NUM_BEST + 1 :]
        candidates = []
        for number, log_score in zip(numbers, log_scores, strict=True):
            if log_score < log_scores[0] - NEAR_BEST:
                break
            first, further = divmod(int(number), self._config.max_answer_tokens)
            first -= window.text_begin
            candidates.append(Candidate(log_score, first, first + further))
        return BestSpans(candidates, log_total)

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


def _is_lone(task: Task, item: EncodedQuestion) -> bool:
    """Whether a task needs only the one best answer of one window."""
    return len(item.windows) == task.top_k == 1 and task.core is None


def padded(windows: Sequence[Window], pad_token_id: int, tokens: int = 0) -> Rows:
    """Stacks windows as rows of one length: the longest's, or more tokens."""
    shape = (len(windows), max(tokens, *map(len, windows)))
    ids = np.full(shape, pad_token_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window.input_ids
        mask[row, : len(window)] = 1
        types[row, : len(window)] = window.token_type_ids
    return ids, mask, types
