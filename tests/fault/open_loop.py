"""Requests at a rate that does not depend on their answers: shared with `benchmarks/overload.py`.

A closed loop cannot overload a server: its clients wait, and with them the load.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fault.load import Asked, LoadClient, Tally, play_clients

CLOSED_LOOP_CLIENTS = 16


@dataclass(slots=True)
class OpenLoopReport:
    """What a rate of requests came to.

    Attributes:
        offered_per_s: Requests sent, per second.
        goodput_per_s: Right answers, per second, from the first request to the last answer.
        tally: What became of the requests.
    """

    offered_per_s: float
    goodput_per_s: float
    tally: Tally

    def __str__(self) -> str:
        tally, refused = self.tally, self.tally.errors.total()
        return (
            f"{self.offered_per_s:8.1f} {self.goodput_per_s:8.1f} {refused:8d} "
            f"{tally.error_p_ms(50):10.2f} {tally.error_p_ms(99):8.2f} "
            f"{tally.p_ms(50):12.1f} {tally.p_ms(99):8.1f} {max(tally.latencies_ms):8.1f}"
        )


HEADER = (
    f"{'offered':>8} {'goodput':>8} {'refused':>8} {'refusal p50':>10} {'p99':>7} "
    f"{'admitted p50':>12} {'p99':>8} {'max ms':>8}"
)


async def capacity_per_s(port: int, questions: Sequence[Asked], duration_s: float) -> float:
    """Answers a second to clients that wait for theirs, enough of them to keep it busy."""
    tally, started_s = Tally(), time.perf_counter()
    for client in await play_clients(port, CLOSED_LOOP_CLIENTS, duration_s, questions, tally):
        await client.close()
    return tally.right / (time.perf_counter() - started_s)


async def offer(
    port: int,
    questions: Sequence[Asked],
    *,
    rate_per_s: float,
    duration_s: float,
    num_connections: int,
    seed: int,
) -> OpenLoopReport:
    """Sends requests at random moments (a Poisson process), whatever comes back."""
    tally, moments = Tally(), random.Random(seed)
    clients = [LoadClient(tally) for _ in range(num_connections)]
    for client in clients:
        await client.connect(port)
    asking: list[asyncio.Task] = []
    due_s = started_s = time.perf_counter()
    for client, asked in zip(itertools.cycle(clients), itertools.cycle(questions), strict=False):
        due_s += moments.expovariate(rate_per_s)
        if due_s > started_s + duration_s:
            break
        await asyncio.sleep(due_s - time.perf_counter())
        asking.append(asyncio.create_task(client.ask(asked)))
    sent_s = time.perf_counter() - started_s
    await asyncio.gather(*asking)
    answered_s = time.perf_counter() - started_s
    for client in clients:
        await client.close()
    return OpenLoopReport(tally.sent / sent_s, tally.right / answered_s, tally)
