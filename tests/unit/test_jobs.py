"""What a session does with batches, over a real socketpair, with readers that count their steps."""

from __future__ import annotations

import socket
import time

import pytest

from qa_service.batching import BatchRule
from qa_service.errors import InternalError
from qa_service.protocol import PREFIX, Answer, Question
from qa_service.reading.instant import InstantReader, first_word
from qa_service.workers.channel import Batch, Failure, WorkerChannel, encode, to_loop_decoder
from qa_service.workers.jobs import Intake, IntakeAhead, answer_batches


class SteppingReader:
    """Runs its model as often as the question says; fails at `fail`."""

    def __init__(self):
        self.steps_done = []

    def steps(self, questions, stopwatch):
        stopwatch.start()
        for question in questions:
            if question.question == "fail":
                raise RuntimeError("as it was asked to")
        stopwatch.lap("tokenize")
        for step in range(int(questions[0].question)):
            yield
            stopwatch.start()
            self.steps_done.append((questions[0].text, step))
            stopwatch.lap("model")
        return [[Answer(question.text, 1.0, None, None)] for question in questions]


@pytest.fixture(params=[Intake, IntakeAhead])
def run(request):
    """Hands batches to a session all at once, hangs up for writing, and returns its results."""

    def answer(reader, *batches):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"".join(encode(batch) for batch in batches))
            ours.shutdown(socket.SHUT_WR)
            channel = WorkerChannel(theirs)
            answer_batches(unhurried(request.param)(reader, channel, len(batches)), channel)
            theirs.close()
            data = b"".join(iter(lambda: ours.recv(65536), b""))
        results = []
        while data:
            end = PREFIX.size + PREFIX.unpack_from(data)[0]
            results.append(to_loop_decoder.decode(data[PREFIX.size : end]))
            data = data[end:]
        return results

    return answer


def unhurried(kind):
    """An intake that has all batches before the first step, and the end only after the last."""

    class Unhurried(kind):
        def __init__(self, reader, channel, num_batches):
            self.missing = num_batches
            super().__init__(reader, channel)

        def has_more(self):
            return self.missing > 0

        def next_job(self):
            self.missing -= 1
            return super().next_job()

    return Unhurried


def batch(number, steps, text="t", *, is_long=False):
    return Batch(number, [Question(str(steps), text)], is_long)


def test_short_batches_are_answered_in_their_order(run):
    results = run(SteppingReader(), batch(5, 3), batch(6, 1), batch(7, 2))
    assert [result.number for result in results] == [5, 6, 7]


def test_a_long_text_lets_every_short_batch_pass_after_one_step(run):
    reader = SteppingReader()
    results = run(reader, batch(0, 4, "long", is_long=True), batch(1, 1, "a"), batch(2, 2, "b"))
    assert [result.number for result in results] == [1, 2, 0]
    done = [text for text, _ in reader.steps_done]
    assert "".join(text for text in done if text != "long") == "abb"
    assert done.count("long") == 4
    assert done[: done.index("a")].count("long") <= 1
    assert done[: done.index("b")].count("long") <= 2


def test_results_say_when_they_were_begun_and_how_long_they_took(run):
    before_s = time.monotonic()
    (result,) = run(SteppingReader(), batch(0, 2))
    assert before_s <= result.started_s <= time.monotonic()
    assert result.inference_ms >= result.stages_ms.model >= 0.0


def test_a_question_that_breaks_its_batch_fails_alone(run):
    questions = [Question("1", "a"), Question("fail", "b"), Question("1", "c")]
    (result,) = run(SteppingReader(), Batch(3, questions))
    assert result.outcomes[1] == Failure(InternalError.code, InternalError().message)
    assert [result.outcomes[i].answers[0].answer for i in (0, 2)] == ["a", "c"]


def test_the_loops_end_ends_the_session_between_two_steps():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(encode(batch(0, 10**6, is_long=True)))
        ours.close()
        reader = SteppingReader()
        channel = WorkerChannel(theirs)
        answer_batches(Intake(reader, channel), channel)
    assert len(reader.steps_done) <= 1


@pytest.mark.parametrize(
    ("text", "span"), [("Ada wrote", (0, 3)), (" \n Ada", (3, 6)), ("", None), (" \t", None)]
)
def test_the_instant_reader_answers_with_the_first_word(run, text, span):
    (result,) = run(InstantReader(BatchRule()), Batch(0, [Question("Who?", text)]))
    (answer,) = result.outcomes[0].answers
    assert answer == first_word(text)
    assert (answer.start, answer.end) == (span or (None, None))
    assert answer.answer == (text[slice(*span)] if span else "")
