"""A service that copies some requests to another version, and compares the answers.

    submit ──▶ the version that answers ──────▶ resolved, as without a shadow
       └──some, if an instance is idle──▶ copy ──▶ another version ──▶ compared, counted, dropped

A copy is made only where an instance of the other version has nothing to do, so no request waits
for one. Its flow is its own: it costs its client nothing of its share. What comes of it changes
neither the answer nor when it is given. A copy is never copied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.scheduling.pending import Answered, Outcome, PendingRequest
from qa_service.serving.service import Service
from qa_service.telemetry.services import ShadowCounts
from qa_service.wire.messages import Answer

FLOW = "shadow copy"
"""No client's: neither a token's name nor an address has a space."""


@dataclass(slots=True, eq=False)
class _Pair:
    """A request and its copy.

    Attributes:
        counts: Those of the version that has the copy.
        on_settled: Told what the request came to, before anything is compared.
        copy: The copy.
        answer: The request's best answer, once it has one.
        copys_answer: The copy's.
    """

    counts: ShadowCounts
    on_settled: Callable[[PendingRequest, Outcome], None]
    copy: PendingRequest | None = None
    answer: Answer | None = None
    copys_answer: Answer | None = None

    def compare(self) -> None:
        """Counts whether both found the same, once both have answered."""
        if self.answer and self.copys_answer:
            here = (self.answer.start, self.answer.end)
            there = (self.copys_answer.start, self.copys_answer.end)
            self.counts.outcomes["agreed" if here == there else "differed"] += 1


class Shadow:
    """Copies requests that one version answers to others.

    Args:
        service: The version that answers.
        router: Takes a copy to the version that it names.
        percents: How many percent of the requests are copied to which versions, as of now.
        is_idle: Whether an instance of a version has nothing to do.
        counts_of: Where is counted how a version does.
        draw: Draws a number, 0 to 1.
    """

    def __init__(
        self,
        service: Service,
        router: Service,
        percents: Callable[[], Mapping[int, int]],
        is_idle: Callable[[int], bool],
        counts_of: Callable[[int], ShadowCounts],
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._service = service
        self._router = router
        self._percents = percents
        self._is_idle = is_idle
        self._counts_of = counts_of
        self._draw = draw
        self._pairs: dict[PendingRequest, list[_Pair]] = {}

    def submit(self, pending: PendingRequest) -> None:
        """Passes a request on, and copies it to the versions that it is drawn for."""
        self._service.submit(pending)
        if pending.is_settled or pending.flow == FLOW:
            return  # answered from the cache, refused, or a copy
        for version, percent in self._percents().items():
            if version != pending.source.version:
                self._offer(pending, version, percent)

    def cancel(self, pending: PendingRequest) -> None:
        """Passes a cancellation on; its copies have nothing left to be compared with."""
        self._service.cancel(pending)
        for pair in self._pairs.pop(pending, ()):
            self._drop(pair)

    def _offer(self, pending: PendingRequest, version: int, percent: int) -> None:
        """Copies a request to a version, if it is drawn and an instance is idle."""
        counts = self._counts_of(version)
        counts.seen += 1
        if self._draw() * 100 >= percent:
            return
        if self._is_idle(version):
            self._copy(pending, version, counts)
        else:
            counts.outcomes["dropped"] += 1

    def _copy(self, pending: PendingRequest, version: int, counts: ShadowCounts) -> None:
        pair = _Pair(counts, pending.on_settled)
        pending.on_settled = partial(self._on_settled, pair)
        self._pairs.setdefault(pending, []).append(pair)
        request = msgspec.structs.replace(
            pending.request, model=pending.source.model, version=version
        )
        pair.copy = pending.derive(request, partial(self._on_copy_settled, pair), f"[{version}]")
        pair.copy.flow, pair.copy.weight = FLOW, 1.0
        self._router.submit(pair.copy)

    def _on_settled(self, pair: _Pair, pending: PendingRequest, outcome: Outcome) -> None:
        self._pairs.pop(pending, None)
        pair.on_settled(pending, outcome)
        if isinstance(outcome, Answered):
            pair.answer = outcome.answers[0]
            pair.compare()
        else:
            self._drop(pair)

    def _on_copy_settled(self, pair: _Pair, copy: PendingRequest, outcome: Outcome) -> None:
        if not isinstance(outcome, Answered):
            pair.counts.outcomes["failed"] += 1
            return
        if not copy.source.is_cached:
            pair.counts.request_ms.observe(outcome.timings.queue + outcome.timings.inference)
        pair.copys_answer = outcome.answers[0]
        pair.compare()

    def _drop(self, pair: _Pair) -> None:
        """There is nothing to compare a copy with."""
        copy = pair.copy
        if copy and not copy.is_settled:
            copy.abandon()
            self._router.cancel(copy)
        elif not pair.copys_answer:
            return  # it has failed, and is counted
        pair.counts.outcomes["unpaired"] += 1
