"""Instances without processes: the real `Worker` and `Child`, and at the channel's end a program.

It loads for a while, says that it is ready, and answers batches one after another, each in the
time that its cost says. It does wrong when the script says: it is slow, hangs, dies, cannot start,
fails requests, sends what is no results, or computes wrongly.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qa_service.instance.batch_cost import CostTable
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.worker_messages import (
    MAX_MESSAGE_BYTES,
    Answers,
    Batch,
    Check,
    Checked,
    Failed,
    Failure,
    ModelFacts,
    Ready,
    Results,
    Setup,
    encode,
    to_worker_decoder,
)
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
        disk: The fingerprint of each version's files now, by model and number.
        has_other_files: Whether an instance has found other files than were planned.
        bad_starts: How the next instances fail to start: `refuse`, `fail`, `die`, `hang`, `wrong`,
            as with a graph that differs in one bucket.
        bad_batches: What becomes of the next batches: `die`, `hang`, `short`, `long`, `garbage`.
        processes: Those that have not ended.
        deaths: By question, how many instances have died running it.
        wrong_answers: By question, the instances that have answered it wrongly.
    """

    world: World
    saving: float = 0.3
    measures: bool = True
    load_s: float = 0.05
    slowness: float = 1.0
    disk: dict[str, dict[int, str]] = field(default_factory=dict)
    has_other_files: bool = False
    bad_starts: deque[str] = field(default_factory=deque)
    bad_batches: deque[str] = field(default_factory=deque)
    processes: list[Process] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    wrong_answers: dict[str, list[Process]] = field(default_factory=dict)

    def heal(self) -> None:
        """Nothing is wrong from now on; what hangs is still hung."""
        self.slowness = 1.0
        self.bad_starts.clear()
        self.bad_batches.clear()
        for process in self.processes:
            process.fault = ""

    def break_engine(self, number: int, how: str) -> None:
        """Has one of the instances compute wrongly, or run out of memory, from now on."""
        if self.processes:
            self.processes[number % len(self.processes)].fault = how

    def is_in_doubt(self, question: str, sent_s: float) -> bool:
        """Whether a wrong answer may be given: the instance had not failed its self-test then."""
        its = self.wrong_answers.get(question, [])
        return any(process.found_s is None or sent_s <= process.found_s for process in its)

    def kill(self, number: int) -> None:
        if self.processes:
            self.processes[number % len(self.processes)].die(-signal.SIGKILL)

    def launch(self) -> tuple[Process, Any]:
        start = self.bad_starts.popleft() if self.bad_starts else ""
        if start == "refuse":
            raise OSError("out of processes")
        process = Process(self, start)
        return process, process.sock

    @cached_property
    def table(self) -> CostTable | None:
        """What instances say that batches cost."""
        if not self.measures:
            return None
        rows = [tuple(batch_ms(n, length, self.saving) for n in SIZES) for length in LENGTHS]
        return CostTable(LENGTHS, SIZES, tuple(rows), "simulated")


class Process(Peer):
    """A process of an instance: what `subprocess.Popen` gives, and the program.

    Args:
        start: How it fails to start; empty if it does start.

    Attributes:
        fault: What its engine does: `wrong` scores, the `stale` spans of the task before, no
            results since its memory is `short`; empty while it is well.
        found_s: When it failed its self-test.
    """

    pid = 3

    def __init__(self, machine: Machine, start: str) -> None:
        self._machine, self._world, self._start = machine, machine.world, start
        self.sock = SimulatedSocket(self._world, self, CHANNEL_BYTES)
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        self._setup: Setup
        self._batches: deque[Batch | Check] = deque()
        self._running: Batch | Check | None = None
        self._last_score = 0.5
        self.fault = ""
        self.found_s: float | None = None
        self._code: int | None = None
        self._ended_s = 0.0
        machine.processes.append(self)

    def poll(self) -> int | None:
        return self._code if self._world.time_s >= self._ended_s + EXIT_S else None

    @property
    def _has_ended(self) -> bool:
        return self._code is not None

    def kill(self) -> None:
        self.die(-signal.SIGKILL)

    def die(self, code: int) -> None:
        """Ends; whoever is at the other end of its channel sees that."""
        if self._code is not None:
            return
        self._code, self._ended_s = code, self._world.time_s
        self._machine.processes.remove(self)
        if isinstance(self._running, Batch):
            self._machine.deaths.update({task.question for task in self._running.tasks})
        self.sock.end_input()

    def pump(self) -> None:
        if self._has_ended:
            return
        self._frames.feed(self.sock.take(CHANNEL_BYTES))
        while (frame := self._frames.next_frame()) is not None:
            message = to_worker_decoder.decode(frame)
            if isinstance(message, Setup):
                self._setup = message
                self._world.work(self._machine.load_s, self._end_start)
            else:
                self._batches.append(message)
        if self.sock.out_ended and not self._running:
            self.die(0)
        self._run_next()

    def _end_start(self) -> None:
        if self._has_ended or self._start == "hang":
            return
        if self._start == "die":
            self.die(-signal.SIGSEGV)
        elif self._start == "fail":
            self._send(Failed("the model is broken"))
            self.die(1)
        elif self._start == "wrong":
            self._end_wrong()
        elif not self._has_its_files():
            self._machine.has_other_files = True
            self._send(Failed("the folder has changed since its model was loaded"))
            self.die(1)
        else:
            folder = self._setup.model_dir.rsplit("/", 2)
            reading = ReadingConfig(window_overlap_tokens=OVERLAP_TOKENS)
            facts = ModelFacts(folder[-2], WINDOW_TOKENS, reading, self._setup.fingerprint)
            table = self._machine.table
            self._send(Ready(facts, table, memory_bytes=1 << 20, can_test=True))

    def _has_its_files(self) -> bool:
        """Whether the files are still those that the loop has planned."""
        *_, model, number = self._setup.model_dir.rsplit("/", 2)
        return self._machine.disk.get(model, {}).get(int(number)) == self._setup.fingerprint

    def _end_wrong(self) -> None:
        """Says that it does not give its known answers, and ends."""
        self.found_s = self._world.time_s
        self._send(Failed("it computes wrongly", is_blameless=True, is_wrong=True))
        self._running = None
        self.die(0)

    def _run_next(self) -> None:
        if self._running or self._has_ended or not self._batches:
            return
        self._running = batch = self._batches.popleft()
        if isinstance(batch, Check):
            took_ms = batch_ms(1, WINDOW_TOKENS, self._machine.saving) * self._machine.slowness
            self._world.work(took_ms / 1e3, lambda: self._end_check(batch))
            return
        tokens = [3 + (len(task.question) + len(task.text)) // 4 for task in batch.tasks]
        took_ms = batch_ms(len(tokens), max(tokens), self._machine.saving) * self._machine.slowness
        fault = self._machine.bad_batches.popleft() if self._machine.bad_batches else ""
        started_s = self._world.time_s
        if fault != "hang":
            happening = lambda: self._end_batch(batch, fault, started_s, took_ms)  # noqa: E731
            self._world.work(took_ms / 1e3, happening)

    def _end_check(self, check: Check) -> None:
        if self._has_ended:
            return
        if self.fault in {"wrong", "stale"}:
            self._end_wrong()
            return
        self._running = None
        self._send(Checked(check.number))
        if self.sock.out_ended:
            self.die(0)
        self._run_next()

    def _end_batch(self, batch: Batch, fault: str, started_s: float, took_ms: float) -> None:
        if self._has_ended:
            return
        if fault == "die" or any(task.question.startswith(POISON) for task in batch.tasks):
            self.die(-signal.SIGSEGV)
            return
        if self.fault == "short":
            self._send(Failed("the engine returned without an error and without results"))
            self.die(0)
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
        if self.sock.out_ended:
            self.die(0)
        self._run_next()

    def _outcome(self, task):
        question, text = task.question, task.text
        found = find_key(question, text)
        if task.core and self.fault:
            found, _ = self._spoiled(task, found)
        if task.core:
            return _segment_result(text, task.core, found, is_absent=question.startswith(ABSENT))
        if question.startswith(FAULT):
            return Failure("question_too_long", "it breaks")
        score = score_of(self._setup.fingerprint, question, text)
        if self.fault:
            found, score = self._spoiled(task, found)
        self._last_score = score
        if found is None:
            return Answers([Answer("", score, None, None)])
        start, end = found
        answers = [Answer(text[start:end], score, start, end), Answer(text[:1], 0.01, 0, 1)]
        return Answers(answers[: task.top_k])

    def _spoiled(self, task, found):
        """The span and the score that a broken engine gives."""
        self._machine.wrong_answers.setdefault(task.question, []).append(self)
        if self.fault == "stale":
            return (0, min(2, len(task.text))), self._last_score
        return found, score_of("wrong", task.question, task.text)

    def _send(self, message) -> None:
        self.sock.deliver(bytes(encode(message)))


def _segment_result(text, core, found, *, is_absent):
    """What is found in a segment: the key if it starts in the core, and improbable spans."""
    spans = [] if is_absent else [ScoredSpan(FILLER_LOG_SCORE, core[0], core[0] + 1)]
    if found and core[0] <= found[0] < core[1]:
        spans.insert(0, ScoredSpan(KEY_LOG_SCORE, *found))
    return SegmentResult(spans, log_sum_exp([s.log_score for s in spans]), 3 + len(text) // 4)
