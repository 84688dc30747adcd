"""Instances that are the test: it holds the other ends of their channels, and their processes."""

import signal
import socket

from qa_service.errors import ERROR_KINDS
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.worker_messages import MAX_MESSAGE_BYTES, Ready, Setup
from qa_service.server.children.child import Child
from qa_service.server.instances.base import InstanceProgram, Worker, WorkerState
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.telemetry.metrics import ModelMetrics
from tests.support import run_until

DRAIN_TIMEOUT_S = 30.0
READY = Ready(can_test=True)


class HandledProcess:
    """A process that ends as the test says.

    Attributes:
        code: Its exit code; None while it runs.
        obeys: Whether it ends when it is killed.
    """

    pid = 1

    def __init__(self, code=1, *, obeys=False):
        self.code, self.obeys = code, obeys
        self.is_killed = False
        self.ours, theirs = socket.socketpair()
        self.peer = WorkerChannel(theirs)

    def poll(self):
        return self.code

    def kill(self):
        self.is_killed = True
        if self.obeys:
            self.code = -signal.SIGKILL


class HandledWorker(Worker):
    """A worker alone; the test is its instance, at `peer`, and its listener."""

    def __init__(self, loop, listener, setup):
        self.process = HandledProcess()
        self.peer = self.process.peer
        program = InstanceProgram(setup, lambda: (self.process, self.process.ours))
        child = Child(
            loop, "the instance", program.launch, on_data=self.take, on_start=self.begin,
            on_end=listener.on_worker_death, max_frame_bytes=MAX_MESSAGE_BYTES,
        )  # fmt: skip
        super().__init__(0, loop, listener, program, child)
        child.start()


class HandledPool:
    """A pool of them, and what it reports.

    Attributes:
        workers: The latest of each number, with its `process` and `peer`.
    """

    waiting_s = 0.0

    def __init__(self, loop, options, kind=WorkerPool, drain_timeout_s=DRAIN_TIMEOUT_S):
        self.loop, self.options = loop, options
        self.workers, self.lost, self.results = {}, [], []
        self.metrics = ModelMetrics(ERROR_KINDS)
        self.pool = kind(loop, options, self.make, self.metrics, drain_timeout_s=drain_timeout_s)
        self._begin, self.pool._begin = self.pool._begin, self.begin
        self.pool.batches = self

    def make(self, number):
        return InstanceProgram(Setup("", self.options), self.launch)

    def launch(self):
        self.launched = HandledProcess()
        return self.launched, self.launched.ours

    def begin(self, worker):
        worker.process, worker.peer = self.launched, self.launched.peer
        self.workers[worker.number] = worker
        self._begin(worker)
        if worker.state is not WorkerState.DEAD:
            worker.peer.receive()

    def on_results(self, batch, results):
        self.results.append(results)

    def on_lost(self, batch, *, were_running):
        self.lost += [(ticket.number, were_running) for ticket in batch]

    def settle(self, seconds=0.0):
        self.loop.clock.pass_s(seconds)
        rounds = iter(range(4))
        run_until(self.loop, lambda: next(rounds, None) is None)

    def hear(self, number, *messages, end=False):
        """An instance says something, and perhaps dies of it."""
        worker = self.workers[number]
        for message in messages:
            worker.peer.send(message)
        if end:
            worker.peer.close()
        awaited = WorkerState.DEAD if end else WorkerState.READY
        run_until(self.loop, lambda: worker.state is awaited)
        return worker

    def become_ready(self, *numbers, ready=READY):
        for number in numbers:
            self.hear(number, ready)

    def close(self):
        self.pool.close()
        self.pool.kill()
        for worker in self.workers.values():
            worker.peer.close()
        self.loop.close()
