"""A session's work: batches answered in their order, a long text in between, step by step.

Of a long text, which has many windows, one run of the model is done after each batch of short
questions, or all of them one after another while there are none. So a short question waits for
one step of a long text, and a long text has at least every second step.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Sequence
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

    def step(self) -> Results | None:
        """Does the next step; the results, if it was the last."""
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


def answer_batches(reader: StepwiseReader, channel: WorkerChannel) -> None:
    """Answers batches until the channel ends.

    Raises:
        OSError: The loop's end was closed while results were on their way.
    """
    short: deque[Job] = deque()
    long: deque[Job] = deque()
    while True:
        if not (short or long) or channel.has_more():
            batch = channel.receive()
            if not isinstance(batch, Batch):
                return
            (long if batch.is_long else short).append(Job(reader, batch))
            continue
        if long and (results := long[0].step()):
            long.popleft()
            channel.send(results)
        if short:
            channel.send(short.popleft().finish())
