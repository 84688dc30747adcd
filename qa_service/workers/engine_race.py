"""Finds the fastest of some engines that answers as the reference does, in as few runs as are safe.

    reference ──duel── likely fastest ──duel── next likely ──duel── ...     who is faster
        └─────────────── answers to all questions ──────────── winner       and says the same

In a duel two candidates get the same questions in turn, round by round, some alone and some
together. What is compared are times of one round, so that other work on the machine slows both
alike. A duel ends when its outcome is safe. Candidates come in the order in which they are likely
to be fast; once the time is up no other one begins, and the table says which have not run.

No I/O of its own: candidates answer, and the caller says how long it takes already.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from qa_service.errors import SetupError
from qa_service.wire.messages import Task
from qa_service.workers.engine_table import TIE, Finding

MIN_ROUNDS, MAX_ROUNDS = 3, 12
SURE = 3.0
"""By how many standard errors an outcome must be clear."""
MIN_SPREAD = 0.03
"""Of few rounds that agree by chance, how much their ratios are thought to differ."""
MIN_ANSWERS = 104
"""So many answers are compared, however long that takes: of fewer, two that differ by chance would
rule out an engine of which one in a hundred differs."""

Span = tuple[int | None, int | None]


class Candidate(Protocol):
    """What is measured: an instance."""

    def start(self) -> None:
        """Begins to load, and does not wait for it."""

    def stop(self) -> None:
        """Gives its memory back; it loads again if it is asked again."""

    def ask(self, tasks: Sequence[Task]) -> tuple[float, list[Span | None]]:
        """Answers a batch; returns the milliseconds it took, and where the best answers stand.

        Raises:
            SetupError: It cannot run.
        """


@dataclass(slots=True)
class Record:
    """What is known of a candidate so far.

    Attributes:
        alone_ms: A question by itself, in each round.
        batched_ms: A question in the batch of each round.
        ratio: Its time as a share of the reference's; 0 if it has been in no duel.
        spans: Its answers to the questions of each round that it was asked.
        is_compared: Whether its answers have been compared with the reference's.
    """

    finding: Finding
    candidate: Candidate
    alone_ms: list[float] = field(default_factory=list)
    batched_ms: list[float] = field(default_factory=list)
    ratio: float = 0.0
    spans: dict[int, list[Span | None]] = field(default_factory=dict)
    is_compared: bool = False

    def start(self) -> None:
        """Begins to load."""
        self._attempt(self.candidate.start)

    def warm_up(self, questions: Sequence[Task]) -> None:
        """Waits until it is loaded; the first run of a shape also allocates or compiles."""
        self._attempt(lambda: self.candidate.ask(questions[len(questions) // 2 :]))

    def run(self, number: int, questions: Sequence[Task]) -> float:
        """Answers a round's questions, the first half one by one; returns its milliseconds.

        Half of that is alone, half in batches, which run only where they pay.
        """
        self._attempt(lambda: self._run(number, questions))
        if self.finding.failure:
            return 0.0
        return self.alone_ms[-1] + min(self.alone_ms[-1], self.batched_ms[-1])

    def answer(self, number: int, questions: Sequence[Task]) -> None:
        """Answers a round's questions, if it has not, without being timed."""
        if number not in self.spans:
            self._attempt(lambda: self._answer(number, questions))

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            if not self.finding.failure:
                step()
        except SetupError as error:
            self.finding = msgspec.structs.replace(self.finding, failure=str(error))

    def _run(self, number: int, questions: Sequence[Task]) -> None:
        half = len(questions) // 2
        results = [self.candidate.ask([task]) for task in questions[:half]]
        batched_ms, spans = self.candidate.ask(questions[half:])
        self.alone_ms.append(statistics.fmean(took_ms for took_ms, _ in results))
        self.batched_ms.append(batched_ms / len(spans))
        self.spans[number] = [span for _, found in results for span in found] + spans

    def _answer(self, number: int, questions: Sequence[Task]) -> None:
        self.spans[number] = self.candidate.ask(questions)[1]

    def agreement(self, reference: Record) -> tuple[int, int]:
        """How many of its answers are the reference's, and how many are known of both."""
        pairs = [
            pair
            for number in self.spans.keys() & reference.spans.keys()
            for pair in zip(self.spans[number], reference.spans[number], strict=True)
        ]
        return sum(ours == theirs for ours, theirs in pairs), len(pairs)

    def found(self, reference: Record) -> Finding:
        """What is to be said of it."""
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
    """Whether a candidate takes the place of the one that it is compared with.

    It should if it saves `TIE` or more, and should not if it saves nothing; between the two either
    is right.

    Args:
        ratios: Its time as a share of the other's, in each round so far.

    Returns:
        None if another round is needed to be sure.
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
    """Compares candidates.

    Args:
        records: The candidates: the reference, then the others, the likely fastest first.
        rounds: The questions of each round.
        min_agreement: The share of the answers that must be the reference's.
        elapsed_s: How long it takes already.
        say: Told what is done, and how many candidates are done.
        limit_s: After so long no other candidate begins.
        end_s: After so long no more answers are compared than must be.
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
        """What was found of each candidate.

        Raises:
            SetupError: The reference cannot run.
        """
        reference = self._reference
        for record in [reference, *self._others[:1]]:
            record.start()  # both load at the same time
        reference.warm_up(self._rounds[0])
        self._check_reference()
        reference.ratio = 1.0
        self._time_all()
        self._compare_answers()
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
            is_champion = self._duel(record, champion) or not champion.finding.may_be_taken
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

    def _compare_answers(self) -> None:
        """Compares answers of the fastest, then of the next, until one's are the reference's."""
        self._reference.is_compared = True
        timed = [record for record in self._others if record.ratio and not record.finding.failure]
        for record in sorted(timed, key=lambda record: record.ratio):
            if self._reference.finding.may_be_taken and record.ratio > 1 - TIE:
                break
            if self._agrees(record):
                break

    def _agrees(self, record: Record) -> bool:
        """Whether a candidate answers as the reference does."""
        self._say(f"the answers of {record.finding}", len(self._others))
        both = (record, self._reference)
        with ThreadPoolExecutor(len(both)) as threads:
            for number, questions in enumerate(self._rounds):
                if self._is_decided(*record.agreement(self._reference)):
                    break
                asked = [threads.submit(one.answer, number, questions) for one in both]
                for one in asked:
                    one.result()
        self._check_reference()
        record.is_compared = True
        return self._is_enough(*record.agreement(self._reference))

    def _is_decided(self, num_same: int, num_answers: int) -> bool:
        """Whether no more answers are compared; what seems too few is made sure of."""
        if num_answers - num_same > self._max_different * self._num_questions:
            return True
        is_late = num_answers >= MIN_ANSWERS and self._elapsed_s() >= self._end_s
        return is_late and self._is_enough(num_same, num_answers)

    def _is_enough(self, num_same: int, num_answers: int) -> bool:
        """Whether the share of equal answers is as large as it must be."""
        return num_answers - num_same <= self._max_different * num_answers
