"""AsyncQaClient: asks a QA server, or several replicas, from asyncio.

Its errors are `QaClient`'s, and so are the rules of where a question is sent, when again, and when
no more: both clients follow `Servers` and `Losses`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, Unpack

from qa_service.aio.connection import AsyncConnection, UnreadError, open_connection
from qa_service.client import (
    MAX_RESPONSE_BYTES,
    Answer,
    AskOptions,
    Losses,
    QaClientError,
    QaServerError,
    Server,
    Servers,
    ServerUnreachableError,
    Terms,
    decode_reply,
    encode_frame,
    option_fields,
    question_fields,
    read_answer,
    server_error,
    split_hosts,
)


class AsyncQaClient:
    """A client of a QA server, or of several replicas; for any number of tasks of one loop.

        async with AsyncQaClient("localhost", 9999) as client:
            answer = await client.ask("Who wrote it?", "It was written by Ada.")

    All tasks share one connection to each server, on which their questions are pipelined. It is
    opened at the first question, and again when it was lost. A task that is cancelled while it
    asks, also by `asyncio.timeout`, ends at once and withdraws its question: the server drops the
    question unless an instance has begun with it.

    Args:
        host: This and what is not described here is as in `QaClient`.
        timeout_s: Longest wait for a connection, and for the next reply on a connection while any
            is outstanding there; None waits for ever.
        max_in_flight: How many questions may be in flight, over all connections; further ones wait
            here. The server reads no more than `--max_in_flight_per_connection`.

    Raises:
        ValueError: There is no host, a port is out of range, or `max_in_flight` is less than 1.
    """

    def __init__(
        self,
        host: str | Sequence[str] = "localhost",
        port: int = 9999,
        timeout_s: float | None = 60.0,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        max_in_flight: int = 128,
    ) -> None:
        _check_positive(max_in_flight)
        self._terms = Terms(
            math.inf if timeout_s is None else timeout_s, max_response_bytes, tls, token
        )
        self._servers = Servers(split_hosts(host, port), self._terms, with_hedging=False)
        self._ids = itertools.count(1)
        self._room = asyncio.Semaphore(max_in_flight)
        self._opening: dict[Server, asyncio.Task[AsyncConnection]] = {}
        self._connections: set[AsyncConnection] = set()
        self._losses = Losses(self._servers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects to a server now rather than at the next question.

        Raises:
            QaClientError: No server could be reached, trusted, or accepted the client.
        """
        failed: list[Server] = []
        failure: QaClientError = ServerUnreachableError("there is no server")
        while (server := await self._pick(failed)) is not None:
            try:
                await self._connection(server)
                return
            except QaClientError as error:
                failure = error
                failed.append(server)
        raise failure

    async def close(self) -> None:
        """Closes the connections, on which every question fails; the client may be used again."""
        opening = list(self._opening.values())
        self._opening.clear()
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in list(self._connections):
            connection.close(_closed())

    async def ask(
        self, question: str, text: str | None = None, **options: Unpack[AskOptions]
    ) -> Answer:
        """Asks one question and waits for its answer; the arguments are those of `QaClient.ask`.

        Raises:
            QaServerError: The server answered with an error.
            QaClientError: There was no answer, or it was malformed.
        """
        return await self._ask({**question_fields(question, text), **option_fields(options)})

    async def ask_many(
        self,
        pairs: Iterable[tuple[str, str | None]],
        *,
        max_in_flight: int = 32,
        **options: Unpack[AskOptions],
    ) -> list[Answer | QaClientError]:
        """Asks many questions, several in flight at a time, as `QaClient.ask_many` does.

        Returns:
            For each pair, in their order, its answer or its error.

        Raises:
            ValueError: `max_in_flight` is less than 1.
        """
        _check_positive(max_in_flight)
        fields = option_fields(options)
        results: dict[int, Answer | QaClientError] = {}
        numbered = enumerate(pairs)
        begun_at = self._losses.number
        async with asyncio.TaskGroup() as group:
            for _ in range(max_in_flight):
                group.create_task(self._ask_in_turn(numbered, fields, results, begun_at))
        return [results[index] for index in range(len(results))]

    async def _ask_in_turn(
        self,
        numbered: Iterator[tuple[int, tuple[str, str | None]]],
        fields: dict[str, Any],
        results: dict[int, Answer | QaClientError],
        begun_at: int,
    ) -> None:
        for index, (question, text) in numbered:
            try:
                self._losses.check(begun_at)
                results[index] = await self._ask({**question_fields(question, text), **fields})
            except QaClientError as error:
                results[index] = error

    async def _ask(self, fields: dict[str, Any]) -> Answer:
        async with self._room:
            started_s = time.perf_counter()
            deadline_s = started_s + self._terms.timeout_s
            wire_id = next(self._ids)
            frame = encode_frame({"id": wire_id, **fields})
            tried: list[Server] = []
            while True:
                server = await self._pick(self._servers.to_avoid(tried))
                assert server is not None
                tried.append(server)
                try:
                    return await self._ask_server(server, wire_id, frame, started_s)
                except UnreadError:
                    tried.pop()
                except QaClientError as error:
                    pause_s = self._servers.resend_after_s(tried, error, deadline_s)
                    if pause_s is None:
                        raise
                    await asyncio.sleep(pause_s)

    async def _ask_server(
        self, server: Server, wire_id: int, frame: bytes, started_s: float
    ) -> Answer:
        def read(body: bytes) -> Answer | QaServerError:
            reply = decode_reply(body)
            if "error" in reply:
                return server_error(reply["error"])
            return read_answer(reply, (time.perf_counter() - started_s) * 1e3)

        self._servers.count_sent(server)
        try:
            connection = await self._connection(server)
            sent_s = time.perf_counter()
            result = await connection.ask(wire_id, frame, read)
        except BaseException:
            self._servers.count_unanswered(server, 1)
            raise
        self._losses.forgive()
        error = result if isinstance(result, QaServerError) else None
        if self._servers.count_reply(server, time.perf_counter() - sent_s, error):
            connection.close_when_idle()
        if isinstance(result, QaServerError):
            raise result
        return result

    async def _pick(self, avoid: Iterable[Server]) -> Server | None:
        """As `Servers.pick`, but names are looked up in a thread."""
        if self._servers.is_look_up_due:
            await asyncio.to_thread(self._servers.look_up)
            for server in [known for known in self._opening if known not in self._servers]:
                self._retire(self._opening.pop(server))
        return self._servers.choose(set(avoid))

    async def _connection(self, server: Server) -> AsyncConnection:
        """The connection to a server; tasks that wait for a new one share it."""
        opening = self._opening.get(server)
        if opening is None or _is_over(opening):
            opening = asyncio.create_task(self._open(server))
            opening.add_done_callback(_retrieve)
            self._opening[server] = opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise _closed() from None  # by `close`: nobody cancelled the one who asks
            raise

    async def _open(self, server: Server) -> AsyncConnection:
        try:
            connection = await open_connection(server, self._terms)
        except QaClientError as error:
            self._count_loss(server, error)
            raise
        self._connections.add(connection)
        connection.on_lost = lambda lost: self._on_lost(server, lost)
        return connection

    def _on_lost(self, server: Server, connection: AsyncConnection) -> None:
        self._connections.discard(connection)
        error = connection.error
        if connection.in_flight and error is not None and error.code != "frame_too_large":
            self._count_loss(server, error)

    def _count_loss(self, server: Server, error: QaClientError) -> None:
        if error.code != QaClientError.code:  # else `close` did it
            self._losses.add(server, error)

    def _retire(self, opening: asyncio.Task[AsyncConnection]) -> None:
        """Lets a connection end when its questions are answered: its server's name is gone."""
        if not opening.done():
            opening.add_done_callback(self._retire)
        elif not opening.cancelled() and opening.exception() is None:
            opening.result().close_when_idle()


def _closed() -> QaClientError:
    return QaClientError("the client was closed")


def _is_over(opening: asyncio.Task[AsyncConnection]) -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or bool(opening.exception()) or not opening.result().can_ask


def _retrieve(opening: asyncio.Task[AsyncConnection]) -> None:
    """Looks at a failure for which nobody waits any more; else asyncio would log it."""
    if not opening.cancelled():
        opening.exception()


def _check_positive(max_in_flight: int) -> None:
    if max_in_flight < 1:
        raise ValueError("max_in_flight must be at least 1")
