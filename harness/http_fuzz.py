"""Mutated HTTP requests against a live server.

Each goes over a connection of its own, and then its sender waits for the server to end the
connection: what comes must be whole HTTP replies, none of them behind one that says it is the last.
The server's timeouts should be short, because many requests do not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

from harness.hostile_http import HOST, MALFORMED, chunked, head
from harness.process import GIVE_UP_S, Growth
from harness.server import RunningServer

CONNECTIONS = 64
WARMUP_REQUESTS = 500  # after which the server's memory grows no more by itself
CLOSE = b"Connection: close\r\n"
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
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"0\r\n\r\n", b"HTTP/1.1", HOST, b"chunked", b",",
    b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"\t", b"\xff", b"5", CLOSE,
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"GET / ",
]  # fmt: skip


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


def mutate(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        match chance.randrange(4):
            case 0:
                data[at:at] = chance.choice(TOKENS)
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at:at] = data[at : at + 16] * chance.randint(1, 3)
    return bytes(data)


async def fuzz_server(
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
    chance, report = random.Random(seed), HttpFuzzReport(num_requests)
    requests = iter([mutate(chance) for _ in range(num_requests)])

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
    statuses, rest = [], received
    while rest:
        first, _, rest = rest.partition(b"\r\n\r\n")
        line, *lines = first.decode().split("\r\n")
        status = int(line.removeprefix("HTTP/1.1 ").split()[0])
        if status == 100:
            continue
        fields = dict(item.split(": ", 1) for item in lines)
        size = int(fields.get("Content-Length", 0))
        assert len(rest) >= size, received
        rest = rest[size:]
        assert fields.get("Connection") != "close" or not rest, received
        statuses.append(status)
    return statuses
