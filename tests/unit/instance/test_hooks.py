"""Hooks: how they are loaded, and what they may change."""

import asyncio
import itertools
import logging
import math
import sys
from dataclasses import replace

import pytest

from qa_service.autotune.engine_table import Finding, Measurement
from qa_service.errors import InternalError, InvalidRequestError, SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.hooks import (
    MAX_MESSAGE_CHARS,
    MAX_QUESTION_CHARS,
    HookedReader,
    Hooks,
    LoadedHooks,
    load_hooks,
)
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.reader.instant import InstantReader
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_messages import Answers, Setup
from qa_service.wire.messages import Answer, Task
from qa_service.wire.spans import SegmentResult
from tests.unit.instance.tiny_reader import tiny_reader

TEXT = "the old river ran by the town, and the town was by the river. " * 3
TASKS = [
    Task("why", TEXT),
    Task("why", TEXT, 5),
    Task("river", TEXT, 3, (20, len(TEXT))),
    Task("a town", "  \n"),
]


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Writes a module that can be imported; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(source):
        names.append(f"hooks_{len(names)}_{tmp_path.name}")
        (tmp_path / f"{names[-1]}.py").write_text(source)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def answered(reader, *tasks):
    stopwatch = Stopwatch()
    scored = reader.score(reader.encode(tasks, stopwatch), stopwatch)
    return reader.find(scored, stopwatch)


def hooked(hooks, reader=None):
    return HookedReader(reader or InstantReader(BatchRule()), LoadedHooks(hooks, "m:C", "0"))


IMPORT = "from qa_service.instance.hooks import Hooks\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (IMPORT, "has no attribute 'C'"),
        ("class C: pass", "must derive from qa_service.instance.hooks.Hooks"),
        (f"{IMPORT}class C(Hooks):\n def __init__(self, n): pass", "TypeError: "),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def", "SyntaxError: "),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("C = 3", "TypeError: 'int' object is not callable"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: no message"),
        (f"{IMPORT}class C(Hooks):\n def __init__(self): raise GeneratorExit", "GeneratorExit: "),
        ("raise ValueError('\\udc80' + 'x' * 10**6)", "ValueError: ?xxx"),
        (
            "class Mute(BaseException):\n def __str__(self): raise Mute\nraise Mute",
            "Mute: no message",
        ),
    ],
)
def test_hooks_that_cannot_be_loaded_are_a_setup_error_of_one_line(write_module, source, reason):
    name = f"{write_module(source)}:C"
    with pytest.raises(SetupError) as raised:
        load_hooks(name)
    assert reason in str(raised.value)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value).encode()) < 2 * MAX_MESSAGE_CHARS


def test_hooks_are_loaded_and_known_by_their_source(write_module):
    first = load_hooks(f"{write_module(f'{IMPORT}class C(Hooks): pass')}:C")
    second = load_hooks(f"{write_module(f'{IMPORT}class C(Hooks): x = 1')}:C")
    assert isinstance(first.hooks, Hooks)
    assert first.fingerprint != second.fingerprint
    models = [HookedReader(InstantReader(BatchRule()), loaded).model for loaded in (first, second)]
    assert models[0].hooks.startswith(first.name)
    assert models[0].hooks != models[1].hooks


def test_hooks_that_change_nothing_leave_every_outcome_as_it_is(tmp_path):
    reader = tiny_reader(tmp_path)
    outcomes = answered(reader, *TASKS)
    assert {type(outcome) for outcome in outcomes} == {Answers, SegmentResult}
    assert answered(hooked(Hooks(), reader), *TASKS) == outcomes


class Changing(Hooks):
    """Lowers scores to a half, and makes answers longer by a character."""

    def passage(self, text):
        return text.replace("secret", "xxxxxx")

    def answers(self, answers):
        return [replace(answer, end=answer.end + 1, score=answer.score / 2) for answer in answers]


def test_words_and_offsets_are_of_the_text_as_sent_and_scores_as_changed():
    whole, part = answered(
        hooked(Changing()), Task("q", "secret words"), Task("q", "not secret words", 1, (4, 16))
    )
    assert whole == Answers([Answer("secret ", 0.5, 0, 7)])
    [span] = part.spans
    assert (span.start, span.end) == (4, 11)


class Dropping(Hooks):
    def answers(self, answers):
        return []


def test_with_all_answers_dropped_there_is_no_answer():
    whole, part = answered(hooked(Dropping()), Task("q", "a word"), Task("q", "a word", 1, (0, 6)))
    assert [(answer.answer, answer.start) for answer in whole.answers] == [("", None)]
    assert part.spans == []


class Panic(BaseException):
    """As a Rust library's is."""


class EvasiveError(InvalidRequestError):
    """One without a message that can be read."""

    def __init__(self, message):
        Exception.__init__(self, message)

    message = property(lambda _: 1 / 0)


def refusal(message):
    error = InvalidRequestError()
    error.message = message
    return error


class Lying(str):
    """A text of another length than it says."""

    def __len__(self):
        return len("lies")


SECRET = "of nobody's business"
ERRORS = {
    "crash": ValueError(SECRET),
    "exit": SystemExit(SECRET),
    "interrupt": KeyboardInterrupt(SECRET),
    "cancel": asyncio.CancelledError(SECRET),
    "close": GeneratorExit(SECRET),
    "panic": Panic(SECRET),
    "number": refusal(7),
    "evasive": EvasiveError(SECRET),
}


class Faulty(Hooks):
    def question(self, question):
        if error := ERRORS.get(question):
            raise error
        return {
            "blank": " ",
            "none": None,
            "surrogate": "who \udc80?",
            "endless": "who? " * MAX_QUESTION_CHARS,
        }.get(question, question)

    def passage(self, text):
        return {"cut it": "ut it", "lies": Lying("short")}.get(text, text)

    def answers(self, answers):
        (answer,) = answers
        return {
            "again": itertools.repeat(answer),
            "high": [replace(answer, score=1.5)],
            "zero": [replace(answer, score=0.0)],
            "nan": [replace(answer, score=float("nan"))],
            "far": [replace(answer, end=1000)],
            "early": [replace(answer, start=-1)],
            "empty": [replace(answer, end=answer.start)],
            "other": [replace(answer, text="another", end=5)],
            "float": [replace(answer, end=3.0)],
            "words": ["words"],
            "nothing": None,
        }.get(answer.words, answers)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        *(
            (Task(question, "x"), "the server's hooks failed on this request")
            for question in ERRORS
        ),
        (Task("blank", "x"), "question() returned no question"),
        (Task("none", "x"), "question() returned NoneType"),
        (Task("surrogate", "x"), "question() returned a text with a lone surrogate"),
        (Task("endless", "x"), f"question() returned {5 * MAX_QUESTION_CHARS} characters"),
        (Task("q", "lies"), "passage() returned 5 characters for 4 characters"),
        (Task("q", "cut it"), "passage() returned 5 characters for 6 characters"),
        (Task("q", "high"), "a score of 1.5"),
        (Task("q", "zero"), "a score of 0.0"),
        (Task("q", "nan"), "a score of nan"),
        *((Task("q", words), "not in the text") for words in ("far", "early", "empty", "other")),
        *((Task("q", words), "failed on this request") for words in ("float", "words", "nothing")),
    ],
)
@pytest.mark.parametrize("is_part", [False, True])
def test_a_fault_fails_its_request_alone(task, message, is_part, caplog):
    caplog.set_level(logging.INFO)
    good = Task("q", "good words")
    bad = Task(task.question, task.text, 1, (0, len(task.text)) if is_part else None)
    before, error, after = answered(hooked(Faulty()), good, bad, good)
    assert before == after == Answers([Answer("good", 1.0, 0, 4)])
    assert isinstance(error, InternalError)
    assert message in error.message
    assert SECRET not in error.message
    assert SECRET not in caplog.text
    (line,) = caplog.messages
    assert line.startswith("hooks m:C")


def test_the_log_has_the_kind_of_a_fault_and_its_place_and_at_debug_all_of_it(caplog):
    caplog.set_level(logging.DEBUG)
    answered(hooked(Faulty()), Task("panic", "x"))
    assert "hooks m:C failed on a request: Panic in " in caplog.messages[0]
    assert f"{__file__}:" in caplog.messages[0]
    assert caplog.records[0].levelno == logging.ERROR
    assert SECRET in caplog.text
    assert caplog.records[1].levelno == logging.DEBUG


def test_answers_without_an_end_are_cut():
    assert answered(hooked(Faulty()), Task("q", "again")) == [Answers([Answer("again", 1.0, 0, 5)])]


class Doubtful(Hooks):
    def answers(self, answers):
        return [replace(answer, score=answer.score**2) for answer in answers]


def test_a_changed_score_is_a_share_of_all_spans_of_the_part(tmp_path):
    """The total of a real model's spans is not 0, as a made-up one's may be."""
    (part,) = answered(tiny_reader(tmp_path), Task("river", TEXT, 1, (0, len(TEXT))))
    (changed,) = answered(
        hooked(Doubtful(), tiny_reader(tmp_path)), Task("river", TEXT, 1, (0, len(TEXT)))
    )
    assert abs(part.log_total) > 1.0
    shares = [math.exp(span.log_score - part.log_total) for span in part.spans]
    assert [math.exp(span.log_score - changed.log_total) for span in changed.spans] == (
        pytest.approx([share**2 for share in shares])
    )


def test_an_answer_outside_of_the_part_that_was_asked_for_is_a_fault():
    (error,) = answered(hooked(Early()), Task("q", "title: words", 1, (7, 12)))
    assert isinstance(error, InternalError)


class Early(Hooks):
    def answers(self, answers):
        return [replace(answer, start=0) for answer in answers]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("", "the server refuses this request"),
        ("not here", "not here"),
        ("no \udc80", "no ?"),
        ("no " * 10**7, f"{('no ' * MAX_MESSAGE_CHARS)[:MAX_MESSAGE_CHARS]}…"),
        (Lying("not here"), "not here"),
    ],
)
def test_a_refusal_can_be_sent_whatever_it_says(said, sent):
    class Refusing(Hooks):
        def question(self, question):
            raise refusal(said) if said else InvalidRequestError(said)

    (error,) = answered(hooked(Refusing()), Task("q", "x"))
    assert isinstance(error, InvalidRequestError)
    assert error.message == sent
    assert type(error.message) is str


def test_engines_are_compared_without_hooks_and_chosen_with_them():
    setup = Setup("m", InstanceOptions(hooks="m:C"))
    measurement = Measurement(setup, (Finding("onnx", "fp32"),), "", "")
    [(_, on_trial)] = measurement.candidates
    assert on_trial.options.hooks is None
    assert measurement.choice(None).options.hooks == "m:C"
