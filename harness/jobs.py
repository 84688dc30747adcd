"""A gateway as a user runs it, with a producer and a consumer of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import aio_pika
from msgspec import structs

from harness.process import GIVE_UP_S, LoggingProcess, wait_until
from harness.server import ROOT
from qa_service.programs.jobs.brokers import connected
from qa_service.programs.jobs.jobs_options import BrokerOptions

_QUEUES = ("jobs_queue", "dead_queue", "results_queue", "retry_queue")


def queues_of(prefix: str, **others: Any) -> BrokerOptions:
    """Queues of a test's own."""
    queues: dict[str, Any] = {name: f"{prefix}.{name}" for name in _QUEUES}
    return BrokerOptions(**queues, **others)


def flags_of(queues: BrokerOptions) -> list[str]:
    """The same for `jobs.py`."""
    names = (*_QUEUES, "delivery_limit")
    flags = [f"--{name}={getattr(queues, name)}" for name in names]
    return [*flags, f"--retry_delays_s={queues.retry.retry_delays_s}"]


def run_jobs(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "jobs.py"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=GIVE_UP_S, check=False, **options
    )


class RunningGateway(LoggingProcess):
    def __init__(self, url: str, server_port: int, queues: BrokerOptions, *flags: str) -> None:
        command = [sys.executable, str(ROOT / "jobs.py"), "gateway", "--host", "127.0.0.1"]
        super().__init__(
            [*command, "--port", str(server_port), *flags_of(queues), *flags],
            env={**os.environ, "QA_BROKER_URL": url},
        )

    def stop(self) -> None:
        """Stops it as an operator does; it must end well."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(GIVE_UP_S) == 0, self.log
        assert "Traceback" not in self.log, self.log


@contextlib.contextmanager
def running_gateway(
    url: str, server_port: int, queues: BrokerOptions, *flags: str
) -> Iterator[RunningGateway]:
    """Runs a gateway that takes jobs; on a clean exit of the block, checks that it stops well."""
    gateway = RunningGateway(url, server_port, queues, *flags)
    try:
        gateway.wait_for_log("taking jobs")
        yield gateway
        if gateway.process.poll() is None:
            gateway.stop()
    finally:
        gateway.close()


def job(message_id: str | None, body: bytes | dict[str, Any], **properties: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return aio_pika.Message(
        data, message_id=message_id, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **properties
    )


@contextlib.asynccontextmanager
async def open_channel(url: str) -> AsyncIterator[Any]:
    async with (
        await aio_pika.connect(url) as connection,
        connection.channel(on_return_raises=True) as channel,
    ):
        yield channel


async def declare(url: str, queues: BrokerOptions) -> None:
    """Makes the queues, as the first program does that uses them."""
    async with connected(structs.replace(queues, broker_url=url)):
        pass


async def publish(url: str, queue: str, jobs: Iterable[Any]) -> None:
    """Puts jobs into a queue, in this order."""
    async with open_channel(url) as channel:
        for item in jobs:
            await channel.default_exchange.publish(item, queue)


async def take(url: str, queue: str, count: int) -> list[Any]:
    """Waits for a number of messages in a queue, and takes them out."""
    taken: list[Any] = []
    async with asyncio.timeout(GIVE_UP_S), open_channel(url) as channel:
        source = await channel.get_queue(queue)
        async with source.iterator() as messages:
            async for message in messages:
                await message.ack()
                taken.append(message)
                if len(taken) == count:
                    break
    return taken


async def depth(url: str, queue: str) -> int:
    """How many messages wait in a queue."""
    async with open_channel(url) as channel:
        declared = await channel.declare_queue(queue, passive=True)
        return int(declared.declaration_result.message_count)


def metrics_when(port: int, condition: Callable[[set[str]], bool]) -> set[str]:
    """The lines of a gateway's metrics, once they are so."""

    def lines() -> set[str]:
        with urllib.request.urlopen(f"http://localhost:{port}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return set(response.read().decode().splitlines())

    return wait_until(lines, condition)
