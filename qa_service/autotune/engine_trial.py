"""Runs the candidates for the choice of an engine, each in a worker process.

It blocks, so it runs outside the loop's process: as a program, or for `--print_engines`.

As a program, `python -m qa_service.autotune.engine_trial FD PARENT` reads a request from its
descriptor, keeps the table in the model's folder, and replies.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from qa_service.autotune.engine_race import MAX_ROUNDS, Offsets, Race, Record
from qa_service.autotune.engine_table import (
    MIN_AGREEMENT,
    EngineTable,
    Measurement,
    TrialReply,
    TrialRequest,
    encode_trial,
)
from qa_service.child_program import end_with_parent, inherited_socket
from qa_service.data.squad import AGREEMENT_QUESTIONS, read_squad
from qa_service.errors import InternalError, SetupError
from qa_service.instance.channel import WORKER_PROGRAM, WorkerChannel, launch
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.instance.worker_messages import (
    Answers,
    Batch,
    Failed,
    Failure,
    Ready,
    Results,
    Setup,
    ToLoop,
    encode,
    to_loop_decoder,
)
from qa_service.logs import LogOptions, configure_logging
from qa_service.wire.messages import Task

logger = logging.getLogger(__name__)

NUM_TEXTS = (3, 2, 1)
"""How many bundled texts, of some 90 tokens each, make up a question's text: in the timed rounds
each of these numbers in turn, so that lengths differ; in the others the last."""

LIMIT_S = 5.0
"""No other candidate begins after this time: to load one and run its duel takes 2 to 3 s, in which
the server has the less of the machine, or is not ready."""
END_S = 8.0
"""No more answers than `MIN_ANSWERS` are compared after this time."""

ROUND_SIZE = 8
"""Four questions alone, and four in a batch."""
SAY_EVERY_S = 3.0
"""The interval of the log's lines: two or three of them at a first start."""
LOWEST_PRIORITY = 19
"""As nice(1) counts: next to a busy instance, a program of it gets 1 or 2 % of a core."""


def bundled_rounds() -> list[list[Task]]:
    """The bundled questions, `ROUND_SIZE` a round."""
    items = read_squad(AGREEMENT_QUESTIONS)
    contexts = list(dict.fromkeys(item.context for item in items))
    rounds: list[list[Task]] = []
    for start in range(0, len(items) - ROUND_SIZE + 1, ROUND_SIZE):
        is_timed = len(rounds) < MAX_ROUNDS
        num_texts = NUM_TEXTS[len(rounds) % len(NUM_TEXTS)] if is_timed else NUM_TEXTS[-1]
        tasks = []
        for item in items[start : start + ROUND_SIZE]:
            at = contexts.index(item.context)
            texts = [contexts[(at + step) % len(contexts)] for step in range(num_texts)]
            tasks.append(Task(item.question, " ".join(texts)))
        rounds.append(tasks)
    return rounds


def try_engines(
    measurement: Measurement, logs: LogOptions, *, measures_all: bool = False
) -> EngineTable:
    """Starts an instance for each candidate, compares them, and ends them.

    All are measured if `measures_all`, however long that takes. A `SetupError` says that no
    candidate in float32 can run.
    """
    try:
        return _race(measurement, logs, measures_all=measures_all)
    except SetupError as error:
        following = measurement.with_next_reference(str(error))
        if following is None:
            raise
        logger.warning("%s cannot run: %s", measurement.findings[0], error)
        return try_engines(following, logs, measures_all=measures_all)


def _race(measurement: Measurement, logs: LogOptions, *, measures_all: bool) -> EngineTable:
    candidates = measurement.candidates
    limit_s, end_s = (math.inf, math.inf) if measures_all else (LIMIT_S, END_S)
    progress = Progress(measurement.setup.model_dir, len(candidates), end_s)
    with ExitStack() as stack:
        stack.callback(progress.end)
        records = [
            Record(finding, stack.enter_context(Instance(setup, logs)))
            for finding, setup in candidates
        ]
        race = Race(
            records,
            bundled_rounds(),
            MIN_AGREEMENT,
            elapsed_s=progress.elapsed_s,
            say=progress.say,
            limit_s=limit_s,
            end_s=end_s,
        )
        return measurement.table(race.run())


class Progress:
    """Shows what is measured: a line that changes at a terminal, else a log line now and then."""

    def __init__(self, model: str, num_candidates: int, end_s: float) -> None:
        self._model, self._num_candidates, self._end_s = model, num_candidates, end_s
        self._is_terminal = sys.stderr.isatty()
        self._started_s = time.monotonic()
        self._said_s = -math.inf

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, what: str, number: int) -> None:
        """Shows a step and how many candidates it has reached."""
        elapsed_s = self.elapsed_s()
        words = f"measuring engines for {self._model}: {what}, {number} of {self._num_candidates}"
        if self._end_s < math.inf:
            words += f"; about {max(1.0, self._end_s - elapsed_s):.0f} s left"
        if self._is_terminal:
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        elif elapsed_s >= self._said_s + SAY_EVERY_S:
            self._said_s = elapsed_s
            logger.info("%s", words)

    def end(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Instance:
    """A `Candidate` in a worker process."""

    def __init__(self, setup: Setup, logs: LogOptions) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._setup, self._logs = setup, logs
        self._is_ready = False

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process:
            self._socket.close()
            self.process.kill()
            self.process.wait()
            self.process, self._is_ready = None, False

    def start(self) -> None:
        if self.process:
            return
        try:
            self.process, self._socket = launch(WORKER_PROGRAM, self._setup, self._logs)
            self._channel = WorkerChannel(self._socket)
            self._socket.settimeout(self._setup.options.start_timeout_s)
            self._socket.sendall(encode(self._setup))
        except OSError as error:
            raise SetupError(f"its process cannot be started: {error}") from None

    def prove(self) -> Ready:
        """Waits until the model is loaded and has given its known answers."""
        self.start()
        ready = self._exchange()
        assert isinstance(ready, Ready)
        self._is_ready = True
        return ready

    def ask(self, tasks: Sequence[Task]) -> tuple[float, list[Offsets | None]]:
        """Answers a batch, once the model is loaded."""
        if not self._is_ready:
            self.prove()
        results = self._exchange(encode(Batch(0, list(tasks))))
        assert isinstance(results, Results)
        found: list[Offsets | None] = []
        for outcome in results.outcomes:
            if isinstance(outcome, Failure) and outcome.code == InternalError.code:
                raise SetupError(f"it failed on a question: {outcome.message}")
            best = outcome.answers[0] if isinstance(outcome, Answers) else None
            found.append((best.start, best.end) if best else None)
        return results.inference_ms, found

    def _exchange(self, sent: bytes | bytearray = b"") -> ToLoop:
        """Sends bytes, and waits for the next message."""
        try:
            if sent:  # to send nothing fails too once the process has ended, and hides why
                self._socket.sendall(sent)
            body = self._channel.receive_body()
        except OSError as error:
            raise SetupError(f"its process ended or hangs: {error}") from None
        if body is None:
            raise SetupError("its process ended")
        message: ToLoop = to_loop_decoder.decode(body)
        if isinstance(message, Failed):
            raise SetupError(message.message)
        return message


def reply_to(request: TrialRequest) -> TrialReply:
    measurement = request.measurement
    try:
        table = try_engines(measurement, request.logs)
    except (SetupError, OSError) as error:
        return TrialReply(failure=str(error))
    keep(Path(measurement.path), table)
    return TrialReply(table)


def main(arguments: Sequence[str]) -> None:
    descriptor, parent = map(int, arguments)
    end_with_parent(parent)
    with inherited_socket(descriptor) as sock:
        body = WorkerChannel(sock).receive_body()
        if body is None:
            return
        request = msgspec.msgpack.decode(body, type=TrialRequest)
        configure_logging(request.logs.log_level, request.logs.log_format)
        if request.is_beside:
            os.nice(LOWEST_PRIORITY)
        with contextlib.suppress(OSError):
            sock.sendall(encode_trial(reply_to(request)))


if __name__ == "__main__":
    main(sys.argv[1:])
