"""What runs inside a worker: load, warm up, then answer batches until the loop hangs up.

As a program (`python -m qa_service.workers.worker_main FD PLACEMENT NICENESS LEVEL FORMAT`)
it is the worker process; the thread worker calls `serve` itself. Which libraries are loaded depends
on the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from qa_service.engines import EngineConfig, make_engine
from qa_service.engines.base import Engine
from qa_service.errors import DeviceError, InternalError, QaError, SetupError
from qa_service.logs import configure_logging
from qa_service.manifest import Manifest, load_manifest
from qa_service.placement import CPU, Placement
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


def serve(channel: WorkerChannel, placement: Placement) -> None:
    """Sets the session up as told, where told, and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    try:
        manifest = load_manifest(Path(setup.model_dir))
        engine = load_engine(setup, manifest, placement)
        reader = make_reader(setup, manifest, engine)
        reader.read([WARMUP])
        reader.stopwatch.take()
    except SetupError as error:
        channel.send(Failed(str(error)))
        return
    device = CPU if engine.device == CPU else placement.device
    channel.send(Ready(reader.model_name, device))
    while isinstance(batch := channel.receive(), Batch):
        channel.send(answer_batch(reader, batch))


def load_engine(setup: Setup, manifest: Manifest, placement: Placement) -> Engine:
    """Loads the model into its engine, on its device or, if it may, on the CPU.

    Raises:
        SetupError: The engine cannot load the model, or cannot use the device.
    """
    config = EngineConfig(
        intra_op_num_threads=setup.intra_op_num_threads,
        precision=setup.precision,
        device=placement.device.partition(":")[0],
        cuda_index=placement.cuda_index,
        gpu_memory_bytes=placement.gpu_memory_bytes,
        gpu_memory_fraction=setup.gpu_memory_fraction,
        cuda_graphs=setup.cuda_graphs,
        max_batch_size=setup.max_batch_size,
        max_batch_tokens=setup.max_batch_tokens,
    )
    try:
        return make_engine(setup.engine_type, Path(setup.model_dir), manifest, config)
    except DeviceError as error:
        if not placement.may_fall_back or setup.engine_type == "tensorrt":
            raise
        logger.warning("this session runs on the CPU and not on %s: %s", placement.device, error)
        config = dataclasses.replace(config, device=CPU)
        return make_engine(setup.engine_type, Path(setup.model_dir), manifest, config)


def make_reader(setup: Setup, manifest: Manifest, engine: Engine) -> Reader:
    """Puts a reader around the engine."""
    limits = BatchLimits(setup.max_batch_size, setup.max_batch_tokens)
    return Reader(Path(setup.model_dir), manifest, engine.logits, limits)


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
        arguments: The channel's file descriptor, its placement in JSON, by how much to lower its
            scheduling priority, the log's level and its format.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, where, niceness, log_level, log_format = arguments
    placement = msgspec.json.decode(where, type=Placement)
    placement.keep_to_cores()
    os.nice(int(niceness))
    configure_logging(log_level, log_format)
    with contextlib.suppress(BrokenPipeError):
        serve(WorkerChannel(socket.socket(fileno=int(descriptor))), placement)


if __name__ == "__main__":
    main(sys.argv[1:])
