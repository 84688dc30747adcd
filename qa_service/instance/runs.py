"""An instance answers batches, one after another.

With a GPU, a thread tokenizes the next batch while the present one runs. On a CPU it would only
take the model's cores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from qa_service.errors import InternalError, QaError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.engines.outputs import EngineFaultError
from qa_service.instance.messages import Batch, Check, Checked, Failure, ModelFacts, Results
from qa_service.instance.reader.reader import Outcome
from qa_service.instance.self_test import SelfTest
from qa_service.instance.stages import Stopwatch
from qa_service.wire.messages import Task

logger = logging.getLogger(__name__)

E = TypeVar("E")
"""A reader's tasks, tokenized."""


class TaskReader(Protocol[E]):
    """Answers tasks: a `Reader`, an `InstantReader`, or a `HookedReader` around one."""

    @property
    def model(self) -> ModelFacts:
        """What the loop needs to know of the model."""

    @property
    def rule(self) -> BatchRule:
        """Which windows run together."""

    def encode(self, tasks: Sequence[Task], stopwatch: Stopwatch) -> E:
        """Tokenizes the tasks."""

    def answer(self, encoded: E, stopwatch: Stopwatch) -> Sequence[Outcome]:
        """Runs the model; returns an outcome for each task, in their order."""


class Run(Generic[E]):
    """A batch on its way through an instance."""

    def __init__(self, reader: TaskReader[E], batch: Batch) -> None:
        self._reader = reader
        self._batch = batch
        self._stopwatch = Stopwatch()
        self._encoded: E | None = None

    def encode(self) -> Run[E]:
        """Tokenizes ahead of time; an error is logged, and occurs again in `results`."""
        try:
            self._encoded = self._reader.encode(self._batch.tasks, self._stopwatch)
        except Exception:
            logger.exception("a batch of %d could not be tokenized", len(self._batch.tasks))
        return self

    def results(self) -> Results:
        """Runs the batch.

        Raises:
            EngineFaultError: The engine cannot be believed.
        """
        costs = self._reader.rule.costs
        started_s = time.monotonic()
        outcomes = self._outcomes(self._batch.tasks, self._encoded)
        inference_ms = round((time.monotonic() - started_s) * 1e3, 3)
        messages = [
            Failure(outcome.code, outcome.message) if isinstance(outcome, QaError) else outcome
            for outcome in outcomes
        ]
        stages_ms = self._stopwatch.take()
        learned = self._reader.rule.costs
        news = learned if learned is not costs else None
        return Results(self._batch.number, messages, started_s, inference_ms, stages_ms, news)

    def _outcomes(self, tasks: Sequence[Task], encoded: E | None = None) -> list[Outcome]:
        """Answers tasks; one that breaks the batch fails alone."""
        try:
            encoded = encoded or self._reader.encode(tasks, self._stopwatch)
            return list(self._reader.answer(encoded, self._stopwatch))
        except EngineFaultError:
            raise
        except Exception:
            logger.exception("a batch of %d failed", len(tasks))
        if len(tasks) == 1:
            return [InternalError()]
        return [outcome for task in tasks for outcome in self._outcomes([task])]


class Proof:
    """A self-test in its place among the batches."""

    def __init__(self, self_test: SelfTest | None, number: int) -> None:
        self._self_test = self_test
        self._number = number

    def encode(self) -> Proof:
        """Has nothing to tokenize."""
        return self

    def results(self) -> Checked:
        """Runs a known row.

        Raises:
            WrongAnswerError: It does not give the known answer.
        """
        started_s = time.monotonic()
        if self._self_test:
            self._self_test.check_next()
        return Checked(self._number, started_s, round((time.monotonic() - started_s) * 1e3, 3))


Job = Run[E] | Proof
"""What an instance does, one after another."""


def received(
    reader: TaskReader[E], channel: WorkerChannel, self_test: SelfTest | None = None
) -> Iterator[Job[E]]:
    """Receives an instance's batches and self-tests until its channel ends."""
    while isinstance(message := channel.receive(), Batch | Check):
        if isinstance(message, Batch):
            yield Run(reader, message)
        else:
            yield Proof(self_test, message.number)


def received_ahead(
    reader: TaskReader[E], channel: WorkerChannel, self_test: SelfTest | None = None
) -> Iterator[Job[E]]:
    """Receives and tokenizes the next batches in a thread of its own, while the model runs."""
    encoded: SimpleQueue[Job[E] | None] = SimpleQueue()

    def receive() -> None:
        try:
            for job in received(reader, channel, self_test):
                encoded.put(job.encode())
        finally:
            encoded.put(None)

    threading.Thread(target=receive, name="intake", daemon=True).start()
    return iter(encoded.get, None)


def answer_batches(jobs: Iterator[Job[E]], channel: WorkerChannel) -> None:
    """Answers batches, and proves itself, until there are no more.

    Raises:
        EngineFaultError: The engine cannot be believed; the batch has no results.
        OSError: The loop's end was closed while results were being sent.
    """
    for job in jobs:
        channel.send(job.results())
