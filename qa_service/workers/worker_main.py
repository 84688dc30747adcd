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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qa_service.batching import BatchRule, CostTable
from qa_service.engines import INSTANT, EngineConfig, make_engine
from qa_service.errors import SetupError
from qa_service.logs import configure_logging
from qa_service.manifest import load_manifest
from qa_service.protocol import Question
from qa_service.reading.instant import InstantReader
from qa_service.reading.measuring import measure_costs
from qa_service.reading.reader import Reader
from qa_service.workers.channel import Batch, Failed, Ready, Setup, WorkerChannel
from qa_service.workers.costs import find_costs
from qa_service.workers.jobs import Job, answer_batches

logger = logging.getLogger(__name__)

WARMUP = Question("Who wrote the letter?", "The letter was written by Ada in 1843. " * 20)


def serve(channel: WorkerChannel) -> None:
    """Sets the session up as told and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    try:
        reader = load_reader(setup)
        Job(reader, Batch(0, [WARMUP])).finish()
    except SetupError as error:
        channel.send(Failed(str(error)))
        return
    except ImportError as error:  # an image for the ONNX engine has no torch
        channel.send(Failed(f"the {setup.engine_type} engine cannot be imported: {error}"))
        return
    channel.send(Ready(reader.model_name, reader.rule.costs))
    answer_batches(reader, channel)


def load_reader(setup: Setup) -> Reader | InstantReader:
    """Loads the model into its engine, and measures what it costs unless that is known.

    Raises:
        SetupError: There is no prepared model, or the engine cannot load it.
    """
    rule = BatchRule(setup.max_batch_size, setup.max_batch_tokens, setup.max_batch_cost_ms)
    if setup.engine_type == INSTANT:
        return InstantReader(rule)
    model_dir = Path(setup.model_dir)
    manifest = load_manifest(model_dir)
    config = EngineConfig(setup.intra_op_num_threads, setup.precision)
    engine = make_engine(setup.engine_type, model_dir, manifest, config)
    reader = Reader(model_dir, manifest, engine.logits, rule)

    def measure() -> CostTable:
        window_tokens = manifest.window_tokens
        logger.info("measuring what batches cost on %s", engine.runtime)
        return measure_costs(
            engine.logits, manifest.pad_token_id, window_tokens, rule, engine.runtime
        )

    bounds = f"{setup.engine_type} {setup.max_batch_size} {setup.max_batch_tokens}"
    key = " ".join([engine.runtime, bounds, *sorted(manifest.files.values())])
    reader.rule = replace(rule, costs=find_costs(setup.cost_table, model_dir, key, measure))
    return reader


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
