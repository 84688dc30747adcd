"""`grpc.health.v1.Health`: whether the server is ready, or one of its models, by its name.

The empty name and the inference service's stand for the server, whose state takes no token; as
over HTTP, a model's state takes one if the server wants tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from qa_service.errors import HttpError, QaError, UnavailableError
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    Caller,
    PeerLostError,
    abort,
    read_message,
    write,
)
from qa_service.sidecars.grpc_gateway.reports import Reports, model_path

POLL_S = 1.0
"""How soon a watch reports a change; a watch costs the loop one report in that time."""
_Request: Any = health_pb2.HealthCheckRequest
_Response: Any = health_pb2.HealthCheckResponse


class HealthService:
    """Answers the methods; with NOT_SERVING once `draining` is set."""

    def __init__(self, reports: Reports, draining: asyncio.Event) -> None:
        self._reports = reports
        self._draining = draining

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods, for a grpcio server."""
        codecs = (None, _Response.SerializeToString)
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, *codecs),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, *codecs),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    async def _check(self, data: bytes, context: Any) -> Any:  # noqa: ANN401 - no types
        try:
            request = read_message(_Request, data)
            return _Response(status=await self._status(request.service, Caller(context).token))
        except QaError as error:
            await abort(context, error)

    async def _watch(self, data: bytes, context: Any) -> None:  # noqa: ANN401
        """Reports each change; ends when the gateway drains."""
        last_sent, is_last = None, False
        try:
            service, token = read_message(_Request, data).service, Caller(context).token
            while not is_last:
                is_last = self._draining.is_set()
                try:
                    status = await self._status(service, token)
                except HttpError as error:
                    if error.status != 404:
                        raise
                    status = _Response.SERVICE_UNKNOWN
                if status != last_sent:
                    await write(context, _Response(status=status))
                    last_sent = status
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._draining.wait(), POLL_S)
        except QaError as error:
            await abort(context, error)
        except PeerLostError:
            return

    async def _status(self, service: str, token: str) -> int:
        if self._draining.is_set():
            return int(_Response.NOT_SERVING)
        is_server = service in {"", INFERENCE_SERVICE}
        target = "/v2/health/ready" if is_server else model_path(service, "", "/ready")
        try:
            is_serving = await self._reports.probe(target, "" if is_server else token)
        except UnavailableError:
            is_serving = False
        return int(_Response.SERVING if is_serving else _Response.NOT_SERVING)
