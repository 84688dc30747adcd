"""A client's calls: each is made of a request, and in flight until it has ended.

A call is abandoned if its client has disconnected or wants no reply: it is cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from qa_service.errors import CancelledError, QaError
from qa_service.net.timers import Clock
from qa_service.server.front.timeouts import Timeouts
from qa_service.server.front.tokens import Grant
from qa_service.server.scheduling.call import Call, Scope
from qa_service.server.services.tracing import Tracer
from qa_service.server.telemetry.metrics import ABANDONED, Metrics
from qa_service.wire.codec import Codec
from qa_service.wire.messages import Request

logger = logging.getLogger(__name__)


class Calls:
    """The calls of a connection.

    Args:
        name: The client's name, with which those of its calls begin.
    """

    def __init__(self, name: str, clock: Clock, metrics: Metrics, tracer: Tracer | None) -> None:
        self.in_flight: set[Call] = set()
        self._name = name
        self._clock = clock
        self._metrics = metrics
        self._tracer = tracer
        self._num_requests = 0

    def begin(self, request: Request, grant: Grant, codec: Codec, times: Timeouts) -> Call:
        """Makes a call of a request that has just come; it is in flight from now on."""
        now_s = self._clock.now_s()
        max_timeout_s = timeout_s = times.request_timeout_s
        if request.timeout_ms is not None:
            timeout_s = min(timeout_s, request.timeout_ms / 1e3)
        self._num_requests += 1
        name = f"{self._name}#{self._num_requests}"
        flow, weight = grant.share(request.priority)
        trace = codec.trace_of(request)
        scope = Scope(
            now_s, now_s + timeout_s, flow, weight, trace.trace_id, name,
            max_timeout_s=max_timeout_s,
        )  # fmt: skip
        call = Call(request, scope)
        if self._tracer:
            self._tracer.begin(call, trace, codec, self._name, times.message_since_s)
        if logger.isEnabledFor(logging.DEBUG):
            extra = call.scope.log_extra
            logger.debug("request %s: received, its id is %r", name, request.id_json, extra=extra)
        self.in_flight.add(call)
        return call

    def cancel(self, id_json: bytes) -> None:
        """Fails the calls whose requests have this id, as the client has asked."""
        for call in [call for call in self.in_flight if call.request.id_json == id_json]:
            call.fail(CancelledError())

    def fail_all(self, error: QaError) -> None:
        for call in list(self.in_flight):
            call.fail(error)

    def abandon(self, requests: Collection[Request]) -> None:
        """Cancels the calls of these requests."""
        for call in [c for c in self.in_flight if any(c.request is r for r in requests)]:
            self._abandon(call)

    def abandon_all(self) -> None:
        for call in list(self.in_flight):
            self._abandon(call)

    def _abandon(self, call: Call) -> None:
        logger.debug("request %s: abandoned", call.scope.name, extra=call.scope.log_extra)
        self.in_flight.discard(call)
        call.cancel()
        self._metrics.requests_total[ABANDONED] += 1
