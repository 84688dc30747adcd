"""A service that copies some requests to another version, and compares the answers.

    submit ──▶ the version that answers ──────▶ resolved, as without a shadow
       └──some, if an instance is idle──▶ copy ──▶ another version ──▶ compared, counted, dropped

A copy is made only if the other version has an idle instance, so no request waits for a copy.
Copies have a separate flow: they take nothing from the client's share. They change neither the
answer nor its time. A copy is never copied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.services.service import Service
from qa_service.server.telemetry.services import ShadowCounts
from qa_service.wire.messages import Answer, Answered

FLOW = "shadow copy"
"""No client's flow has this name: neither a token's name nor an address has a space."""


class _Pair(msgspec.Struct, eq=False):
    """A request and its copy, with the best answer of each once it has one."""

    counts: ShadowCounts
    copy: Call
    answer: Answer | None = None
    copys_answer: Answer | None = None

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            self.answer = outcome.answers[0]
            self._compare()
        else:
            self._drop()

    def take_copys(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Answered):
            self.counts.outcomes["failed"] += 1
            return
        if not outcome.source.is_cached:
            self.counts.request_ms.observe(outcome.timings.queue + outcome.timings.inference)
        self.copys_answer = outcome.answers[0]
        self._compare()

    def drop_if_cancelled(self, call: Call) -> None:
        if call.is_cancelled:
            self._drop()

    def _drop(self) -> None:
        """Counts a copy that has nothing to be compared with, unless it failed; cancels it."""
        if self.copys_answer or not self.copy.is_settled:
            self.counts.outcomes["unpaired"] += 1
        self.copy.cancel()

    def _compare(self) -> None:
        if self.answer and self.copys_answer:
            here = (self.answer.start, self.answer.end)
            there = (self.copys_answer.start, self.copys_answer.end)
            self.counts.outcomes["agreed" if here == there else "differed"] += 1


class ShadowedModel(Service, Protocol):
    """A model whose versions may get copies of requests."""

    @property
    def name(self) -> str: ...

    @property
    def shadow(self) -> Mapping[int, int]:
        """Percent of the requests, by version, as it is planned now."""

    def is_idle(self, version: int) -> bool:
        """Whether an instance of a version has nothing to do."""


@dataclass(frozen=True, eq=False)
class Shadow:
    """Copies one version's requests to other versions of the model, as its plan says."""

    service: Service
    model: ShadowedModel
    version: int
    counts_of: Callable[[int], ShadowCounts]
    draw: Callable[[], float] = random.random

    def submit(self, call: Call) -> None:
        """Passes a call on, and copies it where that is drawn and an instance is idle."""
        self.service.submit(call)
        if call.is_settled or call.scope.flow == FLOW:
            return  # answered from the cache, refused, or a copy
        for version, percent in self.model.shadow.items():
            if version == self.version:
                continue
            counts = self.counts_of(version)
            counts.seen += 1
            if self.draw() * 100 >= percent:
                continue
            if not self.model.is_idle(version):
                counts.outcomes["dropped"] += 1
                continue
            request = msgspec.structs.replace(call.request, model=self.model.name, version=version)
            scope = call.scope.derive(f"[{version}]", flow=FLOW, weight=1.0, span=None)
            copy = Call(request, scope)  # no child: where the call is answered first, it goes on
            pair = _Pair(counts, copy)
            call.then(pair.take)
            call.on_end(pair.drop_if_cancelled)
            copy.then(pair.take_copys)
            self.model.submit(copy)
