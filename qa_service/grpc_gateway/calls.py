"""One gRPC call: who makes it, what it shows, and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import msgspec

from qa_service.errors import DeadlineExceededError
from qa_service.wire.messages import Request

MIN_TIMEOUT_MS = 0.001


class Caller:
    """What a call's context says of its caller.

    Args:
        context: The call's.

    Attributes:
        peer: The address of its connection.
        token: The bearer token that it shows; empty for none.
        traceparent: The trace that it belongs to; empty for none.
        wants_status: Whether an error is to end its stream, as Triton's `triton_grpc_error` has it.
    """

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        scheme, _, token = metadata.get("authorization", "").partition(" ")
        self.peer: str = context.peer()
        self.token = token.strip() if scheme.lower() == "bearer" else ""
        self.traceparent = metadata.get("traceparent", "")
        self.wants_status = metadata.get("triton_grpc_error", "").lower() == "true"
        self._context = context

    def limit(self, requests: Sequence[Request]) -> list[Request]:
        """The call's questions with its deadline and its trace.

        Raises:
            DeadlineExceededError: Its time is over.
        """
        left_s = self._context.time_remaining()
        return [self._limit(request, left_s) for request in requests]

    def _limit(self, request: Request, left_s: float | None) -> Request:
        timeout_ms = request.timeout_ms
        if left_s is not None:
            left_ms = left_s * 1e3
            if left_ms < MIN_TIMEOUT_MS:
                raise DeadlineExceededError
            timeout_ms = min(left_ms, timeout_ms or left_ms)
        return msgspec.structs.replace(request, timeout_ms=timeout_ms, traceparent=self.traceparent)
