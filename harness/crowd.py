"""Honest clients among many slow ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from harness.frames import frame
from harness.load import QuietAnswers, report_of
from harness.questions import ASK
from harness.server import RunningServer
from qa_service.programs.load.report import Report

BYTE_INTERVAL_S = 1.0


async def dribble(port: int, delay_s: float) -> None:
    """Sends one frame a byte a second, until the server closes or it is cancelled."""
    await asyncio.sleep(delay_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in itertools.cycle(frame(ASK)):
            writer.write(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                if not await asyncio.wait_for(reader.read(1000), BYTE_INTERVAL_S):
                    return
    finally:
        writer.close()


async def never_read(port: int) -> None:
    """Sends frames that are each refused at once, and reads none of the refusals."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    refused = frame({"id": "x" * 200, "question": 5}) * 20
    try:
        while True:
            writer.write(refused)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def alone_and_in_crowd(
    server: RunningServer, num_honest: int, num_slow: int, duration_s: float
) -> tuple[Report, Report, int]:
    """Asks with a few honest clients, first alone and then with the crowd.

    Returns:
        The reports on the honest clients alone and in the crowd, and how many of the slow ones
        were cut off.
    """
    port, plan = server.port, QuietAnswers(server.port).plan(num_honest, duration_s)
    quiet = await asyncio.to_thread(report_of, plan)
    crowd = [asyncio.create_task(dribble(port, i / num_slow)) for i in range(num_slow)]
    deaf = asyncio.create_task(never_read(port))
    await asyncio.sleep(2 * BYTE_INTERVAL_S)  # until all are connected and have begun
    crowded = await asyncio.to_thread(report_of, plan)
    num_cut_off = sum(task.done() for task in crowd)
    for task in (*crowd, deaf):
        task.cancel()
    await asyncio.gather(*crowd, deaf, return_exceptions=True)
    return quiet, crowded, num_cut_off
