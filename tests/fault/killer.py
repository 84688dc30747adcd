"""Load on a server whose workers are killed meanwhile: shared with `benchmarks/fault_kill.py`."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.fault.load import Tally, ask_quietly, play_clients
from tests.running_server import RunningServer

FIRST_KILL_S = 0.5
LOOK_INTERVAL_S = 0.05


async def kill_workers(
    server: RunningServer, interval_s: float, wait_until_whole: bool, killed: list[int]
) -> None:
    """Kills the worker that has lived longest, again and again, until cancelled."""
    await asyncio.sleep(FIRST_KILL_S)
    num_sessions = len(server.worker_pids())
    while True:
        while wait_until_whole and server.log.count("is ready") < num_sessions + len(killed):
            await asyncio.sleep(LOOK_INTERVAL_S)
        if pids := server.worker_pids():
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])
        await asyncio.sleep(interval_s)


async def load_while_killing(
    server: RunningServer,
    num_clients: int,
    duration_s: float,
    interval_s: float,
    *,
    wait_until_whole: bool,
) -> tuple[Tally, int]:
    """Asks with so many clients while a worker dies every `interval_s`, then stops the server.

    Args:
        server: The server.
        num_clients: Clients at a time.
        duration_s: How long they ask.
        interval_s: From kill to kill.
        wait_until_whole: Kill no worker while another is being replaced. Where the machine
            takes longer than the interval to start a worker, there would soon be none, and
            a request killed in its retry too is rightly answered `worker_crashed`.

    Returns:
        What became of the requests, and how many workers were killed.
    """
    questions = ask_quietly(server.port)
    tally, killed = Tally(), []
    killing = asyncio.create_task(kill_workers(server, interval_s, wait_until_whole, killed))
    try:
        clients = await play_clients(server.port, num_clients, duration_s, questions, tally)
    finally:
        killing.cancel()
    server.signal(signal.SIGTERM)
    await asyncio.gather(*(client.wait_for_end() for client in clients))
    return tally, len(killed)
