"""What the gateway and the tools need of a broker. RabbitMQ is the first; others fit here.

A broker holds named queues. It delivers each job to one consumer, holds it until it is
acknowledged, and delivers it again if the consumer goes before that. To Redis Streams, a queue is
a stream with a consumer group; to NATS, a JetStream stream with a durable consumer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from qa_service.broker.job import Job

ATTEMPTS_HEADER = "qa-attempts"
EXPIRES_HEADER = "qa-expires-in-ms"
REASON_HEADER = "qa-reason"


class BrokerError(Exception):
    """The broker cannot be reached, or the connection to it was lost; it may come back."""


class NotTakenError(BrokerError):
    """The broker is there and did not take a message; it may later."""


class UnreadableError(BrokerError):
    """The connection was lost over a message whose properties cannot be read."""


class UnroutableError(Exception):
    """There is no queue of the name that a message was for; the broker did not take it."""


class SetupRefusedError(Exception):
    """The broker refuses what the program needs; a person must change that."""


@dataclass(frozen=True, slots=True)
class Names:
    """The queues.

    Attributes:
        dead: Jobs that failed for good, each with its reason.
        results: Answers to jobs that name no `reply_to`.
        retry: Prefix of the retry queues' names.
        retry_delays_s: The wait in each retry queue, the shortest first.
        delivery_limit: Deliveries of one job before the broker moves it to `dead`.
    """

    jobs: str = "qa.jobs"
    dead: str = "qa.dead"
    results: str = "qa.results"
    retry: str = "qa.retry"
    retry_delays_s: tuple[int, ...] = (1, 5, 30)
    delivery_limit: int = 20

    def retry_queue(self, attempts: int) -> tuple[str, int]:
        """The queue in which a job waits after so many attempts, and for how long in seconds."""
        delay_s = self.retry_delays_s[min(attempts, len(self.retry_delays_s)) - 1]
        return f"{self.retry}.{delay_s}s", delay_s

    def retry_queues(self) -> list[tuple[str, int]]:
        """All of them."""
        return [self.retry_queue(attempt + 1) for attempt in range(len(self.retry_delays_s))]


@dataclass(frozen=True, slots=True)
class Message:
    """What is published.

    Attributes:
        message_id: Consumers deduplicate by it.
        expires_in_ms: The broker moves a waiting message to `dead` after this; None for never.
    """

    body: bytes
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expires_in_ms: int | None = None
    headers: dict[str, str | int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, headers: dict[str, str | int]) -> Self:
        """The job itself, to be put into another queue."""
        return cls(job.body, job.message_id, job.correlation_id, job.reply_to, None, headers)


class Broker(Protocol):
    """A connection to a broker, of one program.

    Every method but `open` and `close` raises `BrokerError` when the connection is lost.
    """

    async def open(self) -> None:
        """Connects, and declares the queues; does nothing to those that are as they should be.

        Raises:
            BrokerError: There is no connection.
            SetupRefusedError: A queue is there and is not as it should be, or may not be used.
        """

    async def close(self) -> None:
        """Disconnects. What was delivered and not acknowledged goes back to its queue."""

    async def lost(self) -> None:
        """Waits for the connection to be lost; does not return.

        Raises:
            BrokerError: It was lost.
            UnreadableError: It was lost over one of the messages delivered.
        """

    async def consume(self, queue: str, take: Callable[[Job], None], prefetch: int) -> None:
        """Has jobs delivered from now on, in the queue's order.

        Args:
            take: Called with each job; must not wait.
            prefetch: How many jobs may be delivered and not acknowledged.
        """

    async def stop_consuming(self) -> None:
        """Has no more delivered; what was delivered can still be acknowledged."""

    async def publish(self, queue: str, message: Message) -> None:
        """Puts a message into a queue, and waits until the broker answers for it.

        Raises:
            UnroutableError: There is no such queue.
            NotTakenError: The queue takes no more at present.
        """

    async def acknowledge(self, job: Job) -> None:
        """The job is done with."""

    async def give_back(self, job: Job) -> None:
        """The job is to be delivered again."""

    def drain(self, queue: str) -> AsyncIterator[Job]:
        """The jobs that are in a queue now, each to be acknowledged or given back."""

    async def count(self, queue: str) -> tuple[int, int]:
        """How many messages wait in a queue, and how many consumers it has."""
