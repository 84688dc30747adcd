"""AsyncQaClient: asks a QA server, or several replicas, from asyncio.

Its errors are `QaClient`'s, and so are the rules of where a question is sent, when again, and when
no more: `Asking` decides for both.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Self, Unpack

from qa_service.aio.connection import AsyncConnection
from qa_service.client import (
    MAX_RESPONSE_BYTES,
    Answer,
    Asking,
    AskOptions,
    Conversation,
    QaClientError,
    Question,
    Server,
    Servers,
    ServerUnreachableError,
    Settled,
    Terms,
    encode_frame,
    option_fields,
    question_fields,
    read_answer,
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
        self._asking = Asking(self._servers, self._connect)
        self._ids = itertools.count(1)
        self._room = asyncio.Semaphore(max_in_flight)
        self._connections: dict[Conversation, AsyncConnection] = {}
        self._looking_up: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """As `QaClient.connect`, whose errors it raises."""
        failed: list[Server] = []
        failure: QaClientError = ServerUnreachableError("there is no server")
        now_s = asyncio.get_running_loop().time
        await asyncio.to_thread(self._servers.look_up, now_s())
        while (server := self._servers.choose(failed, now_s())) is not None:
            connection = self._connections[self._asking.conversation(server)]
            try:
                await asyncio.shield(connection.opened)
                return
            except QaClientError as error:
                failure = error
                failed.append(server)
        raise failure

    async def close(self) -> None:
        """Closes the connections, on which every question fails; the client may be used again."""
        connections = list(self._connections.values())
        for connection in connections:
            connection.close(QaClientError("the client was closed"))
        opening = (connection.opening for connection in connections)
        await asyncio.gather(*opening, return_exceptions=True)

    async def ask(
        self, question: str, text: str | None = None, **options: Unpack[AskOptions]
    ) -> Answer:
        """Asks one question and waits for its answer; as `QaClient.ask`, whose errors it raises."""
        return await self._ask({**question_fields(question, text), **option_fields(options)})

    async def ask_many(
        self,
        pairs: Iterable[tuple[str, str | None]],
        *,
        max_in_flight: int = 32,
        **options: Unpack[AskOptions],
    ) -> list[Answer | QaClientError]:
        """Asks many questions, several in flight at a time; as `QaClient.ask_many`.

        Returns:
            For each pair, in their order, its answer or its error.
        """
        _check_positive(max_in_flight)
        fields = option_fields(options)
        results: dict[int, Answer | QaClientError] = {}
        numbered = enumerate(pairs)
        begun_at = self._asking.num_losses

        async def ask_in_turn() -> None:
            for index, (question, text) in numbered:
                try:
                    self._asking.check_losses(begun_at)
                    results[index] = await self._ask({**question_fields(question, text), **fields})
                except QaClientError as error:
                    results[index] = error

        async with asyncio.TaskGroup() as group:
            for _ in range(max_in_flight):
                group.create_task(ask_in_turn())
        return [results[index] for index in range(len(results))]

    async def _ask(self, fields: dict[str, Any]) -> Answer:
        async with self._room:
            wire_id, result = next(self._ids), asyncio.get_running_loop().create_future()
            frame = encode_frame({"id": wire_id, **fields})
            question = Question(wire_id, frame, read_answer, about=result)
            self._asking.ask(question)
            self._advance()
            try:
                answer: Answer = await result
                return answer
            except asyncio.CancelledError:
                self._asking.withdraw(question)
                self._advance()
                raise

    def _advance(self) -> None:
        """Sends what can go, and passes on what is settled."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        is_due = self._asking.num_waiting and self._servers.is_look_up_due(now_s)
        if is_due and self._looking_up is None:
            self._looking_up = loop.create_task(self._look_up(now_s))
        self._asking.advance(now_s)
        for question, result in self._asking.settled:
            if question.about.done():  # its task was cancelled in this turn of the loop
                continue
            if isinstance(result, QaClientError):
                question.about.set_exception(result)
            else:
                question.about.set_result(result)
        self._asking.settled.clear()
        for connection in list(self._connections.values()):
            connection.flush()
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._asking.due_s
        self._timer = loop.call_at(due_s, self._advance) if due_s < math.inf else None

    async def _look_up(self, now_s: float) -> None:
        try:
            await asyncio.to_thread(self._servers.look_up, now_s)
        except ServerUnreachableError as error:
            self._asking.fail_waiting(error)
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is left
            failure = ServerUnreachableError(f"no name can be looked up: {error}")
            self._asking.fail_waiting(failure)
        finally:
            self._looking_up = None
        self._advance()

    def _connect(self, server: Server) -> Conversation:
        connection = AsyncConnection(server, self._terms, self._take)
        self._connections[connection.conversation] = connection
        return connection.conversation

    def _take(self, connection: AsyncConnection, settled: list[Settled]) -> None:
        conversation = connection.conversation
        if conversation.error is not None:
            del self._connections[conversation]
        self._asking.take(conversation, settled, asyncio.get_running_loop().time())
        self._advance()


def _check_positive(max_in_flight: int) -> None:
    if max_in_flight < 1:
        raise ValueError("max_in_flight must be at least 1")
