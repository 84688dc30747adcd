"""What the gateway and the commands need of a broker, and which one an address names.

A broker holds named queues. It delivers each job to one consumer, and delivers it again if the
consumer disconnects without acknowledging it. In Redis, a queue is a stream with a consumer group;
in NATS, a JetStream stream with a durable consumer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol, Self
from urllib.parse import urlsplit

from qa_service.errors import SetupError
from qa_service.programs.jobs.job import Job
from qa_service.programs.jobs.jobs_options import (
    DEFAULT_URL,
    URL_FORM,
    URL_VARIABLE,
    BrokerOptions,
)

ATTEMPTS_HEADER = "qa-attempts"
EXPIRES_HEADER = "qa-expires-in-ms"
REASON_HEADER = "qa-reason"

_RABBITMQ = "qa_service.programs.jobs.rabbitmq"
BROKERS = {"amqp": _RABBITMQ, "amqps": _RABBITMQ}
"""The module of each, which has a `make_broker`; only that of the address is imported."""


class BrokerError(Exception):
    """The broker cannot be reached, or the connection to it was lost; it may come back."""


class NotTakenError(BrokerError):
    """The broker did not take a message; it may take it later."""


class UnreadableError(BrokerError):
    """The connection was lost over a message whose properties cannot be read."""


class UnroutableError(Exception):
    """The queue that a message names does not exist; the broker did not take the message."""


class SetupRefusedError(SetupError):
    """The broker refuses the program's queues or credentials; a person must change that."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is published.

    Attributes:
        message_id: Consumers deduplicate by it.
        expiration_s: The broker moves a waiting message to `dead` after this; None for never.
    """

    body: bytes
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration_s: float | None = None
    headers: dict[str, str | int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, headers: dict[str, str | int]) -> Self:
        return cls(job.body, job.message_id, job.correlation_id, job.reply_to, None, headers)


class Broker(Protocol):
    """A connection to a broker. Every method but `close` raises `BrokerError` without one."""

    async def open(self) -> None:
        """Connects, and declares the queues; `SetupRefusedError` if one is not as it should be."""

    async def close(self) -> None:
        """Disconnects. Jobs that were not acknowledged go back to their queue."""

    async def lost(self) -> None:
        """Raises `BrokerError`, or `UnreadableError`, when the connection is lost."""

    async def consume(self, queue: str, take: Callable[[Job], None], prefetch: int) -> None:
        """Delivers jobs to `take`, which must not wait, with at most `prefetch` unacknowledged."""

    async def stop_consuming(self) -> None:
        """Ends the delivery; delivered jobs can still be acknowledged."""

    async def publish(self, queue: str, message: Message) -> None:
        """Puts a message into a queue, and waits for the broker's confirmation.

        Raises:
            UnroutableError: There is no such queue.
            NotTakenError: The queue is full at present.
        """

    async def acknowledge(self, job: Job) -> None:
        """Removes a finished job from its queue."""

    async def give_back(self, job: Job) -> None:
        """Has a job delivered again."""

    def drain(self, queue: str) -> AsyncIterator[Job]:
        """Yields the jobs of a queue, each to be acknowledged or given back, until it is empty."""

    async def count(self, queue: str) -> tuple[int, int]:
        """How many messages wait in a queue, and how many consumers it has."""


def broker_from(options: BrokerOptions) -> Broker:
    """The broker that the options name, not connected yet.

    Its address is from the flag, or from the environment, which hides a password.

    Raises:
        SetupError: The broker's address is not one.
    """
    name, url = "--broker_url", options.broker_url
    if not url:
        name, url = URL_VARIABLE, os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in BROKERS and parts.hostname and parts.port != 0
    except ValueError:  # a malformed port
        is_one = False
    if not is_one:  # the message leaves it out: it may hold a password
        raise SetupError(f"{name} is not an address of the form {URL_FORM}")
    broker: Broker = importlib.import_module(BROKERS[parts.scheme]).make_broker(url, options)
    return broker


@contextlib.asynccontextmanager
async def connected(options: BrokerOptions) -> AsyncIterator[Broker]:
    """The broker that the options name, connected as long as the block runs."""
    broker = broker_from(options)
    try:
        await broker.open()
        yield broker
    finally:
        await broker.close()
