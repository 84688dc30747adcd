"""Clients in processes of their own, and what became of each of their requests.

So many processes run as there are clients at a time; each plays one client after another,
every client with a connection of its own. The processes are all up before the first
request leaves, and are used again rather than started for each client: starting Python
takes longer than answering a question, and on the same machine it would be measured too.

Results go up a pipe a tenth of a second's worth at a time, so that a process spends its
time on its requests.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import NamedTuple, Protocol

from qa_service.cli.access import Access
from qa_service.client import QaClient, QaClientError
from qa_service.squad import SquadQuestion

_REPORT_INTERVAL_S = 0.1

WRONG_SPAN = "wrong_span"
"""Error code of an answer that does not stand in the text where it is said to."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Who asks how much of whom.

    Attributes:
        host: The server's name or address.
        port: The server's TCP port.
        questions: What is asked, in turn, and from the beginning again; at least one.
        num_simultaneous_clients: Clients at a time.
        num_total_clients: Clients altogether.
        num_request_per_client: Requests of each client, one after another.
        timeout_s: Longest wait for a reply.
        access: How each client is let in.
    """

    host: str
    port: int
    questions: Sequence[SquadQuestion]
    num_simultaneous_clients: int = 5
    num_total_clients: int = 100
    num_request_per_client: int = 10
    timeout_s: float = 60.0
    access: Access = field(default_factory=Access)

    @property
    def num_requests(self) -> int:
        """Requests of all clients together."""
        return self.num_total_clients * self.num_request_per_client

    def questions_of(self, client: int) -> Iterator[SquadQuestion]:
        """The questions of one client, which go on where the last one's ended."""
        first = client * self.num_request_per_client
        for turn in range(first, first + self.num_request_per_client):
            yield self.questions[turn % len(self.questions)]


class Sample(NamedTuple):
    """What became of one request.

    Attributes:
        started_s: When it was about to be sent, by `time.perf_counter`, a clock that the
            processes of one machine share.
        latency_ms: From then to the arrival of the reply or the failure.
        error_code: Why it failed; empty if it was answered.
    """

    started_s: float
    latency_ms: float
    error_code: str = ""


class LoadError(Exception):
    """The load could not be made: a client process died."""


class _Counter(Protocol):
    """A `multiprocessing.Value` of an integer, with its lock."""

    value: int

    def get_lock(self) -> contextlib.AbstractContextManager[bool]: ...


def run_load(plan: LoadPlan) -> Iterator[list[Sample]]:
    """Makes the load, and yields results as they come, in no order.

    Raises:
        LoadError: A client process died.
    """
    num_processes = min(plan.num_simultaneous_clients, plan.num_total_clients)
    # Forked from a process that has imported what they need, so each is up in milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tqdm"])
    start, next_client = context.Barrier(num_processes), context.Value("q", 0)
    processes: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(num_processes):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (plan, next_client, start, theirs)
            process: BaseProcess = context.Process(
                target=_play_clients, args=arguments, daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        yield from _collect(dict(processes))
    finally:
        for results, process in processes.items():
            process.terminate()
            process.join()
            results.close()


def _collect(processes: dict[Connection, BaseProcess]) -> Iterator[list[Sample]]:
    """Passes on what the processes send until all have ended."""
    while processes:
        for results in wait(list(processes)):
            assert isinstance(results, Connection)
            try:
                yield results.recv()
            except EOFError:
                process = processes.pop(results)
                process.join()
                if process.exitcode:
                    raise LoadError(
                        f"a client process died (exit code {process.exitcode})"
                    ) from None


def _play_clients(
    plan: LoadPlan, next_client: _Counter, start: Barrier, results: Connection
) -> None:
    """Plays one client after another until all are played; runs in a process of its own."""
    # Ctrl-C reaches every process of a terminal; the parent is the one to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tls = plan.access.tls_context()
    start.wait()
    batch: list[Sample] = []
    reported_s = time.perf_counter()
    while (client := _take(next_client)) < plan.num_total_clients:
        for sample in play_client(plan, client, tls):
            batch.append(sample)
            if time.perf_counter() - reported_s > _REPORT_INTERVAL_S:
                results.send(batch)
                batch, reported_s = [], time.perf_counter()
    results.send(batch)


def _take(counter: _Counter) -> int:
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


def play_client(plan: LoadPlan, client: int, tls: ssl.SSLContext | None = None) -> Iterator[Sample]:
    """Connects, then asks this client's questions one after another.

    Args:
        plan: The load that the client is a part of.
        client: The client's number, which decides its questions.
        tls: What `plan.access` makes of its files, which are read once for all clients.
    """
    token = plan.access.token
    with QaClient(plan.host, plan.port, plan.timeout_s, tls=tls, token=token) as connected:
        # Not in the first request's latency; if it fails, each request says so itself.
        with contextlib.suppress(QaClientError):
            connected.connect()
        for question in plan.questions_of(client):
            yield _ask(connected, question)


def _ask(client: QaClient, question: SquadQuestion) -> Sample:
    started_s = time.perf_counter()
    try:
        answer = client.ask(question.question, question.context)
    except QaClientError as error:
        return Sample(started_s, (time.perf_counter() - started_s) * 1e3, error.code)
    right = not answer.known or question.context[answer.start : answer.end] == answer.answer
    return Sample(started_s, answer.latency_ms, "" if right else WRONG_SPAN)
