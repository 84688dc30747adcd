"""An instance answers batches, one after another.

With a GPU, one thread tokenizes the next batch and another reads the logits of the last one, while
the present one runs. On a CPU they would only take the model's cores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from qa_service.errors import EngineFaultError, InternalError, QaError
from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.devices import CPU
from qa_service.instance.reader.instant import InstantReader
from qa_service.instance.stages import Holding, Stopwatch
from qa_service.instance.worker_messages import (
    Batch,
    Check,
    Checked,
    Failure,
    ModelFacts,
    Outcome,
    Results,
)
from qa_service.wire.messages import Task

if TYPE_CHECKING:
    from qa_service.instance.reader.reader import Reader
    from qa_service.instance.self_test import SelfTest

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""An instance that had nothing to do for so long prepares one thing more: whoever comes meanwhile
waits for it, so it is not done between the requests of one client."""

WARMUP = Task("Who wrote the letter?", "The letter was written by Ada in 1843. " * 2)
"""A question about a few words; the known answers have rows of all lengths."""

E = TypeVar("E")
"""A reader's tasks, tokenized."""
S = TypeVar("S")
"""The same, scored by the model."""


class TaskReader(Protocol[E, S]):
    """Answers tasks: a `Reader`, an `InstantReader`, or a `HookedReader` around one.

    Each of the three steps may be in another thread, but none is in two at once.
    """

    @property
    def model(self) -> ModelFacts: ...

    @property
    def rule(self) -> BatchRule: ...

    def encode(self, tasks: Sequence[Task], stopwatch: Stopwatch) -> E: ...

    def score(self, encoded: E, stopwatch: Stopwatch) -> S: ...

    def find(self, scored: S, stopwatch: Stopwatch) -> Sequence[Outcome]:
        """Reads what the model returned; returns an outcome for each task, in their order."""


class Loaded(msgspec.Struct, frozen=True):
    """A reader, where it really runs, what memory it may still take, and what else it does."""

    reader: Reader | InstantReader
    device: str = CPU
    later_bytes: int = 0
    self_test: SelfTest | None = None
    prepare_next: Callable[[], bool] = bool


class Run(Generic[E, S]):
    """A batch on its way through an instance."""

    def __init__(self, reader: TaskReader[E, S], batch: Batch, holding: Holding) -> None:
        self._reader = reader
        self._batch = batch
        self._holding = holding
        self._stopwatch = Stopwatch()
        self._encoded: E | None = None
        self._scored: S | None = None
        self._alone: list[Run[E, S]] = []
        self._started_s = 0.0
        self._news: CostTable | None = None

    def encode(self) -> Run[E, S]:
        """Tokenizes ahead of time; an error is logged, and occurs again in `score`."""
        try:
            self._encoded = self._reader.encode(self._batch.tasks, self._stopwatch)
        except Exception:
            logger.exception("a batch of %d could not be tokenized", len(self._batch.tasks))
        return self

    def score(self) -> Run[E, S]:
        """Runs the model on the batch; if that fails, on each task alone."""
        tasks, costs = self._batch.tasks, self._reader.rule.costs
        self._started_s = time.monotonic()
        try:
            if self._encoded is None:
                self._encoded = self._reader.encode(tasks, self._stopwatch)
            self._scored = self._reader.score(self._encoded, self._stopwatch)
        except EngineFaultError:
            raise
        except Exception:
            logger.exception("a batch of %d failed", len(tasks))
            if len(tasks) > 1:
                batches = [Batch(self._batch.number, [task]) for task in tasks]
                runs = [Run(self._reader, batch, self._holding) for batch in batches]
                self._alone = [run.score() for run in runs]
        learned = self._reader.rule.costs
        self._news = learned if learned is not costs else None
        return self

    def results(self) -> Results:
        messages = [
            Failure(outcome.code, outcome.message) if isinstance(outcome, QaError) else outcome
            for outcome in self._outcomes()
        ]
        inference_ms = round((time.monotonic() - self._started_s) * 1e3, 3)
        stages_ms = self._stopwatch.take()
        return Results(
            self._batch.number,
            messages,
            self._started_s,
            inference_ms,
            stages_ms,
            self._news,
            self._holding.take_ms(),
        )

    def _outcomes(self) -> list[Outcome]:
        if self._alone:
            return [outcome for run in self._alone for outcome in run._outcomes()]
        if self._scored is None:
            return [InternalError()]
        try:
            return list(self._reader.find(self._scored, self._stopwatch))
        except Exception:
            logger.exception("a batch of %d cannot be read", len(self._batch.tasks))
            return [InternalError()] * len(self._batch.tasks)


class Proof:
    """A self-test in its place among the batches."""

    def __init__(self, self_test: SelfTest | None, number: int) -> None:
        self._self_test = self_test
        self._number = number

    def encode(self) -> Proof:
        return self

    def score(self) -> Proof:
        if self._self_test:
            self._self_test.check_next()
        return self

    def results(self) -> Checked:
        return Checked(self._number)


Job = Run[E, S] | Proof
"""What an instance does, one after another."""


def answer_in_turn(
    reader: TaskReader[E, S], channel: WorkerChannel, self_test: SelfTest | None = None
) -> None:
    """Answers batches, and proves itself, until its channel ends; all in this thread.

    Raises:
        EngineFaultError: The engine cannot be believed; the batch has no results.
        OSError: The loop's end was closed while results were being sent.
    """
    holding = Holding()
    for job in _received(reader, channel, self_test, holding):
        channel.send(job.score().results())
        holding.end()


def answer_overlapped(
    reader: TaskReader[E, S],
    channel: WorkerChannel,
    self_test: SelfTest | None = None,
    prepare_next: Callable[[], bool] = bool,
) -> None:
    """The same, with tokenizing and reading in separate threads; the model runs in this one.

    Args:
        prepare_next: Called after `IDLE_S` without work; returns whether there is more to prepare.

    Raises:
        EngineFaultError: The engine cannot be believed; the batches before it have their results.
        OSError: The loop's end was closed while results were being sent.
    """
    off_model, holding = threading.Lock(), Holding()

    def finish(job: Job[E, S]) -> None:
        with off_model:
            results = job.results()
        channel.send(results)
        holding.end()

    with ThreadPoolExecutor(1, "reading") as reading:
        sent: Future[None] | None = None
        jobs = _received_ahead(
            reader, channel, self_test, off_model, holding, prepare_next=prepare_next
        )
        for job in jobs:
            job.score()
            if sent:
                sent.result()
            sent = reading.submit(finish, job)
        if sent:
            sent.result()


def _received(
    reader: TaskReader[E, S], channel: WorkerChannel, self_test: SelfTest | None, holding: Holding
) -> Iterator[Job[E, S]]:
    """Receives an instance's batches and self-tests until its channel ends."""
    while isinstance(message := channel.receive(holding.begin), Batch | Check):
        if isinstance(message, Batch):
            yield Run(reader, message, holding)
        else:
            yield Proof(self_test, message.number)


def _received_ahead(
    reader: TaskReader[E, S],
    channel: WorkerChannel,
    self_test: SelfTest | None,
    off_model: threading.Lock,
    holding: Holding,
    *,
    prepare_next: Callable[[], bool],
) -> Iterator[Job[E, S]]:
    """Receives and tokenizes the next batches in a separate thread.

    Args:
        off_model: The lock for work outside the model; held while it tokenizes.
    """
    encoded: SimpleQueue[Job[E, S] | None] = SimpleQueue()

    def receive() -> None:
        try:
            for job in _received(reader, channel, self_test, holding):
                with off_model:
                    job.encode()
                encoded.put(job)
        finally:
            encoded.put(None)

    def next_job() -> Job[E, S] | None:
        is_more = True
        while is_more:
            try:
                return encoded.get(timeout=IDLE_S)
            except Empty:
                is_more = prepare_next()
        return encoded.get()

    threading.Thread(target=receive, name="intake", daemon=True).start()
    return iter(next_job, None)
