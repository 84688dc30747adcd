"""Instances that are the test: it holds the other ends of their channels, and their processes."""

import signal
import socket
from typing import cast

from qa_service.errors import ERROR_KINDS
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import MAX_MESSAGE_BYTES, Answers, Ready, Results, Setup
from qa_service.server.children.child import Child, Launch
from qa_service.server.instances.base import InstanceProgram, Worker, WorkerState
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.instances.ray_pool import RayPool
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
        program = InstanceProgram(setup, cast(Launch, lambda: (self.process, self.process.ours)))
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

    def __init__(self, loop, num_local=1, *, drain_timeout_s=DRAIN_TIMEOUT_S, **options):
        self.loop = loop
        self.options = InstanceOptions(
            num_inference_sessions=num_local, inference_engine_type="instant", **options
        )
        self.workers, self.lost, self.results = {}, [], []
        self.metrics = ModelMetrics(ERROR_KINDS)
        kind = RayPool if "ray_instances" in options else WorkerPool
        self.pool = kind(
            loop, self.options, self.make, self.metrics, drain_timeout_s=drain_timeout_s
        )
        self._begin, self.pool._begin = self.pool._begin, self.begin
        self.pool.batches = self

    def make(self, number):
        return InstanceProgram(Setup("", self.options), cast(Launch, self.launch))

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

    def end(self, number, *messages, code: int | None = 1):
        """Ends an instance's process; it is reaped once its status is known."""
        self.workers[number].process.code = code
        return self.hear(number, *messages, end=True)

    def become_ready(self, *numbers, ready=READY):
        for number in numbers:
            self.hear(number, ready)

    def give(self, number, *tickets):
        """An instance's next message is this batch."""
        self.workers[number].run(tickets)
        return self.workers[number].peer.receive()

    def finish(self, number, batch):
        worker, answers = self.workers[number], [Answers([]) for _ in batch.tasks]
        worker.peer.send(Results(batch.number, [*answers], self.loop.now_s(), 1.0, StagesMs()))
        run_until(self.loop, lambda: batch.number not in worker.in_flight)

    def close(self):
        self.pool.close()
        self.pool.kill()
        for worker in self.workers.values():
            worker.peer.close()
        self.loop.close()
