"""One gRPC call: who makes it, what it shows, and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import msgspec

from qa_service.errors import DeadlineExceededError
from qa_service.wire.http.http_access import bearer_token
from qa_service.wire.messages import Request

MIN_TIMEOUT_MS = 0.001
"""A call with less time left is not asked: the server takes no timeout of 0."""


class Caller:
    """The caller of a gRPC call, as the call's context has it.

    Attributes:
        token: Empty for none.
        traceparent: Empty for none.
        wants_status: Whether an error ends the stream: Triton's `triton_grpc_error`.
    """

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        self.peer: str = context.peer()
        self.token = bearer_token(metadata)
        self.traceparent = metadata.get("traceparent", "")
        self.wants_status = metadata.get("triton_grpc_error", "").lower() == "true"
        self._context = context

    def limit(self, requests: Sequence[Request]) -> list[Request]:
        """The call's questions with its deadline and its trace.

        Raises:
            DeadlineExceededError: The deadline has passed.
        """
        left_s = self._context.time_remaining()
        left_ms = None if left_s is None else left_s * 1e3
        if left_ms is not None and left_ms < MIN_TIMEOUT_MS:
            raise DeadlineExceededError
        return [
            msgspec.structs.replace(
                request,
                timeout_ms=min(filter(None, (left_ms, request.timeout_ms)), default=None),
                traceparent=self.traceparent,
            )
            for request in requests
        ]
