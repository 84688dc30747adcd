"""The server's configuration: one frozen dataclass, from whose fields the flags are made.

A field is a flag: its name, its default, and in its metadata the help text, the choices or
the smallest value accepted. Units are in the names.
"""

# ruff: noqa: RUF009 - what `_flag` returns is a dataclass field, and a Path is immutable

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from qa_service.admission import AdmissionConfig
from qa_service.batching import BatchRule
from qa_service.connection import ConnectionLimits
from qa_service.engines import ENGINE_PRECISIONS, ENGINE_TYPES, INSTANT
from qa_service.logs import LOG_FORMATS, LOG_LEVELS
from qa_service.placement import AUTO, CPU_AFFINITIES, parse_devices
from qa_service.protocol import RequestLimits
from qa_service.scheduler import BATCH_BY, SchedulerConfig
from qa_service.workers.channel import Setup
from qa_service.workers.pool import PoolConfig

WORKER_TYPES = ("process", "thread")
PRECISION_NAMES = tuple(dict.fromkeys(itertools.chain(*ENGINE_PRECISIONS.values())))


DEFAULT_MODEL = Path("saved_models/builtin")

T = TypeVar("T")


def _flag(
    default: T,
    text: str,
    *,
    choices: Sequence[str] | None = None,
    least: int | None = None,
    parse: Callable[[str], T] | None = None,
) -> T:
    metadata = {"help": text, "choices": choices, "least": least, "parse": parse}
    return field(default=default, metadata=metadata)


def _fraction(word: str) -> float:
    value = float(word)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{word} is not above 0 and up to 1")
    return value


def _devices(word: str) -> str:
    try:
        return parse_devices(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything that can be set about a server. Each attribute is a flag; see `--help`."""

    host: str = _flag(
        "localhost",
        "address to listen on; 0.0.0.0 for all IPv4 interfaces, :: for all of both kinds",
    )
    port: int = _flag(9999, "port to listen on; 0 picks a free one", least=0)
    model: Path = _flag(DEFAULT_MODEL, "folder of a model that prepare_model.py has prepared")
    num_inference_sessions: int = _flag(2, "inference sessions, one worker each", least=1)
    inference_engine_type: str = _flag(
        "onnx",
        "what runs the model; instant answers without one, to measure the server itself",
        choices=(*ENGINE_TYPES, INSTANT),
    )
    precision: str = _flag(
        "fp32",
        "what the model computes in: onnx fp32, fp16 or int8, which is for a CPU; pytorch and "
        "tensorrt fp32, fp16 or bf16",
        choices=PRECISION_NAMES,
    )
    devices: str = _flag(
        AUTO,
        "where sessions run, in turn: cpu, or cuda:0,cuda:1,...; auto takes every GPU, or the CPU",
        parse=_devices,
    )
    gpu_memory_fraction: float = _flag(
        1.0, "share of its GPU's memory that one session may take", parse=_fraction
    )
    cuda_graphs: str = _flag(
        "on", "whether a GPU's kernels are recorded and replayed", choices=("on", "off")
    )
    cpu_affinity: str = _flag(
        "off",
        "auto gives each session on a CPU cores of its own if there are enough",
        choices=CPU_AFFINITIES,
    )
    worker_type: str = _flag(
        "process", "where each session runs; threads share the loop's GIL", choices=WORKER_TYPES
    )
    intra_op_num_threads: int = _flag(1, "threads within one operator, per session", least=1)
    worker_niceness: int = _flag(
        10, "how far below the loop's the priority of worker processes is, 0 to 19", least=0
    )
    realtime_loop: bool = _flag(
        False,
        "run the loop at real-time priority, so that it never waits for a core; takes CAP_SYS_NICE",
    )
    max_batch_size: int = _flag(64, "requests in a batch", least=1)
    max_batch_tokens: int = _flag(16384, "tokens in a batch, padding included", least=1)
    max_batch_cost_ms: int = _flag(
        100, "milliseconds that a batch may cost by the table; what costs more runs alone", least=1
    )
    cost_table: str = _flag(
        "auto",
        "what batches cost: auto is measured once and kept beside the model, measure is measured "
        "anew, off fills batches to their bounds; or a table's file",
    )
    print_cost_table: bool = _flag(False, "print what batches cost, when the server is ready")
    batch_by: str = _flag(
        "length", "a request's companions: nearest in length or arrival", choices=BATCH_BY
    )
    max_queue_delay_us: int = _flag(
        0, "microseconds a request may wait for company while a session is idle", least=0
    )
    max_queue_size: int = _flag(1000, "requests that may wait for a session", least=1)
    request_timeout_ms: int = _flag(
        30_000, "milliseconds a request may wait for a session; 0 for no limit", least=0
    )
    ready_timeout_ms: int = _flag(
        10_000,
        "milliseconds after which a session that is still busy no longer counts as answering",
        least=1,
    )
    max_connections: int = _flag(1000, "open connections; further ones wait unaccepted", least=1)
    max_in_flight_per_connection: int = _flag(
        64, "unanswered requests of one connection; past it, the server stops reading", least=1
    )
    max_output_buffer_bytes: int = _flag(
        1 << 20, "bytes of unread answers; past it, the server stops reading", least=1
    )
    max_frame_bytes: int = _flag(
        1 << 18, "bytes in one request; 256 KiB take the loop about a millisecond", least=2
    )
    max_question_chars: int = _flag(2000, "characters in a question", least=1)
    max_text_chars: int = _flag(250_000, "characters in a text", least=1)
    execution_timeout_ms: int = _flag(
        120_000, "milliseconds a batch may run before its session is killed", least=1
    )
    start_timeout_ms: int = _flag(
        300_000, "milliseconds a session may take to load and warm up", least=1
    )
    idle_timeout_ms: int = _flag(
        600_000, "milliseconds a connection may stay with nothing to do; 0 for no limit", least=0
    )
    frame_timeout_ms: int = _flag(
        30_000, "milliseconds from a request's first byte to its last", least=1
    )
    client_stall_timeout_ms: int = _flag(
        30_000, "milliseconds a client may leave waiting answers unread", least=1
    )
    tcp_keepalive_s: int = _flag(
        60, "seconds of silence after which the kernel probes whether a peer is there", least=1
    )
    tls_cert: Path | None = _flag(
        None, "the server's certificate and those above it, in PEM; with --tls_key, speaks TLS"
    )
    tls_key: Path | None = _flag(None, "the certificate's private key, in PEM")
    tls_client_ca: Path | None = _flag(
        None, "certificates in PEM; a client must have one that is signed by one of these"
    )
    tls_handshake_timeout_ms: int = _flag(10_000, "milliseconds a TLS handshake may take", least=1)
    auth_token_file: Path | None = _flag(
        None, "tokens, one a line; a client must show one; see docs/SECURITY.md"
    )
    auth_timeout_ms: int = _flag(
        10_000, "milliseconds from a client's connecting to its token", least=1
    )
    drain_timeout_ms: int = _flag(
        30_000, "milliseconds that a stopping server gives the requests it has", least=0
    )
    log_level: str = _flag("info", "least level that is logged", choices=LOG_LEVELS)
    log_format: str = _flag("text", "one line of text or of JSON an event", choices=LOG_FORMATS)

    @property
    def admission_config(self) -> AdmissionConfig:
        """Who may come in."""
        return AdmissionConfig(
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
            token_file=self.auth_token_file,
            handshake_timeout_s=self.tls_handshake_timeout_ms / 1e3,
            auth_timeout_s=self.auth_timeout_ms / 1e3,
        )

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Bounds on one client."""
        return ConnectionLimits(
            max_frame_bytes=self.max_frame_bytes,
            max_in_flight=self.max_in_flight_per_connection,
            max_output_buffer_bytes=self.max_output_buffer_bytes,
            idle_timeout_s=self.idle_timeout_ms / 1e3 or math.inf,
            frame_timeout_s=self.frame_timeout_ms / 1e3,
            stall_timeout_s=self.client_stall_timeout_ms / 1e3,
            request=RequestLimits(self.max_question_chars, self.max_text_chars),
        )

    @property
    def pool_config(self) -> PoolConfig:
        """How many sessions there are, and how long they may take."""
        return PoolConfig(
            num_sessions=self.num_inference_sessions,
            start_timeout_s=self.start_timeout_ms / 1e3,
            execution_timeout_s=self.execution_timeout_ms / 1e3,
        )

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """Bounds on the queue, and its order."""
        return SchedulerConfig(
            max_queue_size=self.max_queue_size,
            max_queue_delay_s=self.max_queue_delay_us / 1e6,
            batch_by=self.batch_by,
        )

    @property
    def batch_rule(self) -> BatchRule:
        """Bounds on a batch; a session adds what it measured."""
        return BatchRule(self.max_batch_size, self.max_batch_tokens, self.max_batch_cost_ms)

    @property
    def worker_setup(self) -> Setup:
        """What each session is to be."""
        return Setup(
            engine_type=self.inference_engine_type,
            model_dir=str(self.model),
            precision=self.precision,
            intra_op_num_threads=self.intra_op_num_threads,
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            gpu_memory_fraction=self.gpu_memory_fraction,
            cuda_graphs=self.cuda_graphs == "on",
            max_batch_cost_ms=self.max_batch_cost_ms,
            cost_table=self.cost_table,
        )


def parse_server_flags(arguments: Sequence[str] | None = None) -> ServerConfig:
    """Reads the command line.

    Args:
        arguments: The words after the program's name; those of this process if None.

    Raises:
        SystemExit: With code 2 and a message if a flag is wrong; with 0 after `--help`.
    """
    parser = argparse.ArgumentParser(
        description="Question-answering inference server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for item in dataclasses.fields(ServerConfig):
        help_text = item.metadata["help"]
        if isinstance(item.default, bool):
            parser.add_argument(f"--{item.name}", action="store_true", help=help_text)
            continue
        parser.add_argument(
            f"--{item.name}",
            default=item.default,
            type=_parser_of(item),
            choices=item.metadata["choices"],
            help=help_text,
        )
    return ServerConfig(**vars(parser.parse_args(arguments)))


def _parser_of(item: dataclasses.Field[Any]) -> Callable[[str], Any]:
    if parse_word := item.metadata["parse"]:
        return cast("Callable[[str], Any]", parse_word)
    least: int | None = item.metadata["least"]
    if least is None:
        return str if isinstance(item.default, str) else Path

    def parse(word: str) -> int:
        value = int(word)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    parse.__name__ = "int"
    return parse
