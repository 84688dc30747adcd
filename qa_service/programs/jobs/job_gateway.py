"""`jobs.py gateway`: jobs from a broker's queue, answers into another.

A job is acknowledged only after the gateway has done one of these:

    the server's answer            published to reply_to, or to the results queue
    queue_full                     asked again; after MAX_REFUSALS, as the next
    another retryable error        job to the next retry queue, with its attempts in a header
    a permanent error              error answer to reply_to, and job to the dead queue
    no queue for its answer        job to the dead queue
    a queue that takes no answer   given back after MAX_NOT_TAKEN attempts; counts as a delivery

Jobs are taken only while the server is connected. When the broker's connection is lost, jobs in
hand are dropped, and the broker delivers them again. A bad message fails alone: if even its
properties cannot be read, which ends the connection, the next jobs are taken one at a time, so that
the broker counts that message's deliveries and not those of its neighbours.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qa_service.client import QaClientError, QaServerError
from qa_service.programs.jobs.asker import Asker, ExpiredError, StoppedError
from qa_service.programs.jobs.brokers import (
    ATTEMPTS_HEADER,
    EXPIRES_HEADER,
    REASON_HEADER,
    Broker,
    BrokerError,
    Message,
    NotTakenError,
    UnreadableError,
    UnroutableError,
    broker_from,
)
from qa_service.programs.jobs.job import (
    Job,
    as_server_error,
    encode_answer,
    encode_error,
    parse_request,
    peek_id,
)
from qa_service.programs.jobs.jobs_options import GatewayOptions
from qa_service.wire.histogram import Histogram
from qa_service.wire.http.prometheus import (
    CONTENT_TYPE,
    Family,
    Labels,
    Sample,
    histogram_samples,
    write_text,
)

_PUBLISH_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CLIENT_TIMEOUT_S = 10.0
"""Prometheus's default `scrape_timeout`."""
_PUBLISH_HELP = "From publishing a message to the broker's confirmation."
_RECONNECT_S = 0.2
"""So short that little time is lost when the broker is back; an attempt costs little."""
_NOT_TAKEN_PAUSE_S = 1.0
MAX_NOT_TAKEN = 600
"""With the pauses, ten minutes; RabbitMQ waits thirty for the acknowledgement."""

_MAX_REASON_CHARS = 500
"""A header must fit into one AMQP frame with all others."""
_logger = logging.getLogger(__name__)


async def gateway_main(options: GatewayOptions) -> int:
    """Runs a gateway until SIGTERM or Ctrl-C; returns its exit code."""
    metrics = GatewayMetrics()
    gateway = JobGateway(broker_from(options.broker), Asker(options.asking), options, metrics)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, gateway.stop)
    with ExitStack() as stack:
        if options.metrics_port is not None:
            stack.callback(metrics.serve(options.metrics_host, options.metrics_port))
        await gateway.run()
    return 0


class JobGateway:
    """Takes jobs, asks, publishes answers, until it is stopped."""

    def __init__(
        self, broker: Broker, asker: Asker, options: GatewayOptions, metrics: GatewayMetrics
    ) -> None:
        self._broker, self._asker, self._metrics = broker, asker, metrics
        self._options, self._queues = options, options.broker
        self._stopping = asyncio.Event()
        self._orders = itertools.count()
        self._in_hand: dict[asyncio.Task[None], Job] = {}
        self._num_serial = 0  # jobs to take one at a time
        self._all_alone_done = asyncio.Event()
        asker.on_queue_full = metrics.count_queue_full
        metrics.add_gauge("qa_jobs_in_flight", "Questions asked.", lambda: asker.window.in_flight)
        metrics.add_gauge("qa_jobs_in_hand", "Jobs delivered.", lambda: len(self._in_hand))
        metrics.add_gauge("qa_jobs_window", "Most in flight.", lambda: asker.window.limit.value)
        metrics.add_gauge("qa_jobs_oldest_age_seconds", "Of the jobs in hand.", self._oldest_s)

    def stop(self) -> None:
        """Takes no more jobs, finishes what is in flight, returns the rest."""
        self._stopping.set()
        self._asker.window.stop()

    async def run(self) -> None:
        """Runs until `stop`.

        Raises:
            SetupRefusedError: The broker refuses the gateway's queues or credentials.
        """
        async with self._asker.running():
            while not self._stopping.is_set():
                try:
                    await self._until_lost()
                except BrokerError as error:
                    _logger.warning("%s", error)
                    await _first(asyncio.sleep(_RECONNECT_S), self._stopping.wait())

    async def _until_lost(self) -> None:
        """Works until the connection to the broker is lost, or the gateway is stopped."""
        await _first(self._asker.connected(), self._stopping.wait())
        if self._stopping.is_set():
            return
        try:
            await self._broker.open()
            if self._num_serial:
                await self._take_jobs(1, self._all_alone_done.wait())
            await self._take_jobs(self._options.asking.prefetch)
            await self._wait_for_jobs(self._options.drain_timeout_s)
        except UnreadableError:
            self._num_serial = self._options.asking.prefetch
            self._all_alone_done.clear()
            raise
        finally:
            for task in self._in_hand:
                task.cancel()
            await self._wait_for_jobs(None)
            await self._broker.close()

    async def _take_jobs(self, prefetch: int, *until: Coroutine[Any, Any, object]) -> None:
        """Takes jobs until a condition is met, or the gateway is stopped."""
        await self._broker.consume(self._queues.jobs_queue, self._take, prefetch)
        _logger.info("taking jobs from %s, %d at a time", self._queues.jobs_queue, prefetch)
        await _first(self._broker.lost(), self._stopping.wait(), *until)
        await self._broker.stop_consuming()

    async def _wait_for_jobs(self, timeout_s: float | None) -> None:
        if self._in_hand:
            await asyncio.wait(list(self._in_hand), timeout=timeout_s)

    def _oldest_s(self) -> float:
        oldest = next(iter(list(self._in_hand.values())), None)
        return time.monotonic() - oldest.arrived_s if oldest else 0.0

    def _take(self, job: Job) -> None:
        self._metrics.consumed += 1
        task = asyncio.get_running_loop().create_task(self._handle(job, next(self._orders)))
        self._in_hand[task] = job
        task.add_done_callback(self._in_hand.pop)

    async def _handle(self, job: Job, order: int) -> None:
        """Settles a job, then acknowledges it; gives it back if it could not be settled."""
        with suppress(BrokerError):  # the broker delivers it again
            try:
                await self._settle(job, order)
            except (StoppedError, NotTakenError):
                await self._broker.give_back(job)
                return
            await self._broker.acknowledge(job)
            if self._num_serial:
                self._num_serial -= 1
                if not self._num_serial:
                    self._all_alone_done.set()

    async def _settle(self, job: Job, order: int) -> None:
        """Asks, and publishes the answer or deals with the error.

        Raises:
            StoppedError: The job was not asked.
            NotTakenError: The broker does not take the message.
            BrokerError: The connection was lost.
        """
        try:
            if not job.message_id:
                raise QaServerError("invalid_request", "the job has no message_id")
            request = parse_request(job.body)
            answer = encode_answer(
                request.get("id"), await self._asker.ask(request, order, job.deadline_s)
            )
        except StoppedError:
            raise
        except QaClientError as error:
            await self._fail(job, as_server_error(error))
            return
        except Exception as error:
            _logger.exception("job %s", job.message_id)
            reason = f"the gateway failed with {type(error).__name__}"
            await self._fail(job, QaServerError("internal_error", reason))
            return
        try:
            await self._reply(job, answer)
            self._metrics.answered += 1
        except UnroutableError as error:
            await self._dead_letter(job, "unroutable", str(error))

    async def _fail(self, job: Job, error: QaServerError) -> None:
        """Retries the job later if its error allows it; else answers with the error."""
        attempts = job.attempts + 1
        if error.retryable and attempts < self._options.asking.max_attempts:
            queue, delay_s = self._queues.retry_queue_of(attempts)
            headers: dict[str, str | int] = {ATTEMPTS_HEADER: attempts, REASON_HEADER: error.code}
            left_s = math.inf
            if job.deadline_s is not None:
                left_s = job.deadline_s - time.monotonic() - delay_s
                headers[EXPIRES_HEADER] = int(left_s * 1e3)
            if left_s > 0:
                _logger.info("job %s: %s; again in %d s", job.message_id, error.code, delay_s)
                await self._publish(queue, Message.of(job, headers))
                self._metrics.retried[error.code] += 1
                return
            error = ExpiredError()  # it would expire in the retry queue
        with suppress(UnroutableError):
            await self._reply(job, encode_error(peek_id(job.body), error))
        await self._dead_letter(job, error.code, error.message)

    async def _reply(self, job: Job, body: bytes) -> None:
        correlation_id = job.correlation_id or job.message_id
        reply = Message(body, job.message_id, correlation_id)
        await self._publish(job.reply_to or self._queues.results_queue, reply)

    async def _dead_letter(self, job: Job, code: str, reason: str) -> None:
        _logger.warning("job %s is dead: %s (%s)", job.message_id, reason, code)
        words = f"{code}: {reason}"[:_MAX_REASON_CHARS]
        headers: dict[str, str | int] = {ATTEMPTS_HEADER: job.attempts + 1, REASON_HEADER: words}
        await self._publish(self._queues.dead_queue, Message.of(job, headers))
        self._metrics.dead[code] += 1

    async def _publish(self, queue: str, message: Message) -> None:
        """Publishes until the broker takes it; raises `NotTakenError` if it never does."""
        began_s = time.monotonic()
        for attempt in range(1, MAX_NOT_TAKEN + 1):
            try:
                await self._broker.publish(queue, message)
                break
            except NotTakenError as error:
                _logger.warning("%s: %s", queue, error)
                if attempt == MAX_NOT_TAKEN:
                    raise
                await asyncio.sleep(_NOT_TAKEN_PAUSE_S)
        self._metrics.publish_s.observe(time.monotonic() - began_s)


async def _first(*waiting: Coroutine[Any, Any, object]) -> None:
    """Waits for the first of these to end, and raises its exception."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class GatewayMetrics:
    """The gateway's counters; each metric's text says what it counts."""

    def __init__(self) -> None:
        self.consumed = self.answered = self.queue_full = 0
        self.retried: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.publish_s = Histogram(_PUBLISH_BUCKETS_S)
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count_queue_full(self) -> None:
        self.queue_full += 1

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._gauges[name] = text, read

    def families(self) -> Iterator[Family]:
        yield _total("consumed", "Jobs delivered.", [(self.consumed, {})])
        yield _total("answered", "Jobs answered.", [(self.answered, {})])
        yield _total("retried", "Jobs put off.", _by_code(self.retried))
        yield _total("dead", "Jobs that failed.", _by_code(self.dead))
        text = "Questions the server had no room for."
        yield _total("queue_full", text, [(self.queue_full, {})])
        samples = histogram_samples(self.publish_s.buckets(), self.publish_s.sum, {})
        yield Family("qa_jobs_publish_seconds", "histogram", _PUBLISH_HELP, samples)
        for name, (text, read) in self._gauges.items():
            yield Family(name, "gauge", text, [Sample(float(read()), {})])

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serves `GET /metrics` from a thread; returns a function that stops it."""
        server = _Server(host, port, self)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, metrics: GatewayMetrics) -> None:
        # http.server binds only IPv4 by default.
        [found, *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family, *_, address = found
        self.metrics = metrics
        super().__init__((str(address[0]), port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = write_text(self.server.metrics.families())
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: the gateway logs jobs."""


def _by_code(counted: Counter[str]) -> list[tuple[int, Labels]]:
    # A copy: the gateway's thread may count meanwhile.
    return [(count, {"code": code}) for code, count in counted.copy().items()]


def _total(name: str, text: str, counts: Sequence[tuple[int, Labels]]) -> Family:
    samples = [Sample(float(count), labels) for count, labels in counts]
    return Family(f"qa_jobs_{name}_total", "counter", text, samples)
