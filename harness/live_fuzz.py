"""Mutated frames, and mutated HTTP requests, against a live server.

Each goes over a connection of its own, and then its sender waits for the server to end the
connection: what comes must be whole HTTP replies, none of them behind one that says it is the last.
The server's timeouts should be short, because many requests do not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

from harness.frames import PREFIX, frame, reset_at_close
from harness.hostile_http import CLOSE, MALFORMED, TOKENS, chunked, head, replies_in
from harness.load import QuietAnswers, report_of, under_load
from harness.mutate import Mutator, check_json, has_reply
from harness.process import GIVE_UP_S, Growth
from harness.server import RunningServer
from qa_service.programs.load.plan import Report

FRAMES_A_CONNECTION = 500
FUZZERS = 4
FRAMES_A_BURST = 20  # more than a turn of the connection takes
HONEST_CLIENTS = 2
QUIET_S = 2.0
ENDLESS_S = 86400.0
"""Of a load that something else ends."""
KINDS = {"answer", "error", "health", "stats", "models", "load", "unload"}
CONNECTIONS = 64
WARMUP_REQUESTS = 500  # after which the server's memory grows no more by itself
BAD = b'{"question": 5}'
SEEDS = [
    head(CLOSE, b"GET /v2/health/ready HTTP/1.1"),
    head(CLOSE, b"GET /stats?x=y HTTP/1.1"),
    head(CLOSE + b"Content-Length: %d\r\n" % len(BAD)) + BAD,
    head(CLOSE + b"Content-Length: %d\r\n" % len(BAD), b"POST /v2/models/builtin/infer HTTP/1.1")
    + BAD,
    head(CLOSE + b"Content-Length: %d\r\n" % len(BAD), b"POST /v1/models/builtin:predict HTTP/1.1")
    + BAD,
    head(CLOSE, b"GET /v1/models/builtin/versions/1 HTTP/1.1"),
    chunked(b'5\r\n{"a":\r\n2\r\n1}\r\n0\r\nX: y\r\n\r\n'),
    head(b"", b"GET /v2 HTTP/1.1") + head(CLOSE, b"GET /metrics HTTP/1.1"),
    *(data for data, _ in MALFORMED.values() if len(data) < 2000),
]


@dataclass(slots=True)
class FuzzReport:
    """What the server was sent that has a reply, and how it and its other clients took it."""

    num_frames: int
    num_replies: int
    duration_s: float
    growth: Growth
    quiet: Report
    honest: Report

    @property
    def is_survived(self) -> bool:
        """Whether each frame had its reply and each question its answer, and nothing is left."""
        all_came = self.num_replies == self.num_frames and self.honest.num_answered > 0
        return all_came and not self.honest.errors and self.growth.is_small

    def __str__(self) -> str:
        return (
            f"{self.num_frames} frames in {self.duration_s:.1f} s, {self.num_replies} replies; "
            f"{self.growth}\nhonest clients alone\n{self.quiet}\n"
            f"honest clients during the fuzzing\n{self.honest}"
        )


async def fuzz_server(
    server: RunningServer, num_frames: int, frames_per_s: float, seed: int
) -> FuzzReport:
    """Sends `count` frames over many connections, while honest clients ask."""
    answers = QuietAnswers(server.port)
    quiet = report_of(answers.plan(HONEST_CLIENTS, QUIET_S))
    mutator, pause_s = Mutator(seed, expiring=True), FUZZERS * FRAMES_A_BURST / frames_per_s
    shares = [
        [mutator.idle_bodies(FRAMES_A_CONNECTION) for _ in range(num_connections)]
        for num_connections in [num_frames // FRAMES_A_CONNECTION // FUZZERS] * FUZZERS
    ]
    await fuzz_connection(server.port, shares[0][0], b"", 0)  # what fills up once is full now
    growth = Growth(server.process.pid)
    with under_load(answers.plan(HONEST_CLIENTS, ENDLESS_S)) as honest:
        started_s = time.perf_counter()
        num_replies = await asyncio.gather(
            *(fuzz_connections(server.port, share, mutator, pause_s) for share in shares)
        )
        duration_s = time.perf_counter() - started_s
    await asyncio.to_thread(growth.end)
    num_sent = sum(has_reply(body) for share in shares for bodies in share for body in bodies)
    return FuzzReport(
        num_sent, sum(num_replies), duration_s, growth, quiet, honest=Report.of(honest)
    )


async def fuzz_connections(
    port: int, share: list[list[bytes]], mutator: Mutator, pause_s: float
) -> int:
    """Sends each list of bodies over a connection of its own; returns the number of replies."""
    return sum(
        [await fuzz_connection(port, bodies, mutator.broken_frame(), pause_s) for bodies in share]
    )


async def fuzz_connection(port: int, bodies: list[bytes], ending: bytes, pause_s: float) -> int:
    """Sends whole frames and counts their replies, then breaks off with a broken one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    receiving = asyncio.create_task(count_replies(reader, sum(map(has_reply, bodies))))
    for at in range(0, len(bodies), FRAMES_A_BURST):
        writer.write(b"".join(map(frame, bodies[at : at + FRAMES_A_BURST])))
        await writer.drain()
        await asyncio.sleep(pause_s)
    num_replies = await asyncio.wait_for(receiving, GIVE_UP_S)
    writer.write(ending)
    if len(ending) % 2:
        reset_at_close(writer.get_extra_info("socket"))
    writer.close()
    return num_replies


async def count_replies(reader: asyncio.StreamReader, most: int) -> int:
    """Reads up to a number of replies, each of which must be strict JSON."""
    for _ in range(most):
        (length,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        reply = check_json(await reader.readexactly(length))
        assert len(KINDS & reply.keys()) == 1, reply
    return most


@dataclass(slots=True)
class HttpFuzzReport:
    """The replies to the requests, by status.

    Attributes:
        num_silent: Requests without a reply where one was due: their first byte was a letter.
    """

    num_requests: int = 0
    num_silent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        statuses = ", ".join(
            f"{status}: {count}" for status, count in sorted(self.statuses.items())
        )
        return f"{self.num_requests} requests, {self.num_silent} without a reply; {statuses}"


async def fuzz_server_http(
    server: RunningServer, num_requests: int, seed: int
) -> tuple[HttpFuzzReport, Growth]:
    """Fuzzes a server; first with a few requests, so that what fills up once is full."""
    await fuzz(server.port, WARMUP_REQUESTS, seed + 1)
    growth = Growth(server.process.pid)
    report = await fuzz(server.port, num_requests, seed)
    await asyncio.to_thread(growth.end)
    return report, growth


async def fuzz(port: int, num_requests: int, seed: int) -> HttpFuzzReport:
    """Sends a number of mutated requests, some connections at a time."""
    mutator, report = Mutator(seed, bodies=SEEDS, tokens=TOKENS), HttpFuzzReport(num_requests)
    requests = iter([mutator.edited(1, 4) for _ in range(num_requests)])

    async def send_all() -> None:
        for data in requests:
            await _send(port, data, report)

    await asyncio.gather(*(send_all() for _ in range(CONNECTIONS)))
    return report


async def _send(port: int, data: bytes, report: HttpFuzzReport) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    received = b""
    with contextlib.suppress(ConnectionError):
        received = await asyncio.wait_for(reader.read(), GIVE_UP_S)
    writer.close()
    if not data[:1].isalpha():
        return  # frames
    statuses = _statuses(received)
    report.statuses.update(statuses)
    report.num_silent += not statuses


def _statuses(received: bytes) -> list[int]:
    """The statuses of whole replies, of which none comes behind one that says it is the last."""
    replies = [(status, fields) for status, fields, _ in replies_in(received) if status != 100]
    assert not any(fields.get("Connection") == "close" for _, fields in replies[:-1]), received
    return [status for status, _ in replies]
