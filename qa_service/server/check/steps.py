"""What a start needs: one list of steps, for the start and for `--check`.

    start     takes the first ones before it listens: a warning is logged, an error ends it;
              the others it takes as it goes, by the classes and functions that the steps use
    --check   looks at all: each finding is a line of the report, and none ends the others

A step changes nothing on disk. What the start says when one fails, the step says.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.server.check import front, machine, models
from qa_service.server.check.machine import raise_descriptor_limit
from qa_service.server.check.report import CheckReport, Finding, Level, ok, warning
from qa_service.server.config import ServerConfig
from qa_service.server.sidecars import need_exporter
from qa_service.sidecars.gateway_messages import need_grpc

logger = logging.getLogger(__name__)


class Step(msgspec.Struct, frozen=True):
    """One thing that a start needs.

    Attributes:
        look: Yields findings; a `SetupError` is one more, and an error.
        is_first: Whether a start takes it before anything else; its class does so otherwise.
    """

    part: str
    look: Callable[[ServerConfig], Iterator[Finding]]
    is_first: bool = False


def require(config: ServerConfig) -> None:
    """Takes the first steps of a start: logs warnings, and raises `SetupError` for an error."""
    for step in STEPS:
        for finding in step.look(config) if step.is_first else ():
            if finding.level is Level.ERROR:
                raise SetupError(finding.text)
            if finding.level is Level.WARNING:
                logger.warning("%s: %s", finding.text, finding.remedy)


def _check_descriptors(config: ServerConfig) -> Iterator[Finding]:
    if shortage := raise_descriptor_limit(config):
        yield warning(*shortage)
    else:
        yield ok(f"{config.listen.max_connections} connections fit into the limit of descriptors")


def _check_grpc(config: ServerConfig) -> Iterator[Finding]:
    if config.listen.grpc_port:
        need_grpc()
        yield ok("the gRPC gateway's packages are installed")


def _check_exporter(config: ServerConfig) -> Iterator[Finding]:
    if config.traces.otlp_endpoint:
        need_exporter()
        yield ok("the trace exporter's packages are installed")


STEPS = (
    Step("program", machine.check_program),
    Step("configuration", machine.check_configuration),
    Step("machine", machine.check_machine),
    Step("machine", _check_descriptors, is_first=True),
    Step("GPUs", machine.check_gpus),
    Step("models", models.check_prepared),
    Step("models", models.check_requirements),
    Step("models", models.check_hooks),
    Step("models", models.check_files),
    Step("collections", models.check_collections),
    Step("clients", front.check_ports),
    Step("clients", front.check_unix_socket),
    Step("clients", _check_grpc, is_first=True),
    Step("clients", _check_exporter, is_first=True),
    Step("clients", front.check_certificates),
    Step("clients", front.check_tokens),
    Step("clients", front.check_exposure),
)


def check(config: ServerConfig) -> int:
    """Prints what a start would find; returns the exit code."""
    is_text = config.logs.log_format == "text"
    say = partial(print, flush=True)  # also to a pipe
    report = CheckReport(say if is_text else lambda _: None)
    logging.getLogger().handlers.clear()  # what is logged is in the report
    # Neither Python, next to a module of hooks, nor PyTorch's import makes a folder.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    caches = machine.temporary_folder() or Path.cwd()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches))
    for step in STEPS:
        report.add(step.part, step.look(config))
    say(report.verdict if is_text else report.to_json())
    return report.exit_code
