"""Workers whose instances are the test: the test holds the other end of their channels."""

import socket

from qa_service.errors import ERROR_KINDS
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.messages import Setup
from qa_service.server.instances.base import Worker, WorkerState
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.telemetry.metrics import ModelMetrics

DRAIN_TIMEOUT_S = 30.0


class HandledWorker(Worker):
    """Its instance is played by the test, at `peer`."""

    def _launch(self):
        ours, theirs = socket.socketpair()
        self.peer = WorkerChannel(theirs)
        return ours

    status: str | None = "ended"
    was_killed = False
    is_killed = False

    def kill(self):
        self.is_killed = True

    def exit_status(self):
        return self.status


class HandledPool:
    """A pool of them, and what it reports."""

    waiting_s = 0.0

    def __init__(self, loop, options, kind=WorkerPool):
        self.loop, self.options = loop, options
        self.workers, self.lost, self.results = {}, [], []
        self.metrics = ModelMetrics(ERROR_KINDS)
        self.pool = kind(loop, options, self.make, self.metrics, drain_timeout_s=DRAIN_TIMEOUT_S)
        self.pool.batches = self

    def make(self, number, listener):
        worker = HandledWorker(number, self.loop, listener, Setup("", self.options))
        if worker.state is not WorkerState.DEAD:
            worker.peer.receive()
        self.workers[number] = worker
        return worker

    def close(self):
        self.pool.close()
        for worker in self.workers.values():
            worker.peer.close()
        self.loop.close()
