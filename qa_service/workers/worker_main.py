"""What runs inside a worker: load, warm up, then answer batches until the loop hangs up.

As a program (`python -m qa_service.workers.worker_main FD NICENESS LEVEL FORMAT`) it is the worker
process; the thread worker calls `serve` itself. Which libraries are loaded depends on the engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from qa_service.engines import EngineConfig, make_engine
from qa_service.errors import InternalError, QaError, SetupError
from qa_service.logs import configure_logging
from qa_service.manifest import load_manifest
from qa_service.protocol import Answer, Question
from qa_service.reading.reader import BatchLimits, Reader
from qa_service.workers.channel import (
    Answers,
    Batch,
    Failed,
    Failure,
    Ready,
    Results,
    Setup,
    WorkerChannel,
)

logger = logging.getLogger(__name__)

WARMUP = Question("Who wrote the letter?", "The letter was written by Ada in 1843. " * 20)


def serve(channel: WorkerChannel) -> None:
    """Sets the session up as told and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    try:
        reader = load_reader(setup)
        reader.read([WARMUP])
        reader.stopwatch.take()
    except SetupError as error:
        channel.send(Failed(str(error)))
        return
    channel.send(Ready(reader.model_name))
    while isinstance(batch := channel.receive(), Batch):
        channel.send(answer_batch(reader, batch))


def load_reader(setup: Setup) -> Reader:
    """Loads the model into its engine.

    Raises:
        SetupError: There is no prepared model, or the engine cannot load it.
    """
    model_dir = Path(setup.model_dir)
    manifest = load_manifest(model_dir)
    config = EngineConfig(setup.intra_op_num_threads, setup.precision)
    engine = make_engine(setup.engine_type, model_dir, manifest, config)
    limits = BatchLimits(setup.max_batch_size, setup.max_batch_tokens)
    return Reader(model_dir, manifest, engine.logits, limits)


def answer_batch(reader: Reader, batch: Batch) -> Results:
    """Answers a batch; a question that breaks it fails alone."""
    started_s = time.monotonic()
    outcomes = [_on_the_wire(outcome) for outcome in _read(reader, batch.questions)]
    inference_ms = round((time.monotonic() - started_s) * 1e3, 3)
    return Results(outcomes, inference_ms, reader.stopwatch.take())


def _read(reader: Reader, questions: Sequence[Question]) -> Sequence[list[Answer] | QaError]:
    try:
        return reader.read(questions)
    except Exception:
        logger.exception("a batch of %d failed", len(questions))
        if len(questions) == 1:
            return [InternalError()]
        return [outcome for question in questions for outcome in _read(reader, [question])]


def _on_the_wire(outcome: list[Answer] | QaError) -> Answers | Failure:
    if isinstance(outcome, QaError):
        return Failure(outcome.code, outcome.message)
    return Answers(outcome)


def main(arguments: Sequence[str]) -> None:
    """Runs the worker process.

    Args:
        arguments: The channel's file descriptor, by how much to lower its scheduling priority,
            the log's level and its format.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, niceness, log_level, log_format = arguments
    os.nice(int(niceness))
    configure_logging(log_level, log_format)
    with contextlib.suppress(BrokenPipeError):
        serve(WorkerChannel(socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main(sys.argv[1:])
