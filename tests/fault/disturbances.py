"""What is done to a server under load: shared by the tests and `benchmarks/fault_*.py`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Coroutine

from tests.fault.load import Tally, ask_quietly, play_clients
from tests.running_server import RunningServer

FIRST_KILL_S = 0.5
LOOK_INTERVAL_S = 0.05


async def load_during(
    disturbance: Coroutine[None, None, None],
    server: RunningServer,
    num_clients: int,
    duration_s: float,
) -> Tally:
    """Asks with so many clients while something is done to the server, then stops it.

    Returns:
        What became of the requests, each client having read until the server closed.
    """
    questions, tally = ask_quietly(server.port), Tally()
    disturbing = asyncio.create_task(disturbance)
    try:
        clients = await play_clients(server.port, num_clients, duration_s, questions, tally)
    finally:
        disturbing.cancel()
    server.signal(signal.SIGTERM)
    await asyncio.gather(*(client.wait_for_end() for client in clients))
    return tally


async def kill_workers(
    server: RunningServer, killed: list[int], *, interval_s: float, wait_until_whole: bool
) -> None:
    """Kills the worker that has lived longest, again and again, until cancelled.

    Args:
        server: The server.
        killed: Gets the process id of each worker killed.
        interval_s: From kill to kill.
        wait_until_whole: Kill no worker while another is being replaced. Where the machine
            takes longer than the interval to start a worker, there would soon be none, and
            a request killed in its retry too is rightly answered `worker_crashed`.
    """
    await asyncio.sleep(FIRST_KILL_S)
    num_sessions = len(server.worker_pids())
    while True:
        while wait_until_whole and server.log.count("is ready") < num_sessions + len(killed):
            await asyncio.sleep(LOOK_INTERVAL_S)
        if pids := server.worker_pids():
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
        await asyncio.sleep(interval_s)


async def reload_at_random(
    server: RunningServer, sent: list[int], *, seed: int, most_s: float
) -> None:
    """Sends SIGHUP again and again, up to `most_s` apart, until cancelled."""
    moments = random.Random(seed)
    while True:
        await asyncio.sleep(moments.uniform(0, most_s))
        server.signal(signal.SIGHUP)
        sent.append(signal.SIGHUP)
