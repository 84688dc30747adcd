"""A worker: loads the model, warms up, and answers batches until the loop closes the channel.

As a program, which `launch` starts, it is the worker process. It loads only its engine's libraries.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qa_service.engine_catalogue import INSTANT
from qa_service.errors import EngineFaultError, SetupError, WrongAnswerError
from qa_service.instance.channel import WorkerChannel, begin
from qa_service.instance.devices import CPU
from qa_service.instance.hooks import HookedReader, load_hooks
from qa_service.instance.model_folder.manifest import (
    check_files,
    fingerprint_of,
    load_manifest,
    model_files,
)
from qa_service.instance.reader.instant import InstantReader
from qa_service.instance.runs import WARMUP, Loaded, TaskReader, answer_in_turn, answer_overlapped
from qa_service.instance.stages import START, Stopwatch
from qa_service.instance.worker_messages import Failed, Ready, Setup
from qa_service.machine import process_age_s, resident_bytes

logger = logging.getLogger(__name__)

NICENESS = 10
"""Workers run at a lower priority than the loop, which runs at once though every core is busy."""


def serve(channel: WorkerChannel) -> None:
    """Sets the instance up, and answers batches until the channel ends."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    hooks_name = setup.options.hooks
    try:
        hooks = None
        if hooks_name:
            sys.path.insert(0, str(Path.cwd()))
            hooks = load_hooks(hooks_name, setup.hooks_fingerprint)
        loaded = load_reader(setup)
    except (SetupError, EngineFaultError) as error:
        channel.send(_failed(error))
        return
    except ImportError as error:  # an image for the ONNX engine has no torch
        engine_type = setup.options.inference_engine_type
        channel.send(Failed(f"the {engine_type} engine cannot be imported: {error}"))
        return
    reader: TaskReader[Any, Any] = loaded.reader
    if hooks:
        reader = HookedReader(reader, hooks)
    memory_bytes = resident_bytes() + loaded.later_bytes
    ready = Ready(reader.model, reader.rule.costs, loaded.device, memory_bytes)
    if test := loaded.self_test:
        ready = msgspec.structs.replace(
            ready,
            can_test=True,
            largest_difference=max(test.largest.values(), default=0.0),
            self_test_ms=test.took_ms,
        )
    channel.send(ready)
    logger.info("this instance has started: %s", START.describe(process_age_s()))
    try:
        if loaded.device == CPU:
            answer_in_turn(reader, channel, loaded.self_test)
        else:
            answer_overlapped(reader, channel, loaded.self_test, loaded.prepare_next)
    except EngineFaultError as error:
        channel.send(_failed(error))


def _failed(error: Exception) -> Failed:
    """Why the instance ends; no request is to blame for an engine that computes wrongly."""
    is_wrong = isinstance(error, WrongAnswerError)
    return Failed(str(error), is_blameless=is_wrong, is_wrong=is_wrong)


def load_reader(setup: Setup) -> Loaded:
    """Loads the model into its engine, proves it, and finds what batches cost it."""
    options = setup.options
    model_dir = Path(setup.model_dir)
    fingerprint = fingerprint_of(model_dir)
    if fingerprint and setup.fingerprint not in {"", fingerprint}:  # `load_manifest` says it better
        raise SetupError(
            f"{model_dir} has changed since its model was loaded; a reload (SIGHUP) takes what is "
            "there now"
        )
    manifest = load_manifest(model_dir)
    check_files(model_dir, manifest, model_files(options.inference_engine_type, options.precision))
    if options.inference_engine_type != INSTANT:
        from qa_service.instance.loading import load_model  # noqa: PLC0415, it loads numpy

        return load_model(setup, manifest, fingerprint)
    instant = InstantReader(options.batch_rule)
    instant.model = msgspec.structs.replace(
        instant.model, name=manifest.name, fingerprint=fingerprint
    )
    instant.find([WARMUP], Stopwatch())
    return Loaded(instant)


def main(arguments: Sequence[str]) -> None:
    channel = begin(arguments)
    os.nice(NICENESS)
    atexit.register(_end)  # before hooks are loaded, so that what they have registered runs first
    try:
        with contextlib.suppress(BrokenPipeError):
            serve(channel)
    except BaseException:
        atexit.unregister(_end)
        raise


def _end() -> None:
    """Ends the process at once: a thread that compiles would abort it at the interpreter's end."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
