"""Measures worked out by hand, and settings chosen where the best one is known."""

import io
import math
import sys
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from qa_service import progress
from qa_service.data.squad import SquadQuestion
from qa_service.errors import SetupError
from qa_service.evaluation import evaluation, measures
from qa_service.evaluation.evaluation import DevSet, never_abstaining, remembered
from qa_service.evaluation.main import main
from qa_service.evaluation.measures import (
    abstained_percent,
    answer_length,
    best_answers,
    calibration_error,
    f1_by,
    question_word,
    right_near,
    squad_metrics,
    unanswerable_questions,
)
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.reader import Reader
from qa_service.wire.messages import Answer
from tests.programs import run_here, run_python
from tests.unit.squad_files import write_squad

QUESTIONS = [
    SquadQuestion(str(n), f"where is {word}?", f"{word} is in town {n}.", (f"town {n}",), (0,))
    for n, word in enumerate(["Ada", "Bo", "Cy", "Di"])
]
NO_ANSWER = Answer("", 0.7, None, None)


def given(text, score):
    return Answer(text, score, 0, len(text))


def test_squad_metrics_are_percentages_over_all_questions():
    answers = [given("town 0", 0.9), given("town", 0.9), NO_ANSWER, given("Town 3.", 0.9)]
    metrics = squad_metrics(answers, QUESTIONS)
    assert metrics["exact_match"] == 50
    assert metrics["f1"] == pytest.approx((100 + 100 * 2 / 3 + 0 + 100) / 4)
    assert abstained_percent(answers) == 25


def test_answering_many_questions_writes_its_progress_into_a_log(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(measures, "_CHUNK_QUESTIONS", 1)
    reader = SimpleNamespace(read=lambda questions: [[NO_ANSWER] for _ in questions])
    assert best_answers(cast(Reader, reader), QUESTIONS) == [NO_ANSWER] * 4
    assert "2/4" in log.getvalue()


def asked(question, *answers):
    return SquadQuestion("1", question, " ".join(answers), answers, (0,) * len(answers))


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("In what year did he go?", "what"),
        ("Who said what?", "who"),
        ("How  many were there?", "how many"),
        ("How did they know how many came?", "how"),
        ("Whatever was it?", "other"),
    ],
)
def test_question_word_is_the_first_interrogative(question, word):
    assert question_word(asked(question, "x")) == word


@pytest.mark.parametrize(
    ("answers", "length"),
    [
        (["one"], "1 word"),
        (["a b c d e", "d e"], "2 or 3 words"),
        (["1 2 3 4 5 6"], "4 to 6 words"),
        (["1 2 3 4 5 6 7"], "7 words or more"),
    ],
)
def test_answer_length_is_that_of_the_shortest(answers, length):
    assert answer_length(asked("who?", *answers)) == length


def test_f1_by_kind_counts_each_question_once_the_largest_kind_first():
    questions = [asked("Why?", "rain"), asked("Who?", "Ada"), asked("Who?", "Bo")]
    answers = [given("sun", 1.0), given("Ada", 1.0), given("Cy", 1.0)]
    assert list(f1_by(question_word, answers, questions).items()) == [
        ("who", (50, 2)),
        ("why", (0, 1)),
    ]


@pytest.mark.parametrize(
    ("scored", "percent"),
    [
        ([("town 0", 0.95), ("town 1", 0.95), ("wrong", 0.85), None], 100 * (2 * 0.05 + 0.85) / 3),
        ([("town 0", 0.5), ("wrong", 0.5), ("town 2", 1.0), ("town 3", 1)], 0),
        ([None] * 4, 0),
    ],
    ids=["bins weighed by their answers", "as often right as they say", "no answers"],
)
def test_calibration_error_is_the_mean_gap_of_score_and_accuracy(scored, percent):
    answers = [given(*one) if one else NO_ANSWER for one in scored]
    assert calibration_error(answers, QUESTIONS) == pytest.approx(percent)


def test_right_near_is_the_share_of_right_answers_near_a_score():
    answers = [given("town 0", 0.76), given("wrong", 0.84), given("town 2", 0.5), NO_ANSWER]
    assert right_near(0.8, answers, QUESTIONS) == 50
    assert math.isnan(right_near(0.2, answers, QUESTIONS))


def test_unanswerable_questions_are_always_the_same():
    made = unanswerable_questions(QUESTIONS)
    assert made == unanswerable_questions(QUESTIONS)
    assert len(made) == len(QUESTIONS)
    texts = {question.id: question.context for question in QUESTIONS}
    assert all(not question.answers and question.context != texts[question.id] for question in made)


def test_never_abstaining_keeps_a_model_that_cannot():
    assert never_abstaining(ReadingConfig()) == ReadingConfig()
    assert never_abstaining(ReadingConfig(null_threshold=2.0)).null_threshold == -math.inf


def test_logits_are_computed_once_for_a_batch():
    runs = []

    def model(ids, mask, types):
        runs.append(ids)
        return ids + mask, ids + types

    logits = remembered(model)
    ids, ones = np.array([[5, 6]]), np.ones((1, 2), np.int64)
    first, again = logits(ids, ones, ones), logits(ids, ones, ones)
    assert len(runs) == 1
    assert first[0].tolist() == again[0].tolist() == [[6, 7]]
    logits(ids, ones, 0 * ones)
    assert len(runs) == 2


@pytest.mark.parametrize(("minimum", "chosen"), [(80.0, 0.0), (78.0, 2.0), (0.0, 15.0)])
def test_the_highest_threshold_keeps_the_minimum_f1(minimum, chosen):
    def f1(reading):
        return 80 - max(0.0, reading.null_threshold)

    assert evaluation.highest_threshold(ReadingConfig(), f1, minimum).null_threshold == chosen


def test_a_model_that_abstains_too_often_has_no_threshold():
    with pytest.raises(ValueError, match="abstains too often"):
        evaluation.highest_threshold(ReadingConfig(), lambda _: 50.0, 60.0)


def test_questions_marked_impossible_are_used_as_such_and_reported(tmp_path):
    impossible = SquadQuestion("impossible", "Who?", "Nobody.", (), (), is_impossible=True)
    unanswered = SquadQuestion("unanswered", "Who?", "Somebody.", (), ())
    questions = [*QUESTIONS[:3], impossible, unanswered]
    dev = DevSet.read([write_squad(tmp_path / "dev.json", questions)])
    assert [question.id for question in dev.answerable] == ["0", "1", "2"]
    assert dev.unanswerable[0].id == "impossible"
    others = len(dev.unanswerable) - 1
    assert str(dev) == (
        f"3 answerable questions, {1 + others} unanswerable: 1 marked is_impossible, "
        f"{others} put to another text"
    )


@pytest.mark.parametrize("content", [None, "{", '{"data": []}'])
def test_a_file_without_questions_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "dev.json").write_text(content)
    with pytest.raises(SetupError, match=r"dev\.json"):
        DevSet.read([tmp_path / "dev.json"])


def test_evaluating_a_missing_file_is_one_line_and_code_2():
    done = run_python("evaluate_model.py", "saved_models/none", "--dev", "none.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("evaluate_model.py: a file of questions cannot be read: ")
    assert "none.json" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--max_questions", "-5"], "--max_questions: -5 is less than 0"),
        (["--intra_op_num_threads", "0"], "--intra_op_num_threads: 0 is less than 1"),
        (["--max_cost_f1", "nan"], "--max_cost_f1: nan is not a number"),
        (["--plot", "f1.png"], "--plot is for --cascade"),
    ],
)
def test_flags_that_make_no_sense_are_refused(given, words):
    done = run_here(main, "none", "--dev", "none.json", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
