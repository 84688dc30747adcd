"""A session's work: batches answered in their order, a long text in between, step by step.

Of a long text, which has many windows, one run of the model is done after each batch of short
questions, or all of them one after another while there are none. So a short question waits for
one step of a long text, and a long text has at least every second step.

Beside a GPU, a thread of its own tokenizes the next batch while the present one runs; on a CPU,
whose cores the model has anyway, it would only be in the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from queue import SimpleQueue
from typing import Protocol

from qa_service.errors import InternalError, QaError
from qa_service.protocol import Answer, Question
from qa_service.reading.stopwatch import Stopwatch
from qa_service.workers.channel import Answers, Batch, Failure, Results, WorkerChannel

logger = logging.getLogger(__name__)

Outcomes = list[list[Answer] | QaError]


class StepwiseReader(Protocol):
    """What answers: a `Reader`, or what stands in its place."""

    def steps(
        self, questions: Sequence[Question], stopwatch: Stopwatch
    ) -> Generator[None, None, Outcomes]:
        """See `Reader.steps`."""


class Job:
    """A batch on its way through a session."""

    def __init__(self, reader: StepwiseReader, batch: Batch) -> None:
        self._batch = batch
        self._stopwatch = Stopwatch()
        self._steps = answer_in_steps(reader, batch.questions, self._stopwatch)
        self._started_s = 0.0
        self._results: Results | None = None

    def begin(self) -> Job:
        """Does the first step, which needs no model, ahead of time."""
        self._results = self.step()
        self._started_s = 0.0
        return self

    def step(self) -> Results | None:
        """Does the next step; the results, if it was the last."""
        if self._results:
            return self._results
        self._started_s = self._started_s or time.monotonic()
        try:
            next(self._steps)
        except StopIteration as end:
            inference_ms = round((time.monotonic() - self._started_s) * 1e3, 3)
            outcomes = [_on_the_wire(outcome) for outcome in end.value]
            stages_ms = self._stopwatch.take()
            number = self._batch.number
            return Results(number, outcomes, self._started_s, inference_ms, stages_ms)
        return None

    def finish(self) -> Results:
        """Does all the steps that are left."""
        while (results := self.step()) is None:
            pass
        return results


def answer_in_steps(
    reader: StepwiseReader, questions: Sequence[Question], stopwatch: Stopwatch
) -> Generator[None, None, Outcomes]:
    """Answers questions; one that breaks the batch fails alone."""
    try:
        return (yield from reader.steps(questions, stopwatch))
    except Exception:
        logger.exception("a batch of %d failed", len(questions))
    if len(questions) == 1:
        return [InternalError()]
    outcomes: Outcomes = []
    for question in questions:
        outcomes += yield from answer_in_steps(reader, [question], stopwatch)
    return outcomes


def _on_the_wire(outcome: list[Answer] | QaError) -> Answers | Failure:
    if isinstance(outcome, QaError):
        return Failure(outcome.code, outcome.message)
    return Answers(outcome)


class Intake:
    """Where a session's jobs come from: its channel, when it has time for them."""

    def __init__(self, reader: StepwiseReader, channel: WorkerChannel) -> None:
        self._reader = reader
        self._channel = channel

    def has_more(self) -> bool:
        """Whether `next_job` would not have to wait."""
        return self._channel.has_more()

    def next_job(self) -> tuple[Job, bool] | None:
        """Waits for the next job, and whether it is a long text; None when the channel ends."""
        batch = self._channel.receive()
        return (Job(self._reader, batch), batch.is_long) if isinstance(batch, Batch) else None


class IntakeAhead(Intake):
    """Receives and begins the next jobs in a thread of its own, while the model runs."""

    def __init__(self, reader: StepwiseReader, channel: WorkerChannel) -> None:
        super().__init__(reader, channel)
        self._begun: SimpleQueue[tuple[Job, bool] | None] = SimpleQueue()
        threading.Thread(target=self._receive, name="intake", daemon=True).start()

    def has_more(self) -> bool:
        """See `Intake`."""
        return not self._begun.empty()

    def next_job(self) -> tuple[Job, bool] | None:
        """See `Intake`."""
        return self._begun.get()

    def _receive(self) -> None:
        try:
            while item := super().next_job():
                item[0].begin()
                self._begun.put(item)
        finally:
            self._begun.put(None)


def answer_batches(intake: Intake, channel: WorkerChannel) -> None:
    """Answers batches until the channel ends.

    Raises:
        OSError: The loop's end was closed while results were on their way.
    """
    short: deque[Job] = deque()
    long: deque[Job] = deque()
    while True:
        if not (short or long) or intake.has_more():
            if (item := intake.next_job()) is None:
                return
            job, is_long = item
            (long if is_long else short).append(job)
            continue
        if long and (results := long[0].step()):
            long.popleft()
            channel.send(results)
        if short:
            channel.send(short.popleft().finish())
