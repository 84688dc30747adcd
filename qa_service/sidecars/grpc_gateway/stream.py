"""`ModelStreamInfer`: requests as they come, answers as they are ready, matched by id.

    read ──▶ wait for room ──▶ ask, each on its own ──▶ queue of answers ──▶ write
                   ▲── as many as one connection may have in flight ──────────┘

Each request has one response, which says so by `triton_final_response`; if the request asks for an
empty final response, that one follows it and says so. A request that fails is answered in
`error_message`, and the stream goes on; if the peer has sent `triton_grpc_error: true`, the first
error ends the stream with its status. When the gateway drains, the requests that were read are
answered, and the stream ends UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import grpc

from qa_service.errors import InternalError, QaError, ShuttingDownError
from qa_service.sidecars.grpc_gateway.grpc_messages import (
    Caller,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
    message_of,
    read_call,
    read_message,
    write,
    write_response,
)
from qa_service.sidecars.grpc_gateway.links import PeerLink
from qa_service.wire.http.open_inference import EMPTY_FINAL

logger = logging.getLogger(__name__)

FINAL = "triton_final_response"
"""The parameter of a response that says whether it is its request's last one."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to a request: a `ModelInferResponse`, or an error; an empty one may follow it."""

    request_id: str
    answer: Any
    wants_empty: bool = False


class InferStream:
    """The requests and the answers of one call."""

    def __init__(self, context: grpc.aio.ServicerContext, caller: Caller, link: PeerLink) -> None:
        self._context = context
        self._caller = caller
        self._link = link
        self._answers: asyncio.Queue[_Reply | None] = asyncio.Queue()
        self._asking: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._num_rooms = 0
        self._is_draining = False

    async def run(self) -> None:
        """Answers until the peer has sent its last request, or the gateway drains.

        Raises:
            QaError: The stream must end with it.
            PeerLostError: Nobody reads the stream any more.
        """
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(self._end_when_answered)
        try:
            while (answer := await self._answers.get()) is not None:
                await self._write(answer)
                self._give_room_back()
        finally:
            self._reading.cancel()
            for task in self._asking:
                task.cancel()
            while self._num_rooms:
                self._give_room_back()
        if self._is_draining:
            raise ShuttingDownError

    def drain(self) -> None:
        """Reads no more requests; ends when those that were read are answered."""
        self._is_draining = True
        if self._reading:
            self._reading.cancel()

    async def _read(self) -> None:
        while True:
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return
            await self._link.room.acquire()  # only now: a silent stream holds none
            self._num_rooms += 1
            task = asyncio.create_task(self._ask(data))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            task.add_done_callback(self._end_when_answered)

    def _end_when_answered(self, _: object) -> None:
        if self._reading and self._reading.done() and not self._asking:
            self._answers.put_nowait(None)

    async def _ask(self, data: bytes) -> None:
        request_id = ""
        try:
            request = read_message(ModelInferRequest, data)
            request_id = request.id
            call = read_call(request)
            results = await self._link.ask(self._caller.limit(call.requests))
            wants_empty = EMPTY_FINAL in request.parameters
            wants_empty = wants_empty and request.parameters[EMPTY_FINAL].bool_param
            reply = _Reply(request_id, write_response(call, results), wants_empty)
        except QaError as error:
            reply = _Reply(request_id, error)
        except Exception:
            logger.exception("a request of a stream could not be answered")
            reply = _Reply(request_id, InternalError())
        self._answers.put_nowait(reply)

    async def _write(self, reply: _Reply) -> None:
        answer, words = reply.answer, ""
        if isinstance(answer, QaError):
            if self._caller.wants_status:
                raise answer
            words = message_of(answer)
            answer = ModelInferResponse(id=reply.request_id)
        await self._send(answer, words, is_final=not reply.wants_empty)
        if reply.wants_empty:
            empty = ModelInferResponse(
                id=answer.id, model_name=answer.model_name, model_version=answer.model_version
            )
            await self._send(empty, is_final=True)

    async def _send(self, response: Any, error_message: str = "", *, is_final: bool) -> None:  # noqa: ANN401
        response.parameters[FINAL].bool_param = is_final
        message = ModelStreamInferResponse(error_message=error_message, infer_response=response)
        await write(self._context, message)

    def _give_room_back(self) -> None:
        self._num_rooms -= 1
        self._link.room.release()
