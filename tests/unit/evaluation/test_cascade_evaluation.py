"""What a cascade comes to, worked out from what its models answer alone."""

import pytest

from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.cascade import ModelRun, draw, sweep
from qa_service.wire.messages import Answer

QUESTIONS = [SquadQuestion(str(n), "Who?", "Ada and Bob", ("Ada",), (0,)) for n in range(4)]
UNKNOWN = Answer("", 0.7, None, None)


def answers(*pairs):
    return [Answer(word, score, 0, len(word)) if word else UNKNOWN for word, score in pairs]


SMALL = ModelRun(
    answers(("Ada", 0.9), ("Bob", 0.6), ("Bob", 0.3), ("", 0.7)), answers(("Bob", 0.2)), 1.0
)
LARGE = ModelRun(answers(*[("Ada", 0.9)] * 4), [UNKNOWN], 10.0)


def points(min_scores, **options):
    return list(sweep([SMALL, LARGE], QUESTIONS, min_scores, **options))


def test_f1_cost_and_gain_go_from_the_first_model_to_the_last():
    none, some, half, most, every = points([0.0, 0.5, 0.65, 0.8, 1.0])
    assert (none.f1, none.cost, none.gain, none.caught) == (25.0, 0.1, 0.0, 0.0)
    assert (some.f1, some.passed_on, some.caught) == (50.0, 25.0, 100.0)
    assert some.cost == pytest.approx(0.1 + 0.25)
    assert half.gain == pytest.approx(2 / 3)
    assert (most.f1, most.passed_on) == (100.0, 75.0)
    assert (every.f1, every.gain) == (100.0, 1.0)
    assert every.cost == pytest.approx(1.1)


def test_no_answer_is_passed_on_if_configured():
    [kept], [passed_on] = points([0.5]), points([0.5], ask_next_if_unknown=True)
    assert (kept.passed_on, passed_on.passed_on) == (25.0, 50.0)


def test_three_models_each_pass_on_what_they_are_not_sure_of():
    middle = ModelRun(answers(*[("Bob", 0.9)] * 4), [UNKNOWN], 2.0)
    [point] = sweep([SMALL, middle, LARGE], QUESTIONS, [0.65])
    assert point.f1 == 25.0
    assert point.cost == pytest.approx((1.0 + 0.5 * 2.0) / 10.0)


def test_the_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    draw(points([0.0, 0.5, 1.0]), tmp_path / "cascade.png")
    assert (tmp_path / "cascade.png").read_bytes().startswith(b"\x89PNG")
