"""What runs inside a worker: load, warm up, then answer batches until the loop hangs up.

As a program (`python -m qa_service.workers.worker_main FD PLACEMENT NICENESS LEVEL FORMAT`)
it is the worker process; the thread worker calls `serve` itself. Which libraries are loaded depends
on the engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from qa_service.batching import BatchRule, CostTable
from qa_service.engines import INSTANT, EngineConfig, make_engine
from qa_service.engines.base import Engine
from qa_service.errors import DeviceError, SetupError
from qa_service.logs import configure_logging
from qa_service.manifest import Manifest, load_manifest
from qa_service.placement import CPU, Placement
from qa_service.protocol import Question
from qa_service.reading.instant import InstantReader
from qa_service.reading.measuring import measure_costs
from qa_service.reading.reader import Reader
from qa_service.workers.channel import Batch, Failed, Ready, Setup, WorkerChannel
from qa_service.workers.costs import find_costs
from qa_service.workers.jobs import Intake, IntakeAhead, Job, answer_batches

logger = logging.getLogger(__name__)

WARMUP = Question("Who wrote the letter?", "The letter was written by Ada in 1843. " * 20)


def serve(channel: WorkerChannel, placement: Placement) -> None:
    """Sets the session up as told, where told, and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    try:
        reader, device = load_reader(setup, placement)
        Job(reader, Batch(0, [WARMUP])).finish()
    except SetupError as error:
        channel.send(Failed(str(error)))
        return
    except ImportError as error:  # an image for the ONNX engine has no torch
        channel.send(Failed(f"the {setup.engine_type} engine cannot be imported: {error}"))
        return
    channel.send(Ready(reader.model_name, reader.rule.costs, device))
    intake = Intake if device == CPU else IntakeAhead
    answer_batches(intake(reader, channel), channel)


def load_reader(setup: Setup, placement: Placement) -> tuple[Reader | InstantReader, str]:
    """Loads the model into its engine, and measures what it costs unless that is known.

    Returns:
        What answers questions, and the device that it really is on.

    Raises:
        SetupError: There is no prepared model, the engine cannot load it, or it cannot use the
            device.
    """
    rule = BatchRule(setup.max_batch_size, setup.max_batch_tokens, setup.max_batch_cost_ms)
    if setup.engine_type == INSTANT:
        return InstantReader(rule), CPU
    model_dir = Path(setup.model_dir)
    manifest = load_manifest(model_dir)
    engine = load_engine(setup, manifest, placement)
    peaks = engine.peaks if engine.chooses_spans else None
    reader = Reader(model_dir, manifest, engine.logits, rule, peaks)

    def measure() -> CostTable:
        window_tokens = manifest.window_tokens
        logger.info("measuring what batches cost on %s", engine.runtime)
        return measure_costs(
            engine.logits, manifest.pad_token_id, window_tokens, rule, engine.runtime
        )

    bounds = (
        f"{setup.engine_type} {setup.precision} {setup.max_batch_size} {setup.max_batch_tokens}"
    )
    key = " ".join([engine.runtime, bounds, *sorted(manifest.files.values())])
    reader.rule = replace(rule, costs=find_costs(setup.cost_table, model_dir, key, measure))
    return reader, CPU if engine.device == CPU else placement.device


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
        config = replace(config, device=CPU)
        return make_engine(setup.engine_type, Path(setup.model_dir), manifest, config)


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
