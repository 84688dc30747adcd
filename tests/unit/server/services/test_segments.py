"""Long texts cut into segments and merged, with a dispatcher of the test's own."""

import math
from typing import cast

import pytest

from qa_service.errors import DeadlineExceededError, QueueFullError, WorkerCrashedError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.worker_messages import ModelFacts
from qa_service.server.scheduling.call import SegmentRead
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.segments import Segments
from qa_service.wire.messages import Answer
from qa_service.wire.spans import ScoredSpan, SegmentResult
from tests.unit.calls import make_call
from tests.unit.server.fake_services import TIMINGS, FakeDispatcher

MODEL = ModelFacts("a model", window_tokens=384, reading=ReadingConfig(null_threshold=-5.0))
SEGMENT_TOKENS = 128 + 2 * (384 - 128)


class Setting:
    def __init__(self, text, **fields):
        self.dispatcher, self.outcomes = FakeDispatcher(MODEL), []
        self.segments = Segments(cast(Dispatcher, self.dispatcher))
        self.whole = make_call(text=text, flow="ada", on_settled=self.outcomes.append, **fields)
        self.segments.submit(self.whole)

    def settle(self, segment, word=None, tokens=None):
        """Says that a segment was read: its word is the best span, if its core has that."""
        text = segment.call.request.text
        at = text.find(word) if word else -1
        begin, end = segment.core
        spans = [ScoredSpan(1.0, at, at + len(word))] if begin <= at < end else []
        log_total = 2.0 if spans else -math.inf
        result = SegmentResult(spans, log_total, len(text) // 4 if tokens is None else tokens)
        segment.call.settle(SegmentRead((), TIMINGS, segment=result))

    def settle_all(self, word=None):
        for number, segment in enumerate(self.dispatcher.submitted):
            assert number < 1000
            self.settle(segment, word)


WORDS = "the river runs by the old stone mill and on to the sea "


def test_a_short_text_passes_unchanged():
    setting = Setting("Ada wrote it.")
    assert setting.dispatcher.submitted == [setting.whole]


@pytest.mark.parametrize("place", [0, 3_000, 20_000, 39_000])
def test_an_answer_is_found_wherever_it_stands(place):
    text = WORDS * 800
    text = text[:place] + "Idris" + text[place:]
    setting = Setting(text)
    setting.settle_all("Idris")
    (outcome,) = setting.outcomes
    (answer,) = outcome.answers
    assert (answer.answer, answer.start) == ("Idris", place)
    assert text[answer.start : answer.end] == "Idris"
    assert answer.score == pytest.approx(
        math.exp(1.0 - math.log(math.exp(2.0) + math.exp(-5.0))), abs=1e-4
    )


def test_cores_follow_each_other_without_gap_or_overlap_and_use_up_what_was_reserved():
    text = WORDS * 800
    setting = Setting(text)
    assert setting.dispatcher.reserved > 0.0
    setting.settle_all()
    assert setting.dispatcher.reserved == pytest.approx(0.0)
    at = 0
    for segment in setting.dispatcher.submitted:
        begin, end = segment.core
        piece = segment.call.request.text
        assert text[at : at + end - begin] == piece[begin:end]
        assert len(piece) // 4 <= SEGMENT_TOKENS + 40
        at += end - begin
    assert at == len(text)


def test_only_a_few_segments_are_under_way_and_have_their_texts_flow_and_place():
    setting = Setting(WORDS * 2000, trace_id="4bf92f3577b34da6")
    assert len(setting.dispatcher.submitted) == 4
    assert {segment.flow for segment in setting.dispatcher.submitted} == {"ada"}
    assert {segment.finish for segment in setting.dispatcher.submitted} == {(7.0, 7)}
    assert {one.call.scope.trace_id for one in setting.dispatcher.submitted} == {"4bf92f3577b34da6"}
    setting.settle(setting.dispatcher.submitted[0])
    assert len(setting.dispatcher.submitted) == 5


@pytest.mark.parametrize("sign", ["!", "字"])
def test_a_text_without_spaces_and_of_more_tokens_than_letters_is_cut_smaller(sign):
    setting = Setting(sign * 60_000)
    for segment in setting.dispatcher.submitted:
        setting.settle(segment, tokens=len(segment.call.request.text))
        assert len(segment.call.request.text) <= SEGMENT_TOKENS
    assert 60_000 // 512 <= len(setting.dispatcher.submitted) <= 60_000 // 480
    assert [outcome.answers for outcome in setting.outcomes] == [[Answer("", 1.0, None, None)]]


def test_a_models_window_length_applies_from_its_first_request():
    setting = Setting(WORDS * 40)
    assert len(setting.dispatcher.submitted) == 1
    setting.dispatcher.model = ModelFacts(
        "another", window_tokens=64, reading=ReadingConfig(window_overlap_tokens=16)
    )
    setting.segments.submit(make_call(text=WORDS * 40))
    assert len(setting.dispatcher.submitted) == 1 + 2
    assert setting.dispatcher.submitted[1].core is not None


def test_a_disconnect_cancels_the_segments():
    setting = Setting(WORDS * 2000)
    setting.whole.cancel()
    assert setting.dispatcher.cancelled == setting.dispatcher.submitted
    assert setting.dispatcher.reserved == pytest.approx(0.0)
    assert setting.outcomes == []


@pytest.mark.parametrize("error", [WorkerCrashedError, DeadlineExceededError])
def test_a_segment_that_cannot_be_read_fails_the_text_once_with_its_code(error):
    """Also one whose time was over before any was begun: that is the code of short texts."""
    setting = Setting(WORDS * 2000)
    setting.dispatcher.submitted[1].call.fail(error())
    assert [outcome.code for outcome in setting.outcomes] == [error.code]
    assert len(setting.dispatcher.cancelled) == 3
    assert len(setting.dispatcher.submitted) == 4


def test_a_text_given_up_says_how_many_characters_were_read():
    setting = Setting(WORDS * 2000)
    read = list(setting.dispatcher.submitted[:3])
    for segment in read:
        setting.settle(segment)
    num_chars = sum(end - begin for begin, end in (segment.core for segment in read))
    setting.dispatcher.submitted[-1].call.fail(DeadlineExceededError())
    (error,) = setting.outcomes
    assert error.code == "execution_timeout"
    assert f": {num_chars} of {len(WORDS * 2000)} characters" in error.message
    assert "its time was over" in error.message


def test_a_segment_without_tokens_does_not_change_the_estimate():
    setting = Setting(" " * 20_000 + WORDS * 400)
    for number, segment in enumerate(setting.dispatcher.submitted):
        assert number < 1000
        setting.settle(segment, "river", tokens=None if segment.call.request.text.strip() else 0)
    (outcome,) = setting.outcomes
    assert outcome.answers[0].answer == "river"


def test_a_text_of_more_tokens_than_can_be_read_in_its_time_is_given_up_once_that_is_seen():
    setting = Setting(WORDS * 2000)
    setting.dispatcher.cost_limit = 40_000.0
    first, second, *_ = setting.dispatcher.submitted
    setting.settle(first)
    assert setting.outcomes == []
    setting.settle(second, tokens=4 * len(second.call.request.text))
    (error,) = setting.outcomes
    assert error.code == "execution_timeout"
    assert "longer than its time" in error.message
    assert setting.dispatcher.reserved == pytest.approx(0.0)


def test_a_dense_beginning_does_not_fail_the_text():
    """Signs are tokens each: what counts is how far the estimate was wrong."""
    setting = Setting("!? " * 2000 + WORDS * 1000)
    setting.dispatcher.cost_limit = 20_000.0
    first = setting.dispatcher.submitted[0]
    setting.settle(first, tokens=len(first.call.request.text) * 2 // 3)
    assert setting.outcomes == []


def test_a_text_that_is_not_admitted_is_refused_at_once():
    setting = Setting("Ada wrote it.")
    setting.dispatcher.refuse = QueueFullError(retry_after_ms=70)
    long = make_call(text=WORDS * 2000, on_settled=setting.outcomes.append)
    setting.segments.submit(long)
    assert [outcome.retry_after_ms for outcome in setting.outcomes] == [70]
