"""The table of measured engines: one finding for each candidate, and which of them to take.

The program that measures engines and the loop exchange two messages:

loop ──TrialRequest──▶ program    once
loop ◀──TrialReply── program      once; end-of-file without one means that it died
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions, plural
from qa_service.wire.frames import frame_of

MIN_AGREEMENT = 0.94
"""The minimum share of answers in which an engine must agree with fp32 for `auto` to take it: int8
changes about one in twenty, and they are as often right."""
TIE = 0.05
"""The minimum share of the reference's time that a candidate must save: measurements are noisy."""
MAX_MESSAGE_BYTES = 1 << 24
"""A table takes some kilobytes."""


class Finding(msgspec.Struct, frozen=True):
    """A row of the table: a candidate, and what was measured of it.

    Attributes:
        is_eligible: Whether the options allow it; the reference is measured in any case.
        alone_ms: A question by itself, the median of the rounds.
        batched_ms: A question in a batch of four, the median of the rounds.
        ratio: Its time as a share of the reference's: the product of its duel's median ratio and
            the ratio of the candidate that it duelled with.
        num_answers: How many answers were compared; 0 if another candidate was faster.
        num_same: How many of them equal the reference's.
        failure: Why it cannot run; empty if it can.
    """

    engine_type: str
    precision: str
    intra_op_num_threads: int = 1
    is_eligible: bool = True
    alone_ms: float = 0.0
    batched_ms: float = 0.0
    ratio: float = 0.0
    num_answers: int = 0
    num_same: int = 0
    failure: str = ""

    @property
    def agreement(self) -> float:
        """The share of its answers that equal the reference's; 0 if none was compared."""
        return self.num_same / self.num_answers if self.num_answers else 0.0

    @property
    def is_measured(self) -> bool:
        """Whether it ran, or is known not to run."""
        return bool(self.failure or self.alone_ms)

    def __str__(self) -> str:
        threads = "" if self.intra_op_num_threads == 1 else f", {self.intra_op_num_threads} threads"
        return f"{self.engine_type} {self.precision}{threads}"


class EngineTable(msgspec.Struct, frozen=True):
    """The findings of all candidates; the first is the reference.

    Attributes:
        measured_on: The day, as in 2026-11-28.
    """

    processor: str
    min_agreement: float
    findings: tuple[Finding, ...]
    measured_on: str = ""

    @property
    def best(self) -> Finding | None:
        """The fastest candidate that answers as the reference does; the reference on a tie.

        If the reference may not be taken and no candidate agrees, the one that agrees most. None if
        all candidates that may be taken have failed.
        """
        able = [item for item in self.findings if item.is_eligible and item.num_answers]
        agreeing = [item for item in able if item.agreement >= self.min_agreement]
        if not agreeing:
            return max(able, key=lambda item: item.agreement, default=None)
        fastest = min(agreeing, key=lambda item: item.ratio)
        reference = self.findings[0]
        is_tie = reference.is_eligible and fastest.ratio > 1 - TIE
        return reference if is_tie else fastest

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was measured; a start leaves the likely slowest out."""
        return all(item.is_measured for item in self.findings)

    @property
    def reason(self) -> str:
        """Why `best` is the best, for the ready line."""
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
    """What to measure before an engine can be chosen.

    Attributes:
        setup: The first instance's, with its engine open.
        findings: All candidates, the reference first; those that cannot run have a `failure`.
        path: The file for the table.
    """

    setup: Setup
    findings: tuple[Finding, ...]
    processor: str
    path: str

    @property
    def candidates(self) -> list[tuple[Finding, Setup]]:
        """The candidates that can run, each with its instance's setup."""
        able = [item for item in self.findings if not item.failure]
        return [(item, setup_on_trial(self.setup, item)) for item in able]

    def with_next_reference(self, failure: str) -> Measurement | None:
        """The same where the reference cannot run: another in float32 is it; None without one.

        A GPU whose ONNX Runtime lacks a library still has PyTorch.
        """
        first, *others = self.findings
        able = (item for item in others if item.precision == "fp32" and not item.failure)
        if (reference := next(able, None)) is None:
            return None
        rest = [item for item in others if item is not reference]
        broken = msgspec.structs.replace(first, failure=failure)
        return msgspec.structs.replace(self, findings=(reference, *rest, broken))

    def table(self, measured: Sequence[Finding]) -> EngineTable:
        """The table, with the measured findings of `candidates` in their order."""
        news = iter(measured)
        findings = tuple(item if item.failure else next(news) for item in self.findings)
        today = time.strftime("%Y-%m-%d")
        return EngineTable(self.processor, MIN_AGREEMENT, findings, today)

    def choice(self, table: EngineTable | None) -> Choice:
        """The table's best engine; without a table, the first that may be taken."""
        able = (item for item in self.findings if item.is_eligible and not item.failure)
        best = table.best if table else None
        return Choice(with_engine(self.setup.options, best or next(able)), table)


class Choice(msgspec.Struct, frozen=True):
    """A version's options with an engine; the table is None if nothing was measured."""

    options: InstanceOptions
    table: EngineTable | None = None


def with_engine(options: InstanceOptions, finding: Finding) -> InstanceOptions:
    return msgspec.structs.replace(
        options,
        inference_engine_type=finding.engine_type,
        precision=finding.precision,
        intra_op_num_threads=finding.intra_op_num_threads,
    )


def setup_on_trial(setup: Setup, candidate: Finding) -> Setup:
    """The setup of a candidate's instance; it neither measures nor compiles anything meanwhile.

    Hooks are left out: the engines are compared.
    """
    options = with_engine(setup.options, candidate)
    options = msgspec.structs.replace(options, cost_table="off", static_shapes_bytes=0, hooks=None)
    device = msgspec.structs.replace(setup.device, may_fall_back=False)
    return msgspec.structs.replace(setup, options=options, device=device)


class TrialRequest(msgspec.Struct, frozen=True):
    """What to measure, and the log of the instances that run it.

    Attributes:
        is_beside: Whether the server serves meanwhile, and has the processor first.
    """

    measurement: Measurement
    logs: LogOptions
    is_beside: bool = False


class TrialReply(msgspec.Struct, frozen=True):
    """The table; None and the reason if the reference could not run."""

    table: EngineTable | None = None
    failure: str = ""


def encode_trial(message: TrialRequest | TrialReply) -> bytes:
    return frame_of(msgspec.msgpack.encode(message))
