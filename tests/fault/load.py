"""Many clients in one process, who keep an account of every request.

    sent = right + wrong + errors + lost        doubled: answers to nothing that was asked

An answer is right if it is the one that the same question got in a quiet run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import qa_service
from qa_service.client import QaClient
from qa_service.load.report import percentile
from qa_service.squad import read_squad
from tests.support import frame

QUESTIONS_FILE = Path(qa_service.__file__).parent / "data" / "questions.json"
PREFIX = struct.Struct(">I")
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what a quiet server answered to it."""

    question: str
    text: str
    answer: str
    start: int | None

    @property
    def request(self) -> dict:
        return {"question": self.question, "text": self.text}

    def is_answered_by(self, reply: dict) -> bool:
        return (reply["answer"], reply["start"]) == (self.answer, self.start)


def ask_quietly(port: int) -> list[Asked]:
    """The questions that ship with the project, with this server's answers."""
    with QaClient("localhost", port) as client:
        replies = [(q, client.ask(q.question, q.context)) for q in read_squad(QUESTIONS_FILE)]
    return [Asked(q.question, q.context, r.answer, r.start) for q, r in replies]


@dataclass(slots=True)
class Tally:
    """What became of the requests of all clients together.

    Attributes:
        lost_since_s: When each request was sent that got no reply.
        latencies_ms: From sending to the reply, of what was answered.
        error_latencies_ms: The same, of what was refused or failed.
    """

    sent: int = 0
    right: int = 0
    wrong: int = 0
    doubled: int = 0
    errors: Counter = field(default_factory=Counter)
    lost_since_s: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    error_latencies_ms: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return len(self.lost_since_s)

    def p_ms(self, percent: float) -> float:
        return percentile(sorted(self.latencies_ms), percent)

    def error_p_ms(self, percent: float) -> float:
        return percentile(sorted(self.error_latencies_ms), percent)

    def assert_all_right(self) -> None:
        assert self.sent == self.right > 0, self
        assert not self.doubled, self

    def __str__(self) -> str:
        errors = ", ".join(f"{code} {n}" for code, n in self.errors.items()) or "none"
        return (
            f"{self.sent} sent, {self.right} right, {self.wrong} wrong, {self.lost} lost, "
            f"{self.doubled} doubled, errors: {errors}; "
            f"p50 {self.p_ms(50):.1f} ms, p99 {self.p_ms(99):.1f} ms"
        )


class LoadClient:
    """One connection that matches replies to requests by id."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict]] = {}

    async def connect(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._receiving = asyncio.create_task(self._receive())

    async def ask(self, asked: Asked, **fields: object) -> dict | None:
        """Sends one question, waits for what becomes of it, and enters that in the tally."""
        if self._receiving.done():  # the server has closed the connection
            return None
        request_id, tally = next(self._ids), self._tally
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        tally.sent += 1
        started_s = time.perf_counter()
        self._writer.write(frame({"id": request_id, **asked.request, **fields}))
        try:
            reply = await asyncio.wait_for(future, ANSWER_TIMEOUT_S)
        except (ConnectionError, TimeoutError):
            tally.lost_since_s.append(started_s)
            return None
        took_ms = (time.perf_counter() - started_s) * 1e3
        if "error" in reply:
            tally.errors[reply["error"]["code"]] += 1
            tally.error_latencies_ms.append(took_ms)
            return reply
        tally.latencies_ms.append(took_ms)
        if asked.is_answered_by(reply):
            tally.right += 1
        else:
            tally.wrong += 1
        return reply

    async def abandon(self, asked: Asked) -> None:
        """Sends a question that nobody waits for: not in the tally."""
        self._writer.write(frame({"id": "abandoned", **asked.request}))
        await self._writer.drain()

    async def ask_until(self, end_s: float, questions: Sequence[Asked], first: int) -> None:
        """Asks one question after another, from the given one on, until the time or an error."""
        for asked in itertools.cycle([*questions[first:], *questions[:first]]):
            reply = await self.ask(asked)
            is_refused = reply is None or "error" in reply
            if is_refused or time.perf_counter() >= end_s:
                return

    async def close(self) -> None:
        self._writer.close()
        self._receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._receiving

    async def wait_for_end(self) -> None:
        """Reads whatever still comes, until the server has closed the connection."""
        await asyncio.wait_for(self._receiving, ANSWER_TIMEOUT_S)
        self._writer.close()

    async def _receive(self) -> None:
        try:
            while True:
                (length,) = PREFIX.unpack(await self._reader.readexactly(PREFIX.size))
                reply = json.loads(await self._reader.readexactly(length))
                future = self._waiting.pop(reply["id"], None)
                if future is None:
                    self._tally.doubled += 1
                elif not future.done():
                    future.set_result(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            for future in self._waiting.values():
                future.set_exception(ConnectionResetError())


async def play_clients(
    port: int, num_clients: int, duration_s: float, questions: Sequence[Asked], tally: Tally
) -> list[LoadClient]:
    """Plays so many clients for so long; they are still connected when it returns."""
    clients = [LoadClient(tally) for _ in range(num_clients)]
    for client in clients:
        await client.connect(port)
    end_s = time.perf_counter() + duration_s
    firsts: Iterator[int] = itertools.cycle(range(len(questions)))
    await asyncio.gather(*(c.ask_until(end_s, questions, next(firsts)) for c in clients))
    return clients
