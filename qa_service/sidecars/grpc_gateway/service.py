"""`inference.GRPCInferenceService` and `grpc.health.v1.Health`: each method, and what answers it.

Questions to a model go to the server as frames, all else over HTTP. To the methods that are not
here grpcio itself answers UNIMPLEMENTED.

Health is that of the server, or of one of its models, by its name. The empty name and the inference
service's stand for the server, whose state takes no token; as over HTTP, a model's state takes one
if the server wants tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf import json_format
from grpc_health.v1 import health_pb2

from qa_service.errors import HttpError, QaError, ShuttingDownError, UnavailableError
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    METHODS,
    Caller,
    PeerLostError,
    abort,
    read_call,
    read_message,
    write,
    write_response,
)
from qa_service.sidecars.grpc_gateway.links import PeerLinks
from qa_service.sidecars.grpc_gateway.reports import Reports, model_path
from qa_service.sidecars.grpc_gateway.stream import InferStream

logger = logging.getLogger(__name__)

Message = Any  # of the private pool; protobuf has no types
Context = Any  # grpcio's; it has no types either
_Ask = Callable[[Message, str], Awaitable[object]]


class InferenceService:
    def __init__(self, links: PeerLinks, reports: Reports) -> None:
        self._links = links
        self._reports = reports
        self._streams: set[InferStream] = set()
        self._num_calls = 0
        self._is_draining = False
        self._are_all_answered = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        unary: dict[str, _Ask] = {
            "ServerLive": partial(self._is_well, "live"),
            "ServerReady": partial(self._is_well, "ready"),
            "ModelReady": self._model_ready,
            "ServerMetadata": partial(self._get, lambda _: "/v2"),
            "ModelMetadata": partial(self._get, lambda its: model_path(its.name, its.version)),
            "ModelConfig": self._model_config,
            "ModelStatistics": partial(
                self._get,
                lambda its: (
                    model_path(its.name, its.version, "/stats") if its.name else "/v2/models/stats"
                ),
            ),
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": partial(self._command, "load"),
            "RepositoryModelUnload": partial(self._command, "unload"),
        }
        handlers = {
            name: self._unary(name, partial(self._told, name, ask)) for name, ask in unary.items()
        }
        handlers["ModelInfer"] = self._unary("ModelInfer", self._infer)
        _, response = METHODS["ModelStreamInfer"]
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream_infer, None, response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers)

    async def drain(self) -> None:
        """Refuses later calls; returns when the earlier ones are answered."""
        self._is_draining = True
        for stream in list(self._streams):
            stream.drain()
        if self._num_calls:
            await self._are_all_answered.wait()

    def _begin(self, context: Context) -> None:
        """Counts a call until its last byte is on its way; refuses it while the gateway drains."""
        if self._is_draining:
            raise ShuttingDownError
        self._num_calls += 1
        context.add_done_callback(self._end)

    def _end(self, _: Context) -> None:
        self._num_calls -= 1
        if self._is_draining and not self._num_calls:
            self._are_all_answered.set()

    def _unary(
        self, name: str, answer: Callable[[Message, Context], Awaitable[Message]]
    ) -> grpc.RpcMethodHandler:
        request, response = METHODS[name]

        async def handle(data: bytes, context: Context) -> Message:
            try:
                self._begin(context)
                return await answer(read_message(request, data), context)
            except QaError as error:
                await abort(context, error)

        return grpc.unary_unary_rpc_method_handler(handle, None, response.SerializeToString)

    # Questions to the model.

    async def _infer(self, message: Message, context: Context) -> Message:
        caller = Caller(context)
        call = read_call(message)
        with self._links.link(caller.peer, caller.token) as link:
            async with link.room:
                results = await link.ask(caller.limit(call.requests))
        return write_response(call, results)

    async def _stream_infer(self, _: object, context: Context) -> None:
        caller = Caller(context)
        try:
            self._begin(context)
            with self._links.link(caller.peer, caller.token) as link:
                stream = InferStream(context, caller, link)
                self._streams.add(stream)
                try:
                    await stream.run()
                finally:
                    self._streams.discard(stream)
        except QaError as error:
            await abort(context, error)
        except PeerLostError:
            words = "%s disconnected with unread answers in its stream"
            logger.info(words, caller.peer, extra={"peer": caller.peer})

    # Questions about the server: the answers' keys are the names of the response's fields.

    async def _told(self, name: str, ask: _Ask, message: Message, context: Context) -> Message:
        said = await ask(message, Caller(context).token)
        return json_format.ParseDict(said, METHODS[name][1](), ignore_unknown_fields=True)

    async def _get(self, path: Callable[[Message], str], message: Message, token: str) -> object:
        return await self._reports.ask("GET", path(message), token)

    async def _command(self, verb: str, message: Message, token: str) -> object:
        name = quote(message.model_name, safe="")
        return await self._reports.ask("POST", f"/v2/repository/models/{name}/{verb}", token)

    async def _is_well(self, state: str, _: Message, token: str) -> object:
        try:
            return {state: await self._reports.probe(f"/v2/health/{state}", token)}
        except UnavailableError:
            return {state: False}

    async def _model_ready(self, message: Message, token: str) -> object:
        try:
            path = model_path(message.name, message.version, "/ready")
            return {"ready": await self._reports.probe(path, token)}
        except HttpError as error:
            if error.status != 404:
                raise
            return {"ready": False}  # as Triton says of a model that it does not know

    async def _model_config(self, message: Message, token: str) -> object:
        path = model_path(message.name, message.version, "/config")
        return {"config": await self._reports.ask("GET", path, token)}

    async def _index(self, message: Message, token: str) -> object:
        models = await self._reports.ask("POST", "/v2/repository/index", token)
        if message.ready:
            models = [model for model in models if model["state"] == "READY"]
        return {"models": models}


POLL_S = 1.0
"""How soon a watch reports a change; a watch costs the loop one report in that time."""
_Request: Any = health_pb2.HealthCheckRequest
_Response: Any = health_pb2.HealthCheckResponse


@dataclass(frozen=True, eq=False)
class HealthService:
    """Answers NOT_SERVING once `draining` is set."""

    reports: Reports
    draining: asyncio.Event

    def handler(self) -> grpc.GenericRpcHandler:
        codecs = (None, _Response.SerializeToString)
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, *codecs),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, *codecs),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    async def _check(self, data: bytes, context: Context) -> Message:
        try:
            request = read_message(_Request, data)
            return _Response(status=await self._status(request.service, Caller(context).token))
        except QaError as error:
            await abort(context, error)

    async def _watch(self, data: bytes, context: Context) -> None:
        """Reports each change; ends when the gateway drains."""
        last_sent, is_last = None, False
        try:
            service, token = read_message(_Request, data).service, Caller(context).token
            while not is_last:
                is_last = self.draining.is_set()
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
                    await asyncio.wait_for(self.draining.wait(), POLL_S)
        except QaError as error:
            await abort(context, error)
        except PeerLostError:
            return

    async def _status(self, service: str, token: str) -> int:
        if self.draining.is_set():
            return int(_Response.NOT_SERVING)
        is_server = service in {"", INFERENCE_SERVICE}
        target = "/v2/health/ready" if is_server else model_path(service, "", "/ready")
        try:
            is_serving = await self.reports.probe(target, "" if is_server else token)
        except UnavailableError:
            is_serving = False
        return int(_Response.SERVING if is_serving else _Response.NOT_SERVING)
