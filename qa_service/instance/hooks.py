"""Pre- and postprocessing by a class of the user's: `--hooks module:Class`; see docs/HOOKS.md.

An instance loads the class before its model. A fault in a hook fails the request alone, and offsets
are always those of the text as it was sent. Hooks may raise anything: a Rust library's panic and an
asyncio task's cancellation are no `Exception`, and may not end the instance.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import math
import operator
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Generic, TypeVar

import msgspec

from qa_service.errors import InternalError, InvalidRequestError, QaError, SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.hooks_file import digest
from qa_service.instance.runs import TaskReader
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_messages import Answers, ModelFacts, Outcome
from qa_service.wire.messages import Task
from qa_service.wire.spans import MAX_PLACES, ScoredSpan, SegmentResult, merge, to_answers

logger = logging.getLogger(__name__)

MAX_QUESTION_CHARS = 1 << 16
"""Of a question that hooks make longer: far above any model's window, and tokenized at once."""
MAX_MESSAGE_CHARS = 500
"""Of what hooks say, in a reply or a log's line: a few sentences, whatever the exception holds."""

E = TypeVar("E")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """A span that the model found: `text[start:end]`, in code points.

    Attributes:
        text: The text as it was sent, or the part of it that is read.
        score: Its probability among all spans of the text, above 0 and at most 1.
    """

    text: str = field(repr=False)
    start: int
    end: int
    score: float

    @property
    def words(self) -> str:
        """The words of the span."""
        return self.text[self.start : self.end]


class Hooks:
    """The base class of hooks; each method returns what it is given.

    With a GPU, `answers` may run in one thread while the others run in another. Any method may
    raise `InvalidRequestError`, whose message the client is sent.
    """

    def question(self, question: str) -> str:
        """Returns the question that the model is asked; not blank."""
        return question

    def passage(self, text: str) -> str:
        """Returns the text that the model reads: as long as the one that it is given."""
        return text

    def answers(self, answers: list[FoundAnswer]) -> list[FoundAnswer]:
        """Returns the answers to keep, of those found; bounds and scores may differ."""
        return answers


@dataclass(frozen=True, slots=True)
class LoadedHooks:
    """Hooks with what identifies them: `module:Class`, and the SHA-256 of the module's file."""

    hooks: Hooks
    name: str
    fingerprint: str


class _SourceLoader(SourceFileLoader):
    """Runs a file as it is now, whose bytes are then `source`.

    Compiled code that Python keeps is taken for current by the file's second and size.
    """

    source = b""

    def get_code(self, fullname: str) -> CodeType:
        self.source = self.get_data(self.path)
        return self.source_to_code(self.source, self.path)


def load_hooks(name: str, expected: str = "") -> LoadedHooks:
    """Makes the hooks of `module:Class`; `expected` is the fingerprint, empty for any."""
    module_name, _, class_name = name.partition(":")
    try:
        module, source = _import(module_name)
        hooks_class = getattr(module, class_name)
        hooks = hooks_class()
        is_hooks = isinstance(hooks, Hooks)
    except BaseException as error:
        raise SetupError(f"hooks {name} cannot be loaded: {_in_words(error)}") from error
    if not is_hooks:
        raise SetupError(
            f"hooks {name}: the class must derive from qa_service.instance.hooks.Hooks"
        )
    fingerprint = digest(source)
    if expected not in {"", fingerprint}:
        raise SetupError(
            f"hooks {name}: {getattr(module, '__file__', None)} has changed since the version was "
            "loaded; a reload (SIGHUP) takes what is there now"
        )
    return LoadedHooks(hooks, name, fingerprint)


def _import(name: str) -> tuple[ModuleType, bytes]:
    """Imports a module; returns it, and the source that it was made of."""
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or type(spec.loader) is not SourceFileLoader:
        module = importlib.import_module(name)
        path = getattr(module, "__file__", None)
        return module, Path(path).read_bytes() if path else b""
    loader = spec.loader = _SourceLoader(spec.loader.name, spec.loader.path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module, loader.source


def _in_words(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except BaseException:  # its __str__ is the user's code too
        message = ""
    return f"{type(error).__name__}: {_bounded(message) or 'no message'}"


def _bounded(words: str) -> str:
    """Words that can be sent: not too many, and without surrogates."""
    cut = words if len(words) <= MAX_MESSAGE_CHARS else f"{words[:MAX_MESSAGE_CHARS]}…"
    return cut.encode(errors="replace").decode()


class _BadResultError(Exception):
    """A hook returned what cannot be used; the message may be sent."""


@dataclass(frozen=True, slots=True)
class _Hooked(Generic[T]):
    """A batch: its tasks as they were sent, errors by index, the others tokenized, then scored."""

    tasks: Sequence[Task]
    errors: dict[int, QaError]
    others: T


class HookedReader(Generic[E, S]):
    """A reader between hooks.

    Each text is read as a segment, so that texts, parts of long texts and passages of collections
    have one rule: hooks are given the spans before these become answers.
    """

    def __init__(self, reader: TaskReader[E, S], loaded: LoadedHooks) -> None:
        self._reader = reader
        self._hooks = loaded.hooks
        self._name = loaded.name
        self.model: ModelFacts = msgspec.structs.replace(
            reader.model, hooks=f"{loaded.name} {loaded.fingerprint}"
        )

    @property
    def rule(self) -> BatchRule:
        return self._reader.rule

    def encode(self, tasks: Sequence[Task], stopwatch: Stopwatch) -> _Hooked[E]:
        errors: dict[int, QaError] = {}
        changed: list[Task] = []
        for number, task in enumerate(tasks):
            item = self._guard(partial(self._before, task))
            if isinstance(item, QaError):
                errors[number] = item
            else:
                changed.append(item)
        return _Hooked(tasks, errors, self._reader.encode(changed, stopwatch))

    def score(self, encoded: _Hooked[E], stopwatch: Stopwatch) -> _Hooked[S]:
        scored = self._reader.score(encoded.others, stopwatch)
        return _Hooked(encoded.tasks, encoded.errors, scored)

    def find(self, scored: _Hooked[S], stopwatch: Stopwatch) -> list[Outcome]:
        found = iter(self._reader.find(scored.others, stopwatch))
        outcomes: list[Outcome] = []
        for number, task in enumerate(scored.tasks):
            outcome = scored.errors.get(number) or next(found)
            if isinstance(outcome, SegmentResult):
                outcome = self._guard(partial(self._after, task, outcome))
                if isinstance(outcome, SegmentResult) and task.core is None:
                    null_log_score = self.model.reading.null_log_score
                    outcome = Answers(to_answers(task.text, outcome, null_log_score, task.top_k))
            outcomes.append(outcome)
        return outcomes

    def _before(self, task: Task) -> Task:
        question = _as_text(self._hooks.question(task.question), "question()")
        if not question.strip():
            raise _BadResultError("question() returned no question")
        if len(question) > max(MAX_QUESTION_CHARS, len(task.question)):
            raise _BadResultError(f"question() returned {len(question)} characters")
        text = _as_text(self._hooks.passage(task.text), "passage()")
        if len(text) != len(task.text):
            lengths = f"{len(text)} characters for {len(task.text)} characters"
            raise _BadResultError(f"passage() returned {lengths}")
        return Task(question, text, task.top_k, task.core or (0, len(text)))

    def _after(self, task: Task, found: SegmentResult) -> SegmentResult:
        """What the hooks keep of the spans; the shares of the others stay in the total."""
        if not found.spans:
            return found
        shares = [math.exp(min(0.0, span.log_score - found.log_total)) for span in found.spans]
        given = {
            FoundAnswer(task.text, span.start, span.end, share): span
            for span, share in zip(found.spans, shares, strict=True)
        }
        kept = [
            given.get(answer) or _as_span(answer, task, found.log_total)
            for answer in itertools.islice(self._hooks.answers(list(given)), MAX_PLACES)
        ]
        return merge([(0, SegmentResult(kept, found.log_total, found.tokens))])

    def _guard(self, step: Callable[[], T]) -> T | QaError:
        """Calls hooks; returns the error of the request if they fail."""
        try:
            return step()
        except _BadResultError as error:
            message = _bounded(str(error))
            logger.error("hooks %s: %s", self._name, message)
            return InternalError(f"the server's hooks failed: {message}")
        except BaseException as error:
            if (refusal := _refusal(error)) is not None:
                return InvalidRequestError(refusal)
            # What the exception says may hold the question.
            [place] = traceback.extract_tb(error.__traceback__, limit=-1)
            kind, where = type(error).__name__, f"{place.filename}:{place.lineno}"
            logger.error("hooks %s failed on a request: %s in %s", self._name, kind, where)
            logger.debug("hooks %s failed on a request", self._name, exc_info=error)
            return InternalError("the server's hooks failed on this request")


def _refusal(error: BaseException) -> str | None:
    """What the client is sent if hooks refused its request; None if they failed."""
    if not isinstance(error, InvalidRequestError):
        return None
    try:
        message: object = error.message
        return _bounded(str.__str__(message)) if isinstance(message, str) else None
    except BaseException:  # a subclass's attribute is the user's code too
        return None


def _as_text(value: object, method: str) -> str:
    """What a method returned, as a plain string: a subclass of `str` may have any length."""
    if not isinstance(value, str):
        raise _BadResultError(f"{method} returned {type(value).__name__}, no text")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _BadResultError(f"{method} returned a text with a lone surrogate") from None
    return text


def _as_span(answer: FoundAnswer, task: Task, log_total: float) -> ScoredSpan:
    begin, end_of_starts = task.core or (0, len(task.text))
    start, end, score = operator.index(answer.start), operator.index(answer.end), answer.score
    is_inside = begin <= start < end_of_starts and start < end <= len(task.text)
    if answer.text != task.text or not is_inside:
        raise _BadResultError("answers() returned one that is not in the text")
    if not 0.0 < score <= 1.0:
        raise _BadResultError(f"answers() returned a score of {score}, not in (0, 1]")
    return ScoredSpan(log_total + math.log(score), start, end)
