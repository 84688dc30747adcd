"""RabbitMQ through aio-pika: durable queues, confirmed publishing, mandatory routing.

    producers ─▶ qa.jobs ─▶ gateway ─▶ reply_to, or qa.results
                 ▲     │      │  └───▶ qa.dead
                 │     │      ▼             ▲
                 │     │   qa.retry.1s, .5s, .30s
                 │     └─── delivery limit, expired ─┘
                 └──── their TTL is over ────┘

All are quorum queues except `qa.dead`: people read it, and a read is a delivery, which must not
count against a limit. A queue passes a job on (after a retry's wait, or too many deliveries) at
least once: the job leaves only when the next queue has confirmed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelInvalidStateError,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)
from aiormq.exceptions import ChannelAccessRefused, InvalidFrameError

from qa_service.programs.jobs.brokers import (
    ATTEMPTS_HEADER,
    EXPIRES_HEADER,
    REASON_HEADER,
    BrokerError,
    Message,
    NotTakenError,
    SetupRefusedError,
    UnreadableError,
    UnroutableError,
)
from qa_service.programs.jobs.job import Job
from qa_service.programs.jobs.jobs_options import BrokerOptions

CONNECT_TIMEOUT_S = 10.0
"""Longer than three lost SYN packets: 1, 2 and 4 s (RFC 6298)."""
_LOST = (AMQPError, ChannelInvalidStateError, OSError)
_REFUSED = (AuthenticationError, ChannelAccessRefused, ChannelPreconditionFailed)


class RabbitMq:
    """`Broker` for RabbitMQ 3.10 and later, at `amqp://user:password@host:port/vhost`."""

    def __init__(self, url: str, queues: BrokerOptions) -> None:
        self._url, self._queues = url, queues
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel
        self._declared: dict[str, AbstractQueue] = {}
        self._consumer: tuple[AbstractQueue, str] | None = None
        self._lost: asyncio.Future[BrokerError]

    async def open(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        with _translated():
            try:
                self._connection = await aio_pika.connect(self._url, timeout=CONNECT_TIMEOUT_S)
            except ValueError as error:
                words = f"the broker's address cannot be used: {error}"
                raise SetupRefusedError(words) from error
            self._connection.close_callbacks.add(self._on_lost)
            channel = await self._connection.channel(on_return_raises=True)
            channel.close_callbacks.add(self._on_lost)
            self._channel = channel
            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(self._on_consumer_cancelled)
            queues = self._queues
            await self._declare_queue(queues.dead_queue, {})
            await self._declare_queue(queues.results_queue, {"x-queue-type": "quorum"})
            to_dead = _passing_on(queues.dead_queue) | {"x-delivery-limit": queues.delivery_limit}
            await self._declare_queue(queues.jobs_queue, to_dead)
            for queue, delay_s in queues.retry_queues():
                to_jobs = _passing_on(queues.jobs_queue) | {"x-message-ttl": delay_s * 1000}
                await self._declare_queue(queue, to_jobs)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_LOST, asyncio.TimeoutError):
                await asyncio.wait_for(connection.close(), CONNECT_TIMEOUT_S)

    async def lost(self) -> None:
        raise await asyncio.shield(self._lost)

    async def consume(self, queue: str, take: Callable[[Job], None], prefetch: int) -> None:
        async def deliver(message: AbstractIncomingMessage) -> None:
            take(_job(message))

        with _translated():
            await self._channel.set_qos(prefetch_count=prefetch)
            tag = await self._declared[queue].consume(deliver)
        self._consumer = self._declared[queue], tag

    async def stop_consuming(self) -> None:
        if self._consumer is not None:
            queue, tag = self._consumer
            self._consumer = None
            with _translated():
                await queue.cancel(tag)

    async def publish(self, queue: str, message: Message) -> None:
        if len(queue.encode()) > 255:
            raise UnroutableError(f"{queue[:40]}… is too long for a queue's name")
        outgoing = aio_pika.Message(
            message.body,
            headers=dict(message.headers),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            expiration=message.expiration_s,
            message_id=message.message_id,
        )
        with _translated():
            try:
                await self._channel.default_exchange.publish(outgoing, queue)
            except PublishError:
                raise UnroutableError(f"there is no queue {queue}") from None

    async def acknowledge(self, job: Job) -> None:
        with _translated():
            await job.receipt.ack()

    async def give_back(self, job: Job) -> None:
        with _translated():
            await job.receipt.nack(requeue=True)

    async def drain(self, queue: str) -> AsyncIterator[Job]:
        while True:
            with _translated():
                message = await self._declared[queue].get(fail=False)
            if message is None:
                return
            yield _job(message)

    async def count(self, queue: str) -> tuple[int, int]:
        with _translated():
            declared = await self._channel.declare_queue(queue, passive=True)
        result = declared.declaration_result
        return result.message_count or 0, result.consumer_count or 0

    async def _declare_queue(self, name: str, arguments: dict[str, Any]) -> None:
        self._declared[name] = await self._channel.declare_queue(
            name, durable=True, arguments=arguments
        )

    def _on_lost(self, _sender: object, error: BaseException | None = None) -> None:
        """Keeps the first reason: a lost channel or connection is reported before the other."""
        if not self._lost.done():
            is_unreadable = isinstance(error, InvalidFrameError)
            kind = UnreadableError if is_unreadable else BrokerError
            self._lost.set_result(kind(f"the connection to the broker was lost: {error}"))

    def _on_consumer_cancelled(self, *_: object) -> None:
        """The broker ended the delivery, for example because the queue was deleted."""
        self._on_lost(self)


make_broker = RabbitMq


def _passing_on(queue: str) -> dict[str, Any]:
    """Arguments of a quorum queue that passes its dead letters on to another, at least once."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def _job(message: AbstractIncomingMessage) -> Job:
    now_s, left_ms = time.monotonic(), _count(message.headers, EXPIRES_HEADER)
    left_s = None if left_ms is None else left_ms / 1e3
    if isinstance(message.expiration, int | float):
        left_s = message.expiration
    return Job(
        body=message.body,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        deadline_s=None if left_s is None else now_s + left_s,
        attempts=_count(message.headers, ATTEMPTS_HEADER) or 0,
        reason=_reason(message.headers),
        arrived_s=now_s,
        receipt=message,
    )


def _count(headers: Mapping[str, Any], name: str) -> int | None:
    """A header's positive number; None for anything else a producer may have written."""
    value = headers.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _reason(headers: Mapping[str, Any]) -> str | None:
    """The gateway's reason, or else the broker's for passing the job on."""
    if isinstance(reason := headers.get(REASON_HEADER), str):
        return reason
    match headers:
        case {"x-death": [{"reason": str(reason), "queue": str(queue)}, *_]}:
            return f"{reason} in {queue}"
    return None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise SetupRefusedError(f"the broker refuses: {error}") from error
    except DeliveryError as error:
        raise NotTakenError(f"the broker did not take a message: {error}") from error
    except (*_LOST, TimeoutError) as error:
        raise BrokerError(f"no connection to the broker: {error}") from error
