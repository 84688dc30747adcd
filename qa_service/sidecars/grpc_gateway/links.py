"""The gateway's connections to the server: one for each gRPC peer and token.

So the server sees each peer as a separate client, with its share, its bounds and its token. A
peer's first question opens its connection; a long silence closes it, and so does the server's
refusal, at once. At a bound the connection that has been silent longest makes room.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import socket
from collections.abc import Iterator, Sequence

import msgspec

from qa_service.aio.connection import AsyncConnection, open_connection
from qa_service.client import MAX_RESPONSE_BYTES, QaClientError, QaServerError, Server, Terms
from qa_service.errors import (
    ERROR_KINDS,
    FrameTooLargeError,
    InternalError,
    QaError,
    QueueFullError,
    UnavailableError,
)
from qa_service.sidecars.gateway_messages import GatewaySettings
from qa_service.wire.frames import frame_of
from qa_service.wire.json_codec import AnswersBody, ErrorBody
from qa_service.wire.messages import Answered, Request

IDLE_S = 10.0
"""When a silent peer's connection is closed; opening one again costs a round trip or two here."""
MAX_CALLS = 1024
"""Calls of one peer under way or waiting: it bounds the memory of the messages that grpcio read."""
MAX_LINKS = 64
"""Tokens that one peer uses at a time, a proxy of many users; so that one peer with made-up tokens
leaves others their connections."""
_Key = tuple[str, str]
"""A peer and a token."""
_encode = msgspec.json.Encoder().encode
logger = logging.getLogger(__name__)


_answers_decoder = msgspec.json.Decoder(AnswersBody)
_error_decoder = msgspec.json.Decoder(ErrorBody)


def read_reply(body: bytes) -> Answered | QaError:
    """A question's answers, or its error; `ValueError` if the frame is no reply."""
    try:
        reply = _answers_decoder.decode(body)
    except msgspec.ValidationError:
        error = _error_decoder.decode(body).error
        return _error(error.code, error.message, error.retry_after_ms)
    return reply.answered


def _error(code: str, message: str, retry_after_ms: int | None = None) -> QaError:
    kind = ERROR_KINDS.get(code, InternalError)
    return kind(message, retry_after_ms=retry_after_ms)


class PeerLink:
    """One peer's connection to the server, under one token; empty for none.

    Attributes:
        room: A request takes a place before it is asked, and gives it back when it is answered.
        users: Calls that use the connection now.
    """

    def __init__(self, settings: GatewaySettings, token: str) -> None:
        self.room = asyncio.Semaphore(settings.max_in_flight_per_connection)
        self.users = 0
        self._settings = settings
        self._terms = Terms(math.inf, MAX_RESPONSE_BYTES, None, token or None)
        self._ids = itertools.count(1)
        self._opening = asyncio.Lock()
        self._connection: AsyncConnection | None = None

    @property
    def can_ask(self) -> bool:
        """Whether it is connected, and the server has not refused it."""
        return self._connection is not None and self._connection.can_ask

    async def ask(self, requests: Sequence[Request]) -> list[Answered]:
        """Asks all questions of a call; if one fails, withdraws the rest, raises its `QaError`."""
        try:
            async with self._opening:
                connection = self._connection
                if connection is None or not connection.can_ask:
                    address = (int(socket.AF_UNIX), str(self._settings.unix_socket))
                    server = Server("server", 0, (address,))
                    connection = self._connection = await open_connection(server, self._terms)
            if len(requests) == 1:
                return [await self._ask(connection, requests[0])]
            tasks = [asyncio.create_task(self._ask(connection, one)) for one in requests]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
        except QaServerError as error:
            raise _error(error.code, error.message) from None
        except QaClientError:
            raise UnavailableError("the connection to the server was lost") from None

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    async def _ask(self, connection: AsyncConnection, request: Request) -> Answered:
        wire_id = next(self._ids)
        body = _encode(msgspec.structs.replace(request, id=msgspec.Raw(b"%d" % wire_id)))
        if len(body) > (most := self._settings.max_frame_bytes):
            raise FrameTooLargeError(
                f"a question takes {len(body)} bytes; at most {most} are taken"
            )
        outcome = await connection.ask(wire_id, frame_of(body), read_reply)
        if isinstance(outcome, QaError):
            raise outcome
        return outcome


class PeerLinks:
    """The connections of all peers."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._links: dict[_Key, PeerLink] = {}
        # Those that have no call, the one that has been silent longest first.
        self._idle: dict[_Key, asyncio.TimerHandle] = {}
        self._has_said_full = False

    @contextlib.contextmanager
    def link(self, peer: str, token: str) -> Iterator[PeerLink]:
        """A peer's connection, for one call; or a `QueueFullError`."""
        key = peer, token
        link = self._links.get(key) or self._open(key)
        if link.users >= MAX_CALLS:
            raise QueueFullError(f"a peer may have {MAX_CALLS} calls at a time")
        if timer := self._idle.pop(key, None):
            timer.cancel()
        link.users += 1
        try:
            yield link
        finally:
            link.users -= 1
            if not link.users:
                loop = asyncio.get_running_loop()
                self._idle[key] = loop.call_later(IDLE_S, self._drop, key)
                if not link.can_ask:  # the server has refused it
                    self._drop(key)

    def busy_peers(self) -> set[str]:
        return {key[0] for key in self._links.keys() - self._idle.keys()}

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _open(self, key: _Key) -> PeerLink:
        peer, token = key
        num_of_peer = sum(other == peer for other, _ in self._links)
        if num_of_peer >= MAX_LINKS and not self._make_room(peer):
            raise QueueFullError(f"a peer may ask with {MAX_LINKS} tokens at a time")
        if len(self._links) >= self._settings.max_connections:
            if not self._has_said_full:
                self._has_said_full = True
                logger.warning(
                    "%d peers and tokens, --max_connections is reached: from now on the one that "
                    "has been silent longest makes room",
                    len(self._links),
                )
            if not self._make_room():
                raise QueueFullError("the gateway has reached --max_connections")
        link = self._links[key] = PeerLink(self._settings, token)
        return link

    def _make_room(self, peer: str | None = None) -> bool:
        """Drops the connection, of a peer if one is given, that has been silent longest."""
        key = next((key for key in self._idle if peer in {None, key[0]}), None)
        if key is not None:
            self._drop(key)
        return key is not None

    def _drop(self, key: _Key) -> None:
        self._idle.pop(key).cancel()
        self._links.pop(key).close()
