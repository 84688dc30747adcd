"""What an instance does with batches, over a real socketpair, with readers that count."""

import select
import socket
import threading
import time
from functools import partial

import pytest

from harness.frames import everything
from harness.models import write_version
from qa_service.errors import EngineFaultError, InternalError
from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.reader.instant import InstantReader, first_word
from qa_service.instance.runs import WARMUP, answer_in_turn, answer_overlapped
from qa_service.instance.stages import Holding, StagesMs, StartTimes, Stopwatch
from qa_service.instance.worker_main import serve
from qa_service.instance.worker_messages import (
    Answers,
    Batch,
    Failed,
    Failure,
    ModelFacts,
    Ready,
    Setup,
    encode,
    to_loop_decoder,
)
from qa_service.wire.frames import PREFIX, FrameReader
from qa_service.wire.messages import Answer, Task


class CountingReader:
    """Answers with each text; fails at `fail`, in one of its steps."""

    def __init__(self, fails_in="score"):
        self.fails_in, self.scored = fails_in, 0
        self.model, self.rule = ModelFacts("a model"), BatchRule()

    def encode(self, tasks, stopwatch):
        stopwatch.start()
        self.fail("encode", tasks)
        stopwatch.lap("tokenize")
        return tasks

    def score(self, encoded, stopwatch):
        stopwatch.start()
        self.fail("score", encoded)
        self.scored += len(encoded)
        stopwatch.lap("model")
        return encoded

    def find(self, scored, stopwatch):
        self.fail("find", scored)
        return [Answers([Answer(task.text, 1.0, None, None)]) for task in scored]

    def fail(self, stage, tasks):
        if stage == self.fails_in and any(task.question == "fail" for task in tasks):
            raise RuntimeError("as it was asked to")
        if any(task.question == "nothing new" for task in tasks):
            raise EngineFaultError("nothing new")


@pytest.fixture(params=[answer_in_turn, answer_overlapped])
def run(request):
    """Has an instance answer batches; returns its results."""
    return partial(answered, request.param)


def answered(answer, reader, *batches):
    """Hands batches to an instance all at once, hangs up for writing, and returns its results."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(encode(batch) for batch in batches))
        ours.shutdown(socket.SHUT_WR)
        try:
            answer(reader, WorkerChannel(theirs))
        finally:
            wait_for_intake()
        theirs.close()
        return messages_in(everything(ours))


def wait_for_intake():
    """Waits until nobody reads from the channel any more, as is so when a worker has ended."""
    for thread in threading.enumerate():
        if thread.name == "intake":
            thread.join()


def messages_in(data):
    frames = FrameReader(len(data))
    frames.feed(data)
    return [to_loop_decoder.decode(frame) for frame in iter(frames.next_frame, None)]


def test_an_instance_has_answered_its_warmup_question_before_it_is_ready(tmp_path, monkeypatch):
    options = InstanceOptions(inference_engine_type="instant", precision="fp32")
    ours, theirs = socket.socketpair()
    asked = []
    find = InstantReader.find

    def listening_find(self, scored, stopwatch):
        said = select.select([ours], [], [], 0)[0]
        asked.extend((task, bool(said)) for task in scored)
        return find(self, scored, stopwatch)

    monkeypatch.setattr(InstantReader, "find", listening_find)
    with ours, theirs:
        ours.sendall(encode(Setup(str(write_version(tmp_path / "m", 1)), options)))
        ours.shutdown(socket.SHUT_WR)
        serve(WorkerChannel(theirs))
        assert asked == [(WARMUP, False)]
        [length] = PREFIX.unpack(ours.recv(PREFIX.size))
        assert isinstance(to_loop_decoder.decode(ours.recv(length)), Ready)


def batch(number, text="t"):
    return Batch(number, [Task("q", text)])


def test_batches_are_answered_in_their_order(run):
    results = run(CountingReader(), batch(5), batch(6), batch(7))
    assert [result.number for result in results] == [5, 6, 7]


def test_results_say_when_they_were_begun_and_how_long_they_took(run):
    before_s = time.monotonic()
    (result,) = run(CountingReader(), batch(0))
    assert before_s <= result.started_s <= time.monotonic()
    assert result.inference_ms >= result.stages_ms.model >= 0.0


def test_results_say_how_long_the_instance_waited_for_work(run):
    before_s = time.monotonic()
    first, second = run(CountingReader(), batch(0), batch(1))
    took_ms = (time.monotonic() - before_s) * 1e3
    assert first.waited_ms > 0.0
    assert first.waited_ms + second.waited_ms < took_ms


def test_an_instance_waits_only_while_it_holds_no_batch(monkeypatch):
    moments = iter([10.0, 12.5, 20.0, 20.5, 21.0])
    monkeypatch.setattr("qa_service.instance.stages.time.monotonic", moments.__next__)
    holding = Holding()  # at 10.0
    holding.begin()  # at 12.5
    holding.begin()
    assert (holding.take_ms(), holding.take_ms()) == (2500.0, 0.0)
    holding.end()  # the second is still there
    holding.end()  # at 20.5
    holding.begin()
    assert holding.take_ms() == 500.0


def test_own_work_without_a_core_is_time_waited_for_one(monkeypatch):
    monkeypatch.setattr("qa_service.instance.stages.time.monotonic", iter([0.0, 3.0, 5.0]).__next__)
    monkeypatch.setattr(
        "qa_service.instance.stages.time.thread_time", iter([0.0, 2.0, 2.0]).__next__
    )
    stopwatch = Stopwatch()
    stopwatch.start()
    stopwatch.lap("read")
    stopwatch.lap("model", is_own=False)
    assert stopwatch.take() == StagesMs(model=2000.0, read=3000.0, lock=1000.0)


def test_results_carry_the_cost_rule_only_when_it_changed(run):
    table = CostTable((10, 20), (1,), ((1.0,), (2.0,)))

    class LearningReader(CountingReader):
        def score(self, encoded, stopwatch):
            if self.scored == 1:
                self.rule = BatchRule(costs=table)
            return super().score(encoded, stopwatch)

    results = run(LearningReader(), batch(0), batch(1), batch(2))
    assert [result.costs for result in results] == [None, table, None]


@pytest.mark.parametrize("stage", ["encode", "score"])
def test_a_question_that_breaks_its_batch_fails_alone(run, stage):
    tasks = [Task("q", "a"), Task("fail", "b"), Task("q", "c")]
    (result,) = run(CountingReader(stage), Batch(3, tasks))
    assert result.outcomes[1] == Failure(InternalError.code, InternalError().message)
    assert [result.outcomes[i].answers[0].answer for i in (0, 2)] == ["a", "c"]


def test_a_batch_that_cannot_be_read_fails_and_the_next_does_not(run):
    failed, answered = run(CountingReader("find"), Batch(0, [Task("fail", "a")]), batch(1))
    assert failed.outcomes == [Failure(InternalError.code, InternalError().message)]
    assert answered.outcomes[0].answers[0].answer == "t"


def test_a_batch_is_read_while_the_model_runs_the_next():
    began = threading.Event()

    class WaitingReader(CountingReader):
        def score(self, encoded, stopwatch):
            if self.scored:
                began.set()
            return super().score(encoded, stopwatch)

        def find(self, scored, stopwatch):
            assert began.wait(30)
            return super().find(scored, stopwatch)

    results = answered(answer_overlapped, WaitingReader(), batch(0), batch(1))
    assert [result.outcomes[0].answers[0].answer for result in results] == ["t", "t"]


@pytest.mark.parametrize(
    ("text", "span"), [("Ada wrote", (0, 3)), (" \n Ada", (3, 6)), ("", None), (" \t", None)]
)
def test_the_instant_reader_answers_with_the_first_word(run, text, span):
    (result,) = run(InstantReader(BatchRule()), Batch(0, [Task("Who?", text)]))
    (answer,) = result.outcomes[0].answers
    assert answer == first_word(text)
    assert (answer.start, answer.end) == (span or (None, None))
    assert answer.answer == (text[slice(*span)] if span else "")


def test_after_a_run_without_new_output_no_batch_is_answered(run):
    reader = CountingReader()
    with pytest.raises(EngineFaultError):
        run(reader, Batch(0, [Task("right", "a"), Task("nothing new", "b"), Task("right", "c")]))
    assert reader.scored == 0


def test_an_instance_whose_engine_wrote_no_output_reports_it_and_ends(tmp_path, monkeypatch):
    def score(self, encoded, stopwatch):
        raise EngineFaultError("nothing new")

    monkeypatch.setattr(InstantReader, "score", score)
    options = InstanceOptions(inference_engine_type="instant", precision="fp32")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(Setup(str(write_version(tmp_path / "m", 1)), options)))
        ours.sendall(encode(batch(0)) + encode(batch(1)))
        serve(WorkerChannel(theirs))
        theirs.close()
        data = everything(ours)
    ready, failed = messages_in(data)
    assert isinstance(ready, Ready)
    assert failed == Failed("nothing new")


def test_a_steps_time_of_a_start_is_without_that_of_steps_within_it(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 4.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    times = StartTimes()
    with times.taking("known answers"), times.taking("recording"):
        pass
    assert times.describe(6.0) == "recording 3.0 s, known answers 1.5 s, the rest 1.5 s"
