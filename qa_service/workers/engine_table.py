"""What was measured of engines: one finding a candidate, and which of them to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from qa_service.logs import plural
from qa_service.workers.messages import Setup
from qa_service.workers.options import InstanceOptions

TIE = 0.05
"""A candidate must save at least this share of the reference's time: measurements are noisy."""


class Finding(msgspec.Struct, frozen=True):
    """What was found of one candidate.

    Attributes:
        may_be_taken: Whether the options leave it open; the reference is measured in any case.
        alone_ms: A question by itself, the median of the rounds.
        batched_ms: A question in a batch of four.
        ratio: Its time as a share of the reference's, by the medians of the rounds; by way of the
            candidate that it was compared with.
        num_answers: How many answers were compared; 0 if another was faster.
        num_same: How many of them are the reference's.
        failure: Why there is nothing else; empty if there is.
    """

    engine_type: str
    precision: str
    intra_op_num_threads: int = 1
    may_be_taken: bool = True
    alone_ms: float = 0.0
    batched_ms: float = 0.0
    ratio: float = 0.0
    num_answers: int = 0
    num_same: int = 0
    failure: str = ""

    @property
    def agreement(self) -> float:
        """The share of its answers that are the reference's; 0 if they were not compared."""
        return self.num_same / self.num_answers if self.num_answers else 0.0

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.failure or self.alone_ms)

    def __str__(self) -> str:
        threads = "" if self.intra_op_num_threads == 1 else f", {self.intra_op_num_threads} threads"
        return f"{self.engine_type} {self.precision}{threads}"


class EngineTable(msgspec.Struct, frozen=True):
    """What was found of every candidate; the first is the reference."""

    processor: str
    min_agreement: float
    findings: tuple[Finding, ...]

    @property
    def best(self) -> Finding | None:
        """The fastest that answers as the reference does; the reference itself on a tie.

        Where the reference may not be taken and no candidate agrees, the one that agrees most.
        None if all that may be taken have failed.
        """
        able = [item for item in self.findings if item.may_be_taken and item.num_answers]
        agreeing = [item for item in able if item.agreement >= self.min_agreement]
        if not agreeing:
            return max(able, key=lambda item: item.agreement, default=None)
        fastest = min(agreeing, key=lambda item: item.ratio)
        reference = self.findings[0]
        is_tie = reference.may_be_taken and fastest.ratio > 1 - TIE
        return reference if is_tie else fastest

    @property
    def is_whole(self) -> bool:
        """Whether every candidate was measured; a start takes no time for the unlikely ones."""
        return all(item.is_measured for item in self.findings)

    @property
    def reason(self) -> str:
        """Why, for the ready line."""
        best, reference = self.best, self.findings[0]
        if best is None:
            return ""
        if best == reference:
            words = "nothing else measured faster with the same answers"
        else:
            words = f"{best.ratio:.2f} of the time of {reference}"
            words += f", {best.agreement:.1%} of its answers"
        left = sum(not item.is_measured for item in self.findings)
        return f"{words}; {plural(left, 'likely slower one')} not measured" if left else words

    def __str__(self) -> str:
        lines = [
            f"milliseconds of a question, by engine ({self.processor}; {self.min_agreement:.0%} of "
            f"the answers must be those of {self.findings[0]})",
            f"{'engine':30}{'alone':>9}{'in fours':>11}{'time':>8}{'same answers':>14}",
        ]
        for item in self.findings:
            same = f"{item.num_same} of {item.num_answers}" if item.num_answers else "not asked"
            cells = f"{item.alone_ms:9.2f}{item.batched_ms:11.2f}{item.ratio:8.2f}{same:>14}"
            mark = "  taken" if item == self.best else ""
            if not item.alone_ms:
                cells = f" {item.failure or 'not measured yet'}"
            lines.append(f"{item!s:30}{cells}{mark}")
        return "\n".join(lines)


class Measurement(msgspec.Struct, frozen=True):
    """A choice for which engines have to be measured.

    Attributes:
        setup: The first instance, with its engine left open.
        findings: Every candidate, the reference first; those that cannot run here say why.
        path: Where the table is kept.
    """

    setup: Setup
    findings: tuple[Finding, ...]
    processor: str
    path: str

    @property
    def candidates(self) -> list[tuple[Finding, Setup]]:
        """What is to be measured, each with the instance that runs it."""
        return [(item, _on_trial(self.setup, item)) for item in self.findings if not item.failure]

    def table(self, measured: Sequence[Finding]) -> EngineTable:
        """All that is known, with what was found of the `candidates`, in their order."""
        news = iter(measured)
        findings = tuple(item if item.failure else next(news) for item in self.findings)
        return EngineTable(self.processor, self.setup.options.min_agreement, findings)

    def choice(self, table: EngineTable | None) -> Choice:
        """The engine to take by the table; without one, the first candidate."""
        able = (item for item in self.findings if item.may_be_taken and not item.failure)
        best = table.best if table else None
        return Choice(with_engine(self.setup.options, best or next(able)), table)


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of a version, its engine filled in; no table if there was nothing to choose."""

    options: InstanceOptions
    table: EngineTable | None = None


def with_engine(options: InstanceOptions, finding: Finding) -> InstanceOptions:
    """The options with an engine, its precision and threads."""
    return msgspec.structs.replace(
        options,
        inference_engine_type=finding.engine_type,
        precision=finding.precision,
        intra_op_num_threads=finding.intra_op_num_threads,
    )


def _on_trial(setup: Setup, candidate: Finding) -> Setup:
    """An instance for the trial: on its device or not at all, and with no measuring of its own."""
    options = msgspec.structs.replace(with_engine(setup.options, candidate), cost_table="off")
    device = msgspec.structs.replace(setup.device, cuda_index=0, may_fall_back=False)
    return msgspec.structs.replace(setup, options=options, device=device)
