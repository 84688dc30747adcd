"""Chooses the requests that are traced, and records their spans.

    ask                    from arrival to outcome
    ├── receive            from a message's first byte, if it came in pieces
    ├── queue              until an instance began with it
    └── inference          in its batch
        ├── tokenize
        ├── model
        └── read

Behind a cascade, `queue` and `inference` are under a `model` span for each model that was asked. A
request that is not traced has no span, and costs only that check.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from qa_service.instance.worker_messages import Results
from qa_service.net.timers import Clock
from qa_service.server.scheduling.call import Call, Outcome
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.telemetry.metrics import ABANDONED, STAGES
from qa_service.wire.codec import Codec
from qa_service.wire.error_codes import status_of
from qa_service.wire.messages import Answered
from qa_service.wire.traces import AttributeValue, Span, Trace, TraceContext


@dataclass(eq=False)
class Tracer:
    """Chooses the requests that are traced, and passes their traces on.

    Args:
        sample_rate: The share, 0 to 1, of the requests without a trace id that are traced.
        take: Takes a trace when its request ends; its outcome is added later in that round.
    """

    clock: Clock
    sample_rate: float
    take: Callable[[Trace], None]
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self.server = ""

    def begin(
        self,
        call: Call,
        context: TraceContext,
        codec: Codec,
        client: str,
        since_s: float | None = None,
    ) -> None:
        """Traces a new request if its client does, or if it is drawn.

        Args:
            since_s: When the first byte came, if the message came in pieces; else None.
        """
        is_drawn = not context.trace_id and self.draw() < self.sample_rate
        if not (is_drawn or (context.trace_id and context.is_sampled)):
            return
        trace_id = context.trace_id or f"{random.getrandbits(128) or 1:032x}"
        scope, request = call.scope, call.request
        root = Span("ask", since_s or scope.arrived_s, attributes={
            **codec.span_attributes(request),
            **_address("server", self.server),
            **_address("client", client),
            "qa.request": scope.name,
            "qa.question_chars": len(request.question),
            "qa.text_chars": len(request.text),
        })  # fmt: skip
        if since_s:
            root.child("receive", since_s, scope.arrived_s)
        call.scope = msgspec.structs.replace(scope, trace_id=trace_id, span=root)
        record(call, root, self.clock)
        trace = Trace(trace_id, context.parent_id, root)
        call.on_end(lambda _: self.take(trace))


def _address(whose: str, address: str) -> dict[str, AttributeValue]:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return {f"{whose}.address": address}
    return {f"{whose}.address": host.strip("[]"), f"{whose}.port": int(port)}


def record(call: Call, span: Span, clock: Clock) -> None:
    """Ends a span with its call, and notes the outcome."""
    call.then(partial(_note_outcome, span))
    call.on_end(partial(_end, span, clock))


def record_model(call: Call, model: str, parent: Span, clock: Clock) -> None:
    """Records one model of a cascade under a separate span."""
    span = parent.child("model", clock.now_s(), attributes={"qa.model": model})
    call.scope = msgspec.structs.replace(call.scope, span=span)
    record(call, span, clock)


def record_run(ticket: Ticket, parent: Span, results: Results, batch_size: int) -> None:
    began_s, end_s = results.started_s, results.started_s + results.inference_ms / 1e3
    attributes: dict[str, AttributeValue] = {"qa.batch_size": batch_size}
    if ticket.attempts:
        attributes["qa.attempts"] = ticket.attempts + 1
    if ticket.core:
        attributes["qa.segment"] = "{}:{}".format(*ticket.core)
    parent.child("queue", ticket.arrived_s, began_s)
    run = parent.child("inference", began_s, end_s, attributes)
    for stage in STAGES:
        end_s = began_s + getattr(results.stages_ms, stage) / 1e3
        run.child(stage, began_s, end_s)
        began_s = end_s


def _end(span: Span, clock: Clock, call: Call) -> None:
    span.end_s = clock.now_s()
    if call.is_cancelled:
        span.attributes["error.type"] = ABANDONED


def _note_outcome(span: Span, outcome: Outcome) -> None:
    if isinstance(outcome, Answered):
        source = outcome.source
        span.attributes |= {
            "qa.model": source.model,
            "qa.version": source.version,
            "qa.cached": source.is_cached,
            "qa.score": outcome.answers[0].score,
        }
        if source.models_asked:
            span.attributes["qa.models_asked"] = source.models_asked
    else:
        span.attributes["error.type"] = outcome.code
        span.is_error = status_of(outcome) >= 500
