"""Finds the fastest engine that answers as the reference does, in as few runs as are safe.

    reference ──duel── likely fastest ──duel── next likely ──duel── ...     which is faster
        └─────────────── answers to all questions ──────────── winner       do the answers agree

In a duel two candidates answer the same questions in turn, round by round, some alone and some in a
batch. Only times of one round are compared, so that other work on the machine slows both alike. A
duel ends when its outcome is safe. The likely fastest candidates come first; after the time limit
no other duel begins, and the table shows which candidates have not run.

Sans-IO: candidates answer, and the caller passes the elapsed time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from qa_service.autotune.engine_table import TIE, Finding
from qa_service.errors import SetupError
from qa_service.wire.messages import Task

MIN_ROUNDS, MAX_ROUNDS = 3, 12
"""The deviation of fewer than three ratios says little; what twelve leave open, their mean decides,
so that a duel ends."""
SURE = 3.0
"""Standard errors by which an outcome must be clear: by chance, one duel in hundreds is wrong."""
MIN_SPREAD = 0.03
"""The minimum standard deviation of a round's ratio: few rounds may agree by chance."""
MIN_ANSWERS = 104
"""The minimum number of answers to compare, however long that takes: of fewer, two that differ by
chance would rule out an engine whose answers differ once in a hundred."""

T = TypeVar("T")
Offsets = tuple[int | None, int | None]
"""Where a best answer starts and ends; two None for no answer."""


class Candidate(Protocol):
    """An instance to measure."""

    def start(self) -> None: ...  # to load, without waiting
    def stop(self) -> None: ...  # which frees its memory; `ask` loads it again

    def ask(self, tasks: Sequence[Task]) -> tuple[float, list[Offsets | None]]:
        """Answers a batch; returns the milliseconds it ran, and each best answer, None on error."""


@dataclass(slots=True)
class Record:
    """What is known of a candidate so far.

    Attributes:
        alone_ms: Of each round, the mean time of a question by itself.
        batched_ms: Of each round, the time of its batch over the questions in it.
        ratio: Its time as a share of the reference's; 0 if it has been in no duel.
        answers: By the round's number.
    """

    finding: Finding
    candidate: Candidate
    alone_ms: list[float] = field(default_factory=list)
    batched_ms: list[float] = field(default_factory=list)
    ratio: float = 0.0
    answers: dict[int, list[Offsets | None]] = field(default_factory=dict)
    is_compared: bool = False

    def start(self) -> None:
        self._attempt(self.candidate.start)

    def warm_up(self, questions: Sequence[Task]) -> None:
        """Waits until it is loaded; the first run of a shape also allocates or compiles."""
        self._attempt(lambda: self.candidate.ask(questions[len(questions) // 2 :]))

    def run(self, number: int, questions: Sequence[Task]) -> float:
        """Answers a round's questions, the first half one by one, the second as a batch.

        Returns:
            Milliseconds of a question alone, plus of one in the batch or, if that is faster, alone:
            the scheduler forms batches only where they pay.
        """
        half = len(questions) // 2
        batches = [[task] for task in questions[:half]] + [questions[half:]]
        found = self._attempt(lambda: [self.candidate.ask(batch) for batch in batches])
        if found is None:
            return 0.0
        *alone, (batched_ms, batched) = found
        self.alone_ms.append(statistics.fmean(took_ms for took_ms, _ in alone))
        self.batched_ms.append(batched_ms / len(batched))
        self.answers[number] = [answer for _, its in alone for answer in its] + batched
        return self.alone_ms[-1] + min(self.alone_ms[-1], self.batched_ms[-1])

    def answer(self, number: int, questions: Sequence[Task]) -> None:
        """Answers a round's questions untimed, unless it has answered them."""
        if number not in self.answers:
            found = self._attempt(lambda: self.candidate.ask(questions))
            if found is not None:
                self.answers[number] = found[1]

    def _attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return None if self.finding.failure else step()
        except SetupError as error:
            self.finding = msgspec.structs.replace(self.finding, failure=str(error))
            return None

    def agreement(self, reference: Record) -> tuple[int, int]:
        """How many of its answers equal the reference's, and how many were compared."""
        pairs = [
            pair
            for number in self.answers.keys() & reference.answers.keys()
            for pair in zip(self.answers[number], reference.answers[number], strict=True)
        ]
        return sum(ours == theirs for ours, theirs in pairs), len(pairs)

    def found(self, reference: Record) -> Finding:
        if self.finding.failure or not self.alone_ms:
            return self.finding
        num_same, num_answers = self.agreement(reference) if self.is_compared else (0, 0)
        return msgspec.structs.replace(
            self.finding,
            alone_ms=round(statistics.median(self.alone_ms), 2),
            batched_ms=round(statistics.median(self.batched_ms), 2),
            ratio=round(self.ratio, 3),
            num_answers=num_answers,
            num_same=num_same,
        )


def is_faster(ratios: Sequence[float]) -> bool | None:
    """Whether a candidate replaces the champion, by its time as a share of the champion's.

    It should if it saves `TIE` or more, and should not if it saves nothing; between the two either
    is right. None if another round is needed to be sure.
    """
    if len(ratios) < MIN_ROUNDS:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean, spread = statistics.fmean(logs), max(MIN_SPREAD, statistics.stdev(logs))
    margin = SURE * spread / math.sqrt(len(logs))
    seems_faster = mean < math.log(1 - TIE / 2)
    is_safe = mean + margin < 0.0 if seems_faster else mean - margin > math.log(1 - TIE)
    return seems_faster if is_safe or len(ratios) >= MAX_ROUNDS else None


class Race:
    """Compares candidates: the reference, then the others, the likely fastest first.

    Args:
        limit_s: No other candidate begins after this time.
        end_s: After this time, no more answers are compared than `MIN_ANSWERS`.
    """

    def __init__(
        self,
        records: Sequence[Record],
        rounds: Sequence[Sequence[Task]],
        min_agreement: float,
        *,
        elapsed_s: Callable[[], float],
        say: Callable[[str, int], object],
        limit_s: float = math.inf,
        end_s: float = math.inf,
    ) -> None:
        self._reference, *self._others = records
        self._rounds = rounds
        self._max_different = 1 - min_agreement
        self._num_questions = sum(map(len, rounds))
        self._elapsed_s, self._say = elapsed_s, say
        self._limit_s, self._end_s = limit_s, end_s

    def run(self) -> list[Finding]:
        reference = self._reference
        for record in [reference, *self._others[:1]]:
            record.start()  # both load at the same time
        reference.warm_up(self._rounds[0])
        self._check_reference()
        reference.ratio = 1.0
        self._time_all()
        reference.is_compared = True
        timed = [record for record in self._others if record.ratio and not record.finding.failure]
        # Answers of the fastest, then of the next, until one's are the reference's.
        for record in sorted(timed, key=lambda record: record.ratio):
            if reference.finding.is_eligible and record.ratio > 1 - TIE:
                break
            if self._agrees(record):
                break
        return [record.found(reference) for record in [reference, *self._others]]

    def _check_reference(self) -> None:
        finding = self._reference.finding
        if finding.failure:
            raise SetupError(f"{finding} cannot run: {finding.failure}")

    def _time_all(self) -> None:
        champion = self._reference
        for number, record in enumerate(self._others):
            if number and self._elapsed_s() >= self._limit_s:
                break
            self._say(str(record.finding), number + 1)
            record.start()
            record.warm_up(self._rounds[0])
            loser = record
            is_champion = self._duel(record, champion) or not champion.finding.is_eligible
            if is_champion and not record.finding.failure:
                loser, champion = champion, record
            if loser is not self._reference:
                loser.candidate.stop()

    def _duel(self, record: Record, champion: Record) -> bool:
        """Whether a candidate is faster than the fastest so far."""
        ratios: list[float] = []
        verdict = None
        while verdict is None:
            number = len(ratios) % len(self._rounds)
            pair = (record, champion) if len(ratios) % 2 else (champion, record)
            took_ms = {id(one): one.run(number, self._rounds[number]) for one in pair}
            self._check_reference()
            if record.finding.failure:
                return False
            if champion.finding.failure:
                return self._duel(record, self._reference)
            ratios.append(took_ms[id(record)] / took_ms[id(champion)])
            verdict = is_faster(ratios)
        record.ratio = champion.ratio * statistics.median(ratios)
        return verdict

    def _agrees(self, record: Record) -> bool:
        self._say(f"the answers of {record.finding}", len(self._others))
        both = (record, self._reference)
        with ThreadPoolExecutor(len(both)) as threads:
            for number, questions in enumerate(self._rounds):
                num_same, num_answers = record.agreement(self._reference)
                # A candidate that seems to disagree gets all questions.
                if num_answers - num_same > self._max_different * self._num_questions:
                    break
                is_late = num_answers >= MIN_ANSWERS and self._elapsed_s() >= self._end_s
                if is_late and self._is_enough(num_same, num_answers):
                    break
                asked = [threads.submit(one.answer, number, questions) for one in both]
                for one in asked:
                    one.result()
        self._check_reference()
        record.is_compared = True
        return self._is_enough(*record.agreement(self._reference))

    def _is_enough(self, num_same: int, num_answers: int) -> bool:
        return num_answers - num_same <= self._max_different * num_answers
