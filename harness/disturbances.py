"""Disturbances of a server under load: kills, reloads, and many slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness.frames import ASK, frame
from harness.load import QuietAnswers, report_of
from harness.server import RunningServer
from qa_service.programs.load.plan import Report

FIRST_KILL_S = 0.5  # by then the clients ask
LOOK_INTERVAL_S = 0.05
BYTE_INTERVAL_S = 1.0


def load_during(
    disturb: Callable[[threading.Event], None],
    server: RunningServer,
    num_clients: int,
    duration_s: float,
) -> Report:
    """Asks with a number of clients while the server is disturbed, then stops it.

    Args:
        disturb: Runs in a thread until its event is set.

    Returns:
        The report on the requests; each client has read until the server closed.
    """
    answers, is_over = QuietAnswers(server.port), threading.Event()

    def stop() -> None:
        is_over.set()
        disturbing.exception()  # wait for its end
        server.signal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb, is_over)
        try:
            report = report_of(answers.plan(num_clients, duration_s, on_answered=stop))
        finally:
            is_over.set()
        disturbing.result()
    return report


def kill_workers(
    server: RunningServer, killed: list[int], *, interval_s: float, wait_until_whole: bool
) -> Callable[[threading.Event], None]:
    """A disturbance: kills the worker that has lived longest, again and again.

    Args:
        killed: Gets the process id of each worker killed.
        wait_until_whole: Kill no worker while another is being replaced. Where a start takes longer
            than the interval, there would soon be none, and a request that three kills meet is
            rightly answered `worker_crashed`.
    """
    num_instances = len(server.worker_pids())

    def is_complete() -> bool:
        return server.log.count("is ready") >= num_instances + len(killed)

    def disturb(is_over: threading.Event) -> None:
        is_over.wait(FIRST_KILL_S)
        while not is_over.is_set():
            if wait_until_whole and not is_complete():
                is_over.wait(LOOK_INTERVAL_S)
            elif pids := server.worker_pids():
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
                is_over.wait(interval_s)

    return disturb


def reload_at_random(
    server: RunningServer, sent: list[int], *, seed: int, max_s: float
) -> Callable[[threading.Event], None]:
    """A disturbance: sends SIGHUP again and again, up to `max_s` apart."""
    moments = random.Random(seed)

    def disturb(is_over: threading.Event) -> None:
        while not is_over.wait(moments.uniform(0, max_s)):
            server.signal(signal.SIGHUP)
            sent.append(signal.SIGHUP)

    return disturb


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
        writer.transport.abort()  # a close would wait until the server has read the rest


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
