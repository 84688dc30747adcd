"""The loop's side of the sidecars, each a `Child`: gRPC gateway, GPU meter, trace exporter.

The server runs without any of them, except a gRPC gateway that has never listened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from qa_service.child_program import start_program
from qa_service.engine_catalogue import is_installed
from qa_service.errors import SetupError
from qa_service.installation import install_hint
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import LazyTimer
from qa_service.server.children.child import Child
from qa_service.server.telemetry.metrics import DROPPED, EXPORTED, Metrics
from qa_service.sidecars.gateway_messages import LISTENING, RELOAD
from qa_service.sidecars.gpu_meter import GpuReading
from qa_service.wire.traces import MAX_MESSAGE_BYTES, Trace, count_spans, encode, report_decoder

logger = logging.getLogger(__name__)

GATEWAY_PROGRAM = "qa_service.sidecars.grpc_gateway.child_main"
MAX_WORDS_BYTES = 4096
"""The end of what the gateway has written: a line or two."""

METER_PROGRAM = "qa_service.sidecars.gpu_meter"
MAX_READINGS_BYTES = 1 << 20
"""A thousand times what eight GPUs take."""

EXPORTER_PROGRAM = "qa_service.sidecars.trace_exporter_main"
EXPORTER_PACKAGE = "opentelemetry.exporter.otlp.proto.http"
FLUSH_DELAY_S = 1.0
"""So soon a trace is on its way: people look for it after seconds."""
MAX_PENDING = 64
"""Requests in one message, so that a round's encoding takes about a millisecond at most."""
MAX_OUTPUT_BYTES = 1 << 20
"""Hundreds of messages: a program that is so far behind does not follow."""

_readings_decoder = msgspec.msgpack.Decoder(list[GpuReading])


class GrpcProcess:
    """The gateway's program, if the server has a port for it; it asks over a Unix socket.

    If it dies before it has ever listened, the server's start fails; later it is started again. The
    loop is marked when it listens for the first time, or cannot.

    Args:
        flags: The gateway's; without any, there is no gateway, and its program never runs.

    Attributes:
        has_started: Whether it has listened, or there is none.
    """

    def __init__(self, loop: EventLoop, flags: Sequence[str]) -> None:
        self.failure = ""
        self.has_started = not flags
        self.child = Child(
            loop,
            "the gRPC gateway",
            partial(start_program, GATEWAY_PROGRAM, *flags),
            on_data=self._on_data,
            on_end=self._on_end,
        )
        self._loop = loop
        self._report = b""

    def start(self) -> None:
        if not self.has_started:
            self.child.try_start()

    def reload(self) -> None:
        self.child.write(RELOAD)

    def _on_data(self, data: bytes) -> None:
        self._report = (self._report + data)[-MAX_WORDS_BYTES:]
        if LISTENING in self._report:
            self._report = self._report.partition(LISTENING)[2]
            self.has_started = True
            self._loop.mark()

    def _on_end(self) -> None:
        self.child.start_later()
        words, self._report = self._report.decode(errors="replace").strip(), b""
        if not self.has_started:
            self.failure = words or "the gRPC gateway did not start; the log says why"
            self._loop.mark()
        elif words:
            logger.error("%s", words)


class GpuMeter:
    """Keeps the last report of the program that reads the GPUs: `readings`, one for each.

    NVIDIA's library may take milliseconds, and the driver may crash the process that loads it.
    """

    def __init__(self, loop: EventLoop) -> None:
        self.readings: Sequence[GpuReading] = ()
        self.child = Child(
            loop,
            "the GPU meter",
            partial(start_program, METER_PROGRAM),
            on_data=self._on_report,
            max_frame_bytes=MAX_READINGS_BYTES,
            on_end=self._on_end,
        )
        self._is_started = False

    def start(self) -> None:
        """Starts the program, once; a failure is not retried."""
        if self._is_started:
            return
        self._is_started = True
        try:
            self.child.start()
        except OSError as error:
            logger.warning("no figures of the GPUs: %s", error)

    def _on_report(self, report: bytes) -> None:
        self.readings = _readings_decoder.decode(report)

    def _on_end(self) -> None:
        """The program has ended: there is no GPU or no library, or it crashed."""
        self.readings = ()


def need_exporter() -> None:
    """Raises `SetupError` if OpenTelemetry's exporter is not installed."""
    if not is_installed(EXPORTER_PACKAGE):
        raise SetupError(f"--otlp_endpoint needs OpenTelemetry: {install_hint('otlp')}")


class TraceExporter:
    """Passes traces to the program that exports them to an OTLP receiver, and counts spans.

    The trace of a request that ended joins a list, which goes to the program when it is full or
    after `FLUSH_DELAY_S`. While the program has more than `MAX_OUTPUT_BYTES` to read, whole
    requests are dropped. Each span is counted once, as exported or as dropped, also if the program
    dies.

    Args:
        endpoint: The receiver; if it is empty, nothing is exported, and the program never runs.

    Raises:
        SetupError: OpenTelemetry's exporter is not installed.
    """

    def __init__(self, loop: EventLoop, endpoint: str, metrics: Metrics, logs: LogOptions) -> None:
        if endpoint:
            need_exporter()
        self.is_wanted = bool(endpoint)
        self._loop = loop
        self._counts = metrics.trace_spans_total
        self._pending: list[Trace] = []
        self._handed = 0
        self._timer = LazyTimer(loop, self._flush)
        arguments = (EXPORTER_PROGRAM, endpoint, logs.log_level, logs.log_format)
        self.child = Child(
            loop,
            "the trace exporter",
            partial(start_program, *arguments),
            on_data=self._on_report,
            max_frame_bytes=MAX_MESSAGE_BYTES,
            on_end=self._on_end,
        )

    def start(self) -> None:
        if self.is_wanted:
            self.child.try_start()

    def take(self, trace: Trace) -> None:
        """Takes a request's trace; a later round of the loop encodes it."""
        self._pending.append(trace)
        if len(self._pending) == MAX_PENDING:
            self._loop.call_soon(self._flush)
        elif len(self._pending) == 1:
            self._timer.arm(self._loop.now_s() + FLUSH_DELAY_S)

    def close(self) -> None:
        """Sends what is left; the program ends when it has exported it."""
        self._flush()
        self.child.close()

    def _flush(self) -> None:
        traces, self._pending = self._pending, []
        number = count_spans(traces)
        if not self.child.is_running or self.child.output_bytes > MAX_OUTPUT_BYTES:
            self._counts[DROPPED] += number
        elif traces:
            self._handed += number
            self.child.write(encode(traces))

    def _on_report(self, data: bytes) -> None:
        report = report_decoder.decode(data)
        self._handed -= report.exported + report.dropped
        self._counts[EXPORTED] += report.exported
        self._counts[DROPPED] += report.dropped

    def _on_end(self) -> None:
        """Counts spans that the program took and has not reported as dropped."""
        self._counts[DROPPED] += self._handed
        self._handed = 0
        self.child.start_later()
