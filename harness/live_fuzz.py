"""Mutated frames against a live server."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass

from harness.frames import PREFIX, frame
from harness.load import QuietAnswers, report_of, under_load
from harness.mutate import Mutator, check_json, has_reply
from harness.process import GIVE_UP_S, Growth
from harness.server import RunningServer
from qa_service.programs.load.report import Report

FRAMES_A_CONNECTION = 500
FUZZERS = 4
FRAMES_A_BURST = 20  # more than a turn of the connection takes
HONEST_CLIENTS = 2
QUIET_S = 2.0
ENDLESS_S = 86400.0
"""Of a load that something else ends."""
KINDS = {"answer", "error", "health", "stats", "models", "load", "unload"}
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER without time: closing resets the connection


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
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.close()
    return num_replies


async def count_replies(reader: asyncio.StreamReader, most: int) -> int:
    """Reads up to a number of replies, each of which must be strict JSON."""
    for _ in range(most):
        (length,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        reply = check_json(await reader.readexactly(length))
        assert len(KINDS & reply.keys()) == 1, reply
    return most
