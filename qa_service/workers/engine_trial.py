"""Runs candidates for the choice of an engine, each in an instance's own process, in turn.

    round 0:  A  B  C       every candidate gets the same questions: eight alone, eight together
    round 1:  B  C  A       what is compared are times of one round, so that other work on the
    ...                     machine slows all alike; after a few rounds the slow ones are left out

Unlike all else in this room it waits: it runs in a process of its own (`trial_process`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from tqdm import tqdm

import qa_service
from qa_service.data.squad import read_squad
from qa_service.errors import InternalError, SetupError
from qa_service.logs import LogOptions
from qa_service.wire.messages import Task
from qa_service.workers.channel import WorkerChannel
from qa_service.workers.engine_table import TIE, Finding
from qa_service.workers.messages import (
    Answers,
    Batch,
    Failed,
    Failure,
    Results,
    Setup,
    ToLoop,
    encode,
    to_loop_decoder,
)
from qa_service.workers.process import WORKER_PROGRAM, launch

QUESTIONS = Path(qa_service.__file__).parent / "data" / "agreement.json"
NUM_TEXTS = (3, 2, 1)
"""Of the bundled texts, of some 90 tokens each, how many a question is about: in the first rounds,
which decide who is fast, more than one; in the others the last number."""

MIN_ROUNDS = len(NUM_TEXTS)
LIMIT_S = 30.0
"""Then only the two fastest continue; the second replaces the first if its answers disagree. Half
of the minute that a first start may take is over, and the rest is for comparing answers."""

END_S = 55.0
"""Stop after this, once MIN_ROUNDS are done: a round that has begun takes the minute's rest."""

_BATCH = 8

Span = tuple[int | None, int | None]


class Candidate(Protocol):
    """What is measured: an instance."""

    def ask(self, tasks: Sequence[Task]) -> tuple[float, list[Span | None]]:
        """Answers a batch; returns the milliseconds it took, and where the best answers stand.

        Raises:
            SetupError: It cannot run.
        """


@dataclass(slots=True)
class Record:
    """What is known of a candidate so far: the times of its rounds, and its answers."""

    finding: Finding
    candidate: Candidate
    alone_ms: list[float] = field(default_factory=list)
    batched_ms: list[float] = field(default_factory=list)
    spans: list[Span | None] = field(default_factory=list)

    def warm_up(self, questions: Sequence[Task]) -> None:
        """Waits until it is loaded; the first run of a shape also allocates or compiles."""
        self._attempt(lambda: self.candidate.ask(questions[_BATCH:]))

    def run(self, questions: Sequence[Task]) -> None:
        """Answers a round's questions; the first half one by one, the others together."""
        self._attempt(lambda: self._run(questions[:_BATCH], questions[_BATCH:]))

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except SetupError as error:
            self.finding = msgspec.structs.replace(self.finding, failure=str(error))

    def _run(self, alone: Sequence[Task], together: Sequence[Task]) -> None:
        results = [self.candidate.ask([task]) for task in alone]
        batched_ms, spans = self.candidate.ask(together)
        self.alone_ms.append(statistics.fmean(took_ms for took_ms, _ in results))
        self.batched_ms.append(batched_ms / len(together))
        self.spans += [span for _, found in results for span in found] + spans

    def typical_ms(self) -> list[float]:
        """Of each round: half of it alone, half in batches, which run only where they pay."""
        pairs = zip(self.alone_ms, self.batched_ms, strict=True)
        return [alone_ms + min(alone_ms, batched_ms) for alone_ms, batched_ms in pairs]

    def ratio(self, reference: Record) -> float:
        """Its time as a share of the reference's in the same round: the median of the rounds."""
        pairs = zip(self.typical_ms(), reference.typical_ms(), strict=False)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def may_win(self, reference: Record) -> bool:
        """Whether it is still worth asking: neither too slow nor left out before."""
        if self is reference or not reference.finding.may_be_taken:
            return True
        return self._was_asked_all(reference) and self.ratio(reference) <= 1 - TIE

    def _was_asked_all(self, reference: Record) -> bool:
        return len(self.alone_ms) == len(reference.alone_ms)

    def found(self, reference: Record) -> Finding:
        """What is to be said of it."""
        if self.finding.failure:
            return self.finding
        compared: list[tuple[object, object]] = []
        if self._was_asked_all(reference):
            compared = list(zip(self.spans, reference.spans, strict=True))
        return msgspec.structs.replace(
            self.finding,
            alone_ms=round(statistics.median(self.alone_ms), 2),
            batched_ms=round(statistics.median(self.batched_ms), 2),
            ratio=round(self.ratio(reference), 3),
            num_answers=len(compared),
            num_same=sum(ours == theirs for ours, theirs in compared),
        )


def compare(
    records: Sequence[Record],
    rounds: Sequence[Sequence[Task]],
    on_round: Callable[[], object],
    elapsed_s: Callable[[], float],
) -> list[Finding]:
    """Runs candidates in turn, the reference first in the list.

    Args:
        records: The candidates.
        rounds: The questions of each round.
        on_round: Called after each.
        elapsed_s: How long it takes already.

    Raises:
        SetupError: The reference cannot run.
    """
    reference = records[0]
    for record in records:
        record.warm_up(rounds[0])
    for number, questions in enumerate(rounds):
        running = [record for record in records if not record.finding.failure]
        if reference not in running:
            raise SetupError(f"{reference.finding} cannot run: {reference.finding.failure}")
        if number >= MIN_ROUNDS:
            running = [record for record in running if record.may_win(reference)]
        if number >= MIN_ROUNDS and elapsed_s() >= END_S:
            break
        if number >= MIN_ROUNDS and elapsed_s() >= LIMIT_S:
            running = [reference, *_fastest_two(running[1:], reference)]
        first = number % len(running)
        for record in running[first:] + running[:first]:
            record.run(questions)
        on_round()
    return [record.found(reference) for record in records]


def _fastest_two(records: Sequence[Record], reference: Record) -> list[Record]:
    """The fastest, and the fastest in another engine or precision."""
    fastest: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: record.ratio(reference)):
        fastest.setdefault((record.finding.engine_type, record.finding.precision), record)
    return list(fastest.values())[:2]


def bundled_rounds() -> list[list[Task]]:
    """The bundled questions, sixteen a round."""
    items = read_squad(QUESTIONS)
    contexts = list(dict.fromkeys(item.context for item in items))
    rounds: list[list[Task]] = []
    for start in range(0, len(items) - 2 * _BATCH + 1, 2 * _BATCH):
        num_texts = NUM_TEXTS[min(len(rounds), len(NUM_TEXTS) - 1)]
        tasks = []
        for item in items[start : start + 2 * _BATCH]:
            at = contexts.index(item.context)
            texts = [contexts[(at + step) % len(contexts)] for step in range(num_texts)]
            tasks.append(Task(item.question, " ".join(texts)))
        rounds.append(tasks)
    return rounds


def try_engines(candidates: Sequence[tuple[Finding, Setup]], logs: LogOptions) -> list[Finding]:
    """Starts an instance for each candidate, compares them, and ends them.

    Raises:
        SetupError: The reference cannot run.
    """
    started_s = time.monotonic()
    rounds = bundled_rounds()
    with (
        ExitStack() as stack,
        tqdm(total=len(rounds), desc="measuring engines", disable=None, leave=False) as bar,
    ):
        records = [
            Record(finding, stack.enter_context(Instance(setup, logs)))
            for finding, setup in candidates
        ]
        return compare(records, rounds, bar.update, lambda: time.monotonic() - started_s)


class Instance:
    """A candidate in an instance's process.

    Args:
        setup: What it is to be.
        logs: Its log.
    """

    def __init__(self, setup: Setup, logs: LogOptions) -> None:
        self._process, self._socket = launch(WORKER_PROGRAM, setup, logs)
        self._channel = WorkerChannel(self._socket)
        self._socket.settimeout(setup.options.start_timeout_s)
        self._is_ready = False
        self._socket.sendall(encode(setup))

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def ask(self, tasks: Sequence[Task]) -> tuple[float, list[Span | None]]:
        """See `Candidate.ask`."""
        try:
            if not self._is_ready:
                self._receive()
                self._is_ready = True
            self._socket.sendall(encode(Batch(0, list(tasks))))
            results = self._receive()
        except OSError as error:
            raise SetupError(f"its process ended or hangs: {error}") from None
        assert isinstance(results, Results)
        for outcome in results.outcomes:
            if isinstance(outcome, Failure) and outcome.code == InternalError.code:
                raise SetupError(f"it failed on a question: {outcome.message}")
        return results.inference_ms, [_span(outcome) for outcome in results.outcomes]

    def _receive(self) -> ToLoop:
        body = self._channel.receive_body()
        if body is None:
            raise SetupError("its process ended")
        message: ToLoop = to_loop_decoder.decode(body)
        if isinstance(message, Failed):
            raise SetupError(message.message)
        return message


def _span(outcome: object) -> Span | None:
    """Where the best answer stands; None if there is none."""
    if not isinstance(outcome, Answers):
        return None
    return outcome.answers[0].start, outcome.answers[0].end
