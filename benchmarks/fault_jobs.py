"""Kills what jobs pass through, again and again, and accounts for every job.

    python -m benchmarks.fault_jobs --jobs 2000 --kill gateway,server,worker,broker --poison 5

Each kind is killed (SIGKILL) some seconds after it was last seen well: the broker once it takes
connections, the server once it is ready, the gateway once it takes jobs, a worker once all of
them are there. It is killed again only when REPLIES_A_KILL jobs more have a reply, so that a run
ends on a slow machine too. The server runs the instant engine, whose workers the poison kills (see
tests/fault/faulty_worker); every twentieth job takes it 0.3 s.

Exit code 0 if every job was answered right, the poison with an error, and if nothing but the
poison is in the dead queue; 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aio_pika
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError

from harness.jobs import RunningGateway, job, open_channel, queues_of
from harness.ports import reserve_port
from harness.questions import ASK, FIRST_WORD
from harness.rabbitmq import MISSING, RunningRabbitMq, is_installed, running_rabbitmq
from harness.server import RunningServer
from qa_service.client import QaClient, QaClientError
from qa_service.server.models.options import DEFAULT_MODEL

KINDS = ("gateway", "server", "worker", "broker")
QUEUES = queues_of("fault")
LOST = (AMQPError, ChannelInvalidStateError, OSError, asyncio.TimeoutError)
AGAIN_S = 0.2
SETTLE_S = 3.0
PROGRESS = 200
SLOW_EVERY = 20
REPLIES_A_KILL = 25
"""Of 2,000 jobs, a kind is killed at most 80 times. Where starting again takes longer than being
killed, kills that no reply is waited for leave no time to answer anything."""


class Stack:
    """Broker, server and gateway, each of which may be killed and comes back."""

    def __init__(self, broker: RunningRabbitMq, model: Path, faulty_worker: Path) -> None:
        self.broker, self._model = broker, model
        self.port = reserve_port()
        self._environment = {"PYTHONPATH": str(faulty_worker)}
        self.server = self._new_server()
        self.gateway = self._new_gateway()

    def kill(self, kind: str) -> None:
        """Kills one of a kind; but for a worker, starts it again."""
        match kind:
            case "gateway":
                self.gateway.close()
                self.gateway = self._new_gateway()
            case "server":
                self.server.close()
                self.server = self._new_server()
            case "broker":
                self.broker.kill()
                self.broker.start()
            case "worker":
                with contextlib.suppress(OSError, IndexError):
                    os.kill(self.server.worker_pids()[0], signal.SIGKILL)

    def probe(self, kind: str) -> bool:
        """Whether one of a kind may be killed."""
        match kind:
            case "gateway":
                return "taking jobs" in self.gateway.log
            case "worker":
                return self._all_workers_alive()
        return True  # these two are started before they are returned

    def close(self) -> None:
        self.gateway.close()
        self.server.close()

    def _new_server(self) -> RunningServer:
        flags = ("--inference_engine_type", "instant", "--port", str(self.port))
        return RunningServer(self._model, *flags, env=self._environment)

    def _new_gateway(self) -> RunningGateway:
        return RunningGateway(self.broker.url, self.port, QUEUES)

    def _all_workers_alive(self) -> bool:
        try:
            with QaClient("localhost", self.port, timeout_s=5) as client:
                report = client.health().report
        except QaClientError:
            return False
        return bool(report["sessions_alive"] == report["sessions_wanted"])


@dataclass
class Tally:
    """What came of the jobs."""

    replies: collections.Counter[str] = field(default_factory=collections.Counter)
    answers: dict[str, dict] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)

    def take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        name = message.message_id or ""
        self.replies[name] += 1
        self.answers[name] = json.loads(message.body)


def kill_again_and_again(
    stack: Stack,
    kind: str,
    interval_s: float,
    kills: collections.Counter,
    tally: Tally,
    stop: threading.Event,
) -> None:
    while True:
        while not stack.probe(kind) or len(tally.replies) < REPLIES_A_KILL * kills[kind]:
            if stop.wait(AGAIN_S):
                return
        if stop.wait(interval_s):
            return
        stack.kill(kind)
        kills[kind] += 1


async def until_done(url: str, action: Callable) -> None:
    """Does something with a channel, on new connections until it gets to its end."""
    while True:
        try:
            async with open_channel(url) as channel:
                await action(channel)
                return
        except LOST:
            await asyncio.sleep(AGAIN_S)


async def publish_all(url: str, jobs: list[aio_pika.Message]) -> None:
    """Publishes each until it is confirmed; one whose confirmation was lost is sent again."""
    left = collections.deque(jobs)

    async def publish(channel) -> None:
        while left:
            await channel.default_exchange.publish(left[0], QUEUES.jobs)
            left.popleft()

    await until_done(url, publish)


async def take_replies(url: str, tally: Tally, count: int) -> None:
    """Takes replies until each job has one."""

    async def take(channel) -> None:
        queue = await channel.get_queue(QUEUES.results)
        async with queue.iterator() as messages:
            async for message in messages:
                tally.take(message)
                await message.ack()
                if len(tally.replies) % PROGRESS == 0:
                    print(f"{len(tally.replies)} jobs have a reply", flush=True)
                if len(tally.replies) == count:
                    return

    while len(tally.replies) < count:
        await until_done(url, take)


async def take_rest(url: str, tally: Tally) -> None:
    """What is left in the queues when nothing is killed any more: second replies, and the dead."""
    await asyncio.sleep(SETTLE_S)

    async def take(channel) -> None:
        results, dead = (
            await channel.get_queue(QUEUES.results),
            await channel.get_queue(QUEUES.dead),
        )
        while message := await results.get(no_ack=True, fail=False):
            tally.take(message)
        while message := await dead.get(no_ack=True, fail=False):
            reason = message.headers.get("qa-reason") or message.headers.get("x-death")
            tally.dead[message.message_id] = str(reason)

    await until_done(url, take)


def make_jobs(count: int, num_poison: int) -> tuple[list[aio_pika.Message], dict[str, str | None]]:
    """The jobs, poison spread among them, and the answer expected to each; None for an error."""
    every = count // num_poison if num_poison else count + 1
    jobs, expected = [], {}

    def add(name: str, marker: str, answer: str | None) -> None:
        jobs.append(job(name, ASK | {"id": name, "question": f"{marker} {ASK['question']}"}))
        expected[name] = answer

    for number in range(count):
        add(f"job-{number}", "!!slow!!" if number % SLOW_EVERY == 0 else "", FIRST_WORD)
        if number % every == every // 2:
            add(f"poison-{number}", "!!kill!!", None)
    return jobs, expected


async def play(stack: Stack, kinds: list[str], interval_s: float, jobs: list, tally: Tally) -> dict:
    """Has the jobs done while the kinds are killed; returns how often each was.

    Raises:
        ExceptionGroup: What was killed could not be started again.
    """
    stop, kills, url = threading.Event(), collections.Counter(), stack.broker.url
    async with asyncio.TaskGroup() as killers:
        for kind in kinds:
            killing = partial(kill_again_and_again, stack, kind, interval_s, kills, tally, stop)
            killers.create_task(asyncio.to_thread(killing))
        try:
            await asyncio.gather(publish_all(url, jobs), take_replies(url, tally, len(jobs)))
        finally:
            stop.set()
    await take_rest(url, tally)
    return dict(kills)


def report(tally: Tally, expected: dict[str, str | None]) -> bool:
    """Prints what came of the jobs; returns whether all is as it should be."""
    right = sum(
        "error" in tally.answers[name] if answer is None else
        tally.answers[name].get("answer") == answer
        for name, answer in expected.items()
        if name in tally.answers
    )  # fmt: skip
    poison = {name for name, answer in expected.items() if answer is None}
    print(f"{len(tally.replies)} of {len(expected)} jobs have a reply, {right} as it should be")
    print(f"{sum(tally.replies.values()) - len(tally.replies)} second replies")
    print(f"{len(tally.dead)} in the dead queue; {len(poison)} are poison")
    for name in sorted(set(tally.dead) ^ poison):
        print(f"  {name}: {tally.dead.get(name, 'missing')}: {tally.answers.get(name)}")
    return right == len(expected) and set(tally.dead) == poison


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000, help="how many")
    parser.add_argument("--kill", default=",".join(KINDS), help="which kinds are killed")
    parser.add_argument("--interval_s", type=float, default=2.0, help="from well to killed")
    parser.add_argument("--poison", type=int, default=5, help="further jobs, which kill workers")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags = parser.parse_args()
    for library in ("aio_pika", "aiormq"):  # they log each lost connection with its traceback
        logging.getLogger(library).setLevel(logging.CRITICAL)
    if not is_installed():
        print(MISSING, file=sys.stderr)
        return 2
    jobs, expected = make_jobs(flags.jobs, flags.poison)
    faulty_worker = Path(__file__).parents[1] / "tests" / "fault" / "faulty_worker"
    kinds, tally = [kind for kind in flags.kill.split(",") if kind], Tally()
    with running_rabbitmq() as broker:
        stack = Stack(broker, flags.model, faulty_worker)
        try:
            stack.gateway.wait_for_log("taking jobs")
            began_s = time.monotonic()
            kills = asyncio.run(play(stack, kinds, flags.interval_s, jobs, tally))
            took_s = time.monotonic() - began_s
        finally:
            stack.close()
    print(f"{len(jobs)} jobs in {took_s:.0f} s; killed: {kills}")
    return 0 if report(tally, expected) else 1


if __name__ == "__main__":
    sys.exit(main())
