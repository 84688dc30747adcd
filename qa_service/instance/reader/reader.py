"""Answers questions: cuts windows, runs an engine, finds spans in its logits."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace
from tokenizers import Tokenizer

from qa_service.data.squad import AGREEMENT_QUESTIONS, read_squad
from qa_service.errors import InternalError, QaError
from qa_service.instance.arrays import (
    NUM_BEST,
    BestSpansFunction,
    FloatArray,
    Logits,
    LogitsFunction,
)
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.learned_costs import LearnedCosts
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
    PaddedBatch,
    Window,
    WindowBuilder,
    padded,
    sample_rows,
    text_mask_of,
)
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_messages import Answers, ModelFacts, Outcome
from qa_service.wire.messages import Answer, Question, Task
from qa_service.wire.sections import sections
from qa_service.wire.spans import SegmentResult, merge, to_answers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedTasks:
    """Tasks, tokenized and cut into the batches that the model will run.

    Attributes:
        tasks: Each with its windows, or its error.
        places: The numbers of each task's windows.
    """

    tasks: Sequence[tuple[Task, EncodedQuestion | QaError]]
    places: Sequence[range]
    batches: Sequence[PaddedBatch]


@dataclass(frozen=True, slots=True)
class Scores:
    """What the engine returned for a batch: logits of its rows, and best spans if it chose them."""

    logits: Logits
    best_spans: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class ScoredTasks:
    encoded: EncodedTasks
    scores: Sequence[Scores]


class Reader:
    """Answers questions with an engine's logits; the same for every engine.

    Attributes:
        rule: Which windows run together; each runs alone if rows may not be padded.
        learned: The costs measured on the model's runs, which `rule` then follows; may be set.
        on_learned: Called with them after each run.
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
        self.on_learned: Callable[[LearnedCosts], object] = bool
        self.model = ModelFacts(manifest.name, manifest.window_tokens, config)

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
        stopwatch.start()
        pairs = [(task.question, task.text) for task in tasks]
        encoded = list(zip(tasks, self._windows.encode_batch(pairs), strict=True))
        stopwatch.lap("tokenize", is_own=False)  # with an accelerator the tokenizer has threads
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
        batches = [
            self._padded(
                numbers,
                [windows[number] for number in numbers],
                for_spans=self.chooses_spans and not lone.isdisjoint(numbers),
            )
            for numbers in self._batches(windows)
        ]
        stopwatch.lap("tokenize")
        return EncodedTasks(encoded, places, batches)

    def answer(self, encoded: EncodedTasks, stopwatch: Stopwatch) -> list[Outcome]:
        """Runs the model and reads its logits; returns an outcome for each task, in order."""
        return self.find(self.score(encoded, stopwatch), stopwatch)

    def score(self, encoded: EncodedTasks, stopwatch: Stopwatch) -> ScoredTasks:
        stopwatch.start()
        scores = []
        for batch in encoded.batches:
            started_s = time.perf_counter()
            scores.append(self._run(batch))
            if self.learned:
                took_ms = (time.perf_counter() - started_s) * 1e3
                self.learned.observe(len(batch.numbers), batch.longest, took_ms)
                self.on_learned(self.learned)
                if self.learned.table is not self.rule.costs:
                    self.rule = replace(self.rule, costs=self.learned.table)
        stopwatch.lap("model", is_own=False)
        return ScoredTasks(encoded, scores)

    def find(self, scored: ScoredTasks, stopwatch: Stopwatch) -> list[Outcome]:
        """Reads what the model has returned, without the model; an outcome for each task."""
        stopwatch.start()
        encoded, found = scored.encoded, _Found()
        for batch, scores in zip(encoded.batches, scored.scores, strict=True):
            found.logits.update(zip(batch.numbers, zip(*scores.logits, strict=True), strict=True))
            if scores.best_spans is not None:
                rows = scores.best_spans.tolist()
                found.best_spans.update(zip(batch.numbers, rows, strict=True))
        outcomes = [
            item if isinstance(item, QaError) else self._outcome(task, item, found, place)
            for (task, item), place in zip(encoded.tasks, encoded.places, strict=True)
        ]
        stopwatch.lap("read")
        return outcomes

    def _cut(self, question: Question) -> list[tuple[int, Task]]:
        """A task for each section of a text, with the section's start in code points."""
        asked, text, top_k = question.question, question.text, question.top_k
        overlap_tokens = self._config.window_overlap_tokens
        cut = list(sections(question, self.model.window_tokens, overlap_tokens))
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
        return to_answers(question.text, best, self._config.null_log_score, question.top_k)

    def _outcome(self, task: Task, item: EncodedQuestion, found: _Found, place: range) -> Outcome:
        text, config = task.text, self._config
        try:
            if _is_lone(task, item) and (row := found.best_spans.get(place[0])):
                best_spans = self._as_best_spans(item.windows[0], row)
                if answers := answers_at_best_spans(text, item, best_spans, config):
                    return Answers(answers)
            logits = [found.logits[number] for number in place]
            if task.core:
                return find_spans(text, item, logits, config, top_k=task.top_k, core=task.core)
            return Answers(find_answers(text, item, logits, config, task.top_k))
        except QaError as error:
            return error
        except Exception:
            logger.exception("the model's output for a question cannot be read")
            return InternalError()

    def _padded(
        self, numbers: Sequence[int], windows: Sequence[Window], *, for_spans: bool = False
    ) -> PaddedBatch:
        rows = padded(windows, self._pad_token_id)
        longest = rows[0].shape[1]
        mask = text_mask_of(windows, longest) if for_spans else None
        return PaddedBatch(numbers, longest, rows, mask)

    def _run(self, batch: PaddedBatch) -> Scores:
        if batch.text_mask is None or self._best_spans is None:
            scores = Scores(self.logits(*batch.rows))
        else:
            best_spans, logits = self._best_spans(*batch.rows, batch.text_mask)
            scores = Scores(logits, best_spans)
            _check_rows(best_spans, batch, "spans")
        for logits_of_rows in scores.logits:
            _check_rows(logits_of_rows, batch, "logits")
        return scores

    def first_window(self, question: str, text: str) -> Window:
        """The first window of a question and a text, as it is tokenized for the model."""
        return self._windows.encode(question, text).windows[0]

    def run_logits(self, windows: Sequence[Window]) -> list[Logits]:
        """Runs the model on windows, padded to one length; returns each window's logits."""
        scores = self._run(self._padded(range(len(windows)), windows))
        return list(zip(*scores.logits, strict=True))

    @property
    def chooses_spans(self) -> bool:
        """Whether the engine finds the best spans of a window by itself."""
        return self._best_spans is not None

    def run_best_spans(self, window: Window) -> BestSpans:
        """The best spans of a window, which the engine finds; only if it chooses spans."""
        scores = self._run(self._padded([0], [window], for_spans=True))
        assert scores.best_spans is not None
        (row,) = scores.best_spans.tolist()
        return self._as_best_spans(window, row)

    def _as_best_spans(self, window: Window, row: Sequence[float]) -> BestSpans:
        width, begin = self._config.max_answer_tokens, window.text_begin
        lowest = row[NUM_BEST + 1] - NEAR_BEST
        candidates = []
        for number, log_score in zip(row[1 : NUM_BEST + 1], row[NUM_BEST + 1 :], strict=True):
            if log_score < lowest:
                break
            first, further = divmod(int(number), width)
            candidates.append(Candidate(log_score, first - begin, first - begin + further))
        return BestSpans(candidates, row[0])

    def _batches(self, windows: Sequence[Window]) -> Iterator[list[int]]:
        batch: list[int] = []
        lengths = list(map(len, windows))
        for i in sorted(range(len(windows)), key=lengths.__getitem__, reverse=True):
            if batch and not self.rule.admits(len(batch), lengths[batch[0]], lengths[i]):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


@dataclass(frozen=True, slots=True)
class _Found:
    """What the engine returned, by the numbers of the windows."""

    logits: dict[int, Logits] = field(default_factory=dict)
    best_spans: dict[int, list[float]] = field(default_factory=dict)


def _check_rows(found: FloatArray, batch: PaddedBatch, what: str) -> None:
    if len(found) != len(batch.numbers):
        raise InternalError(f"{len(found)} rows of {what} for {len(batch.numbers)} windows")


def _is_lone(task: Task, item: EncodedQuestion) -> bool:
    """Whether a task needs only the one best answer of one window."""
    return len(item.windows) == task.top_k == 1 and task.core is None
