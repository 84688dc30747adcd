"""What an error is in each protocol: a row for each kind in `errors`. Sans-IO.

Frames carry the kind's own code; HTTP has a status, TensorFlow Serving and gRPC mostly the one that
follows from it, and Triton's metrics a reason.
"""

from __future__ import annotations

from typing import NamedTuple

from qa_service.errors import HttpError, QaError


class ErrorRow(NamedTuple):
    """An error in other protocols than frames.

    Attributes:
        triton_reason: How Triton's `nv_inference_request_failure` counts it; empty for a message
            that never was a request.
        tf_serving_status: TensorFlow Serving's; 0 if it is the same.
        grpc_code: Empty if it is that of the HTTP status, by `GRPC_CODES`.
    """

    status: int
    triton_reason: str = "OTHER"
    tf_serving_status: int = 0
    grpc_code: str = ""


ERRORS = {
    "internal_error": ErrorRow(500, "BACKEND"),
    "invalid_frame": ErrorRow(400, ""),
    "invalid_request": ErrorRow(400),
    "duplicate_id": ErrorRow(400),
    "unauthorized": ErrorRow(401, ""),
    "forbidden": ErrorRow(403, ""),
    "tls_required": ErrorRow(400, ""),
    "unknown_model": ErrorRow(404),
    "unknown_collection": ErrorRow(404),
    "question_too_long": ErrorRow(400),
    "frame_too_large": ErrorRow(413, ""),
    "frame_timeout": ErrorRow(408, ""),
    "invalid_http": ErrorRow(400, ""),  # but for an `HttpError` with a status of its own
    "queue_full": ErrorRow(503, "REJECTED", 429, "RESOURCE_EXHAUSTED"),
    "text_too_long": ErrorRow(400),
    "cancelled": ErrorRow(499, "CANCELED"),  # in a span alone: over HTTP nothing is cancelled
    "deadline_exceeded": ErrorRow(504, "REJECTED"),
    "execution_timeout": ErrorRow(504, "BACKEND"),
    "shutting_down": ErrorRow(503),
    "unavailable": ErrorRow(503),
    "worker_crashed": ErrorRow(500, "BACKEND"),
}

GRPC_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    414: "INVALID_ARGUMENT",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The code for each HTTP status; for all others it is INTERNAL."""


def status_of(error: QaError) -> int:
    return error.status if isinstance(error, HttpError) else ERRORS[error.code].status


def header_fields_of(error: QaError) -> dict[str, str]:
    if isinstance(error, HttpError):
        return dict(error.fields)
    return {"WWW-Authenticate": "Bearer"} if status_of(error) == 401 else {}


def tf_serving_status_of(error: QaError) -> int:
    return ERRORS[error.code].tf_serving_status or status_of(error)


def grpc_code_of(error: QaError) -> str:
    return ERRORS[error.code].grpc_code or GRPC_CODES.get(status_of(error), "INTERNAL")
