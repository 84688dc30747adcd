"""Workers without processes: the real `Worker`, and at the other end of its channel a program.

It loads for a while, says that it is ready, and answers batches one after another, each in the
time that its cost says. It does wrong when it is told to: it is slow, hangs, dies, cannot start,
fails requests, or sends what is no results.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from qa_service.instance.batch_cost import CostTable
from qa_service.instance.messages import (
    MAX_MESSAGE_BYTES,
    Answers,
    Batch,
    Failed,
    Failure,
    ModelFacts,
    Ready,
    Results,
    Setup,
    encode,
    to_worker_decoder,
)
from qa_service.server.instances.base import Worker
from qa_service.wire.frames import FrameReader
from qa_service.wire.messages import Answer
from qa_service.wire.spans import ScoredSpan, SegmentResult, log_sum_exp
from tests.simulation.network import Peer, SimulatedSocket
from tests.simulation.questions import ABSENT, FAULT, POISON, find_key, score_of
from tests.simulation.world import World

CHANNEL_BYTES = 1 << 18
EXIT_S = 0.005
WINDOW_TOKENS, OVERLAP_TOKENS = 64, 16
KEY_LOG_SCORE, FILLER_LOG_SCORE = 8.0, -4.0
LENGTHS, SIZES = (16, 64, 256), (1, 2, 4, 8, 16)


def batch_ms(rows: int, longest: int, saving: float) -> float:
    """What a batch takes: rows together are cheaper by a share of what they take apart."""
    alone_ms = 0.5 + 0.03 * longest
    return alone_ms * (1 + (rows - 1) * (1 - saving))


@dataclass
class Machine:
    """All processes of the workers, and what is wrong with them.

    Attributes:
        saving: The share of a row's cost that a batch saves.
        measures: Whether instances say what batches cost.
        slowness: How many times longer batches take than they cost.
        bad_starts: How the next instances fail to start: `refuse`, `fail`, `die`, `hang`.
        bad_batches: What becomes of the next batches: `die`, `hang`, `short`, `long`, `garbage`.
        processes: Those that have not ended.
        deaths: By question, how many instances have died running it.
    """

    world: World
    saving: float = 0.3
    measures: bool = True
    load_s: float = 0.05
    slowness: float = 1.0
    bad_starts: deque[str] = field(default_factory=deque)
    bad_batches: deque[str] = field(default_factory=deque)
    processes: list[Process] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)

    def heal(self) -> None:
        """Nothing is wrong from now on; what hangs is still hung."""
        self.slowness = 1.0
        self.bad_starts.clear()
        self.bad_batches.clear()

    def kill(self, number: int) -> None:
        """Kills one of the processes."""
        if self.processes:
            self.processes[number % len(self.processes)].die("ended by SIGKILL")

    def table(self) -> CostTable | None:
        """What instances say that batches cost."""
        if not self.measures:
            return None
        rows = [tuple(batch_ms(n, length, self.saving) for n in SIZES) for length in LENGTHS]
        return CostTable(LENGTHS, SIZES, tuple(rows), "simulated")


class SimulatedWorker(Worker):
    """The real worker, whose process is simulated."""

    def __init__(self, number, loop, listener, setup, machine):
        self._machine = machine
        super().__init__(number, loop, listener, setup)

    def _launch(self):
        start = self._machine.bad_starts.popleft() if self._machine.bad_starts else ""
        if start == "refuse":
            raise OSError("out of processes")
        self._process = Process(self._machine, start)
        return self._process.sock

    def kill(self):
        self._process.die("ended by SIGKILL")

    def exit_status(self):
        return self._process.exit_status()


class Process(Peer):
    """The program of an instance.

    Args:
        start: How it fails to start; empty if it does start.
    """

    def __init__(self, machine: Machine, start: str) -> None:
        self._machine, self._world, self._start = machine, machine.world, start
        self.sock = SimulatedSocket(self._world, self, CHANNEL_BYTES)
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        self._setup: Setup | None = None
        self._batches: deque[Batch] = deque()
        self._running: Batch | None = None
        self._status = ""
        self._ended_s = 0.0
        machine.processes.append(self)

    def exit_status(self) -> str | None:
        is_gone = self._status and self._world.time_s >= self._ended_s + EXIT_S
        return self._status if is_gone else None

    def die(self, status: str) -> None:
        """Ends; whoever is at the other end of its channel sees that."""
        if self._status:
            return
        self._status, self._ended_s = status, self._world.time_s
        self._machine.processes.remove(self)
        if self._running:
            self._machine.deaths.update({task.question for task in self._running.tasks})
        self.sock.end_input()

    def pump(self) -> None:
        if self._status:
            return
        self._frames.feed(self.sock.take(CHANNEL_BYTES))
        while (frame := self._frames.next_frame()) is not None:
            message = to_worker_decoder.decode(frame)
            if isinstance(message, Setup):
                self._setup = message
                self._world.after(self._machine.load_s, self._end_start)
            else:
                self._batches.append(message)
        if self.sock.out_ended and not self._running:
            self.die("exited with 0")
        self._run_next()

    def _end_start(self) -> None:
        if self._status or self._start == "hang":
            return
        if self._start == "die":
            self.die("ended by SIGSEGV")
        elif self._start == "fail":
            self._send(Failed("the model is broken"))
            self.die("exited with 1")
        else:
            folder = self._setup.model_dir.rsplit("/", 2)
            facts = ModelFacts(
                folder[-2], WINDOW_TOKENS, OVERLAP_TOKENS, None, self._setup.fingerprint
            )
            self._send(Ready(facts, self._machine.table(), memory_bytes=1 << 20))

    def _run_next(self) -> None:
        if self._running or self._status or not self._batches:
            return
        self._running = batch = self._batches.popleft()
        tokens = [3 + (len(task.question) + len(task.text)) // 4 for task in batch.tasks]
        took_ms = batch_ms(len(tokens), max(tokens), self._machine.saving) * self._machine.slowness
        fault = self._machine.bad_batches.popleft() if self._machine.bad_batches else ""
        started_s = self._world.time_s
        if fault != "hang":
            happening = lambda: self._end_batch(batch, fault, started_s, took_ms)  # noqa: E731
            self._world.after(took_ms / 1e3, happening)

    def _end_batch(self, batch: Batch, fault: str, started_s: float, took_ms: float) -> None:
        if self._status:
            return
        if fault == "die" or any(task.question.startswith(POISON) for task in batch.tasks):
            self.die("ended by SIGSEGV")
            return
        self._running = None
        outcomes = [self._outcome(task) for task in batch.tasks]
        if fault == "short":
            outcomes.pop()
        elif fault == "long":
            outcomes.append(Failure("invalid_request", "who is that?"))
        if fault in {"short", "long", "garbage"}:
            self._machine.deaths.update({task.question for task in batch.tasks})
        if fault == "garbage":
            self.sock.deliver(b"\0\0\0\3???")
        else:
            self._send(Results(batch.number, outcomes, started_s, took_ms))
        if self.sock.closed:
            self.die("exited with 0")
        self._run_next()

    def _outcome(self, task):
        question, text = task.question, task.text
        found = find_key(question, text)
        if task.core:
            return _segment_result(text, task.core, found, is_absent=question.startswith(ABSENT))
        if question.startswith(FAULT):
            return Failure("question_too_long", "it breaks")
        score = score_of(self._setup.fingerprint, question, text)
        if found is None:
            return Answers([Answer("", score, None, None)])
        start, end = found
        answers = [Answer(text[start:end], score, start, end), Answer(text[:1], 0.01, 0, 1)]
        return Answers(answers[: task.top_k])

    def _send(self, message) -> None:
        self.sock.deliver(bytes(encode(message)))


def _segment_result(text, core, found, *, is_absent):
    """What is found in a segment: the key if it starts in the core, beside what is improbable."""
    spans = [] if is_absent else [ScoredSpan(FILLER_LOG_SCORE, core[0], core[0] + 1)]
    if found and core[0] <= found[0] < core[1]:
        spans.insert(0, ScoredSpan(KEY_LOG_SCORE, *found))
    return SegmentResult(spans, log_sum_exp([s.log_score for s in spans]), 3 + len(text) // 4)
