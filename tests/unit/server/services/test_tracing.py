"""Which requests are traced, what is recorded of them, and what the exporter is given."""

import random
from typing import cast

import pytest

from qa_service.errors import ERROR_KINDS, QueueFullError, SetupError, UnknownModelError
from qa_service.instance.stages import StagesMs
from qa_service.instance.worker_messages import Results
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.options import OptionError
from qa_service.server import sidecars
from qa_service.server.config import ServerConfig
from qa_service.server.services.service_options import TraceOptions
from qa_service.server.services.tracing import Tracer, record_model, record_run
from qa_service.server.sidecars import FLUSH_DELAY_S, MAX_OUTPUT_BYTES, MAX_PENDING, TraceExporter
from qa_service.server.telemetry.metrics import Metrics
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.frames import PREFIX
from qa_service.wire.messages import QUERY_TYPES, Answer, Answered, AnswerSource, Timings
from qa_service.wire.traces import (
    MAX_CHILDREN,
    NO_TRACE,
    ExportReport,
    Span,
    Trace,
    TraceContext,
    count_spans,
    encode,
    trace_context,
    traces_decoder,
)
from tests.unit.calls import make_call, make_ticket
from tests.unit.server.fake_services import LoopClock

TRACE_ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CODEC = FrameCodec(1 << 16, 1 << 16)
ANSWERS = Answered(
    [Answer("a", 0.5, 0, 1)], Timings(0.0, 0.0), AnswerSource("small", 3, models_asked=2)
)


class Traced:
    def __init__(self, sample_rate=1.0, draw=random.random):
        self.loop = LoopClock()
        self.taken = []
        self.tracer = Tracer(self.loop, sample_rate, self.taken.append, draw=draw)
        self.tracer.server = "[::1]:9999"

    def begin(self, context=NO_TRACE, since_s=None):
        call = make_call(self.loop.now_s())
        self.tracer.begin(call, context, CODEC, "10.0.0.1:5000", since_s)
        return call


@pytest.mark.parametrize(
    ("traceparent", "is_sampled"),
    [(f"00-{TRACE_ID}-{PARENT}-{flags}", int(flags, 16) & 1) for flags in ("00", "01", "02", "03")],
)
def test_the_last_flag_says_whether_a_client_is_traced(traceparent, is_sampled):
    assert trace_context(traceparent) == TraceContext(TRACE_ID, PARENT, bool(is_sampled))


def test_a_clients_flag_wins_over_the_rate():
    for rate, is_sampled in ((0.0, True), (1.0, False)):
        call = Traced(rate).begin(TraceContext(TRACE_ID, PARENT, is_sampled))
        assert (call.scope.span is not None) == is_sampled


def test_untraced_clients_are_sampled_at_the_rate():
    traced = Traced(0.25, random.Random(7).random)
    calls = [traced.begin() for _ in range(4000)]
    sampled = [call for call in calls if call.scope.span]
    assert 900 < len(sampled) < 1100
    assert len({call.scope.trace_id for call in sampled}) == len(sampled)
    assert {call.scope.trace_id for call in calls if not call.scope.span} == {""}


def test_a_request_is_handed_on_once_with_its_outcome():
    traced = Traced()
    call = traced.begin(TraceContext(TRACE_ID, PARENT, is_sampled=True))
    assert traced.taken == []
    traced.loop.advance(2)
    call.settle(ANSWERS)
    call.cancel()
    [trace] = traced.taken
    assert (trace.trace_id, trace.parent_id) == (TRACE_ID, PARENT)
    assert trace.root.end_s - trace.root.start_s == 2
    assert trace.root.attributes == {
        "network.protocol.name": "qa-frames",
        "server.address": "::1",
        "server.port": 9999,
        "client.address": "10.0.0.1",
        "client.port": 5000,
        "qa.request": "",
        "qa.question_chars": 2,
        "qa.text_chars": 1,
        "qa.model": "small",
        "qa.version": 3,
        "qa.cached": False,
        "qa.score": 0.5,
        "qa.models_asked": 2,
    }


@pytest.mark.parametrize(
    ("error", "code", "is_error"),
    [
        (UnknownModelError(), "unknown_model", False),
        (QueueFullError(), "queue_full", True),
        (None, "abandoned", False),
    ],
)
def test_an_error_is_named_and_is_one_if_it_is_the_servers(error, code, is_error):
    traced = Traced()
    call = traced.begin()
    call.fail(error) if error else call.cancel()
    [trace] = traced.taken
    assert (trace.root.attributes["error.type"], trace.root.is_error) == (code, is_error)
    assert trace.root.end_s


def test_a_message_in_pieces_begins_with_its_first_byte():
    traced = Traced()
    now_s = traced.loop.now_s()
    root = traced.begin(since_s=now_s - 3).scope.span
    assert root.start_s == now_s - 3
    assert [(one.name, one.start_s, one.end_s) for one in root.children] == [
        ("receive", now_s - 3, now_s)
    ]


def test_a_run_is_recorded_under_the_model_that_was_asked():
    traced = Traced()
    call = traced.begin()
    child = call.child(call.request, "[small]")
    record_model(child, "small", call.scope.span, traced.loop)
    ticket = make_ticket(100.0, core=(5, 9), attempts=1)
    results = Results(0, [], 101.0, 60.0, StagesMs(10.0, 20.0, 30.0))
    record_run(ticket, child.scope.span, results, 4)
    traced.loop.advance(5)
    child.settle(ANSWERS)
    [model] = call.scope.span.children
    assert (model.name, model.end_s, model.attributes["qa.version"]) == ("model", 105.0, 3)
    queue, run = model.children
    assert (queue.start_s, queue.end_s) == (100.0, 101.0)
    assert run.attributes == {"qa.batch_size": 4, "qa.attempts": 2, "qa.segment": "5:9"}
    stages = [(one.name, round(one.start_s, 3), round(one.end_s, 3)) for one in run.children]
    assert stages == [
        ("tokenize", 101.0, 101.01), ("model", 101.01, 101.03), ("read", 101.03, 101.06)
    ]  # fmt: skip


def test_the_parts_of_a_span_are_bounded():
    span = Span("ask", 0.0)
    for _ in range(MAX_CHILDREN + 5):
        span.child("queue", 0.0)
    assert span.count() == MAX_CHILDREN + 1


class FakeProgram:
    """Stands in for the program, so that what it does not read is the test's to say."""

    def __init__(self, *_, on_data, on_end, **__):
        self.on_data, self.on_end = on_data, on_end
        self.num_restarts = 0
        self.is_running, self.output_bytes = True, 0
        self.written = []
        self.is_closed = False

    def write(self, data):
        (size,) = PREFIX.unpack(data[: PREFIX.size])
        assert size == len(data) - PREFIX.size
        self.written.append(traces_decoder.decode(data[PREFIX.size :]))

    def start_later(self):
        self.num_restarts += 1

    def close(self):
        self.is_closed = True


class Exporting:
    def __init__(self, monkeypatch):
        monkeypatch.setattr(sidecars, "Child", FakeProgram)
        self.loop = LoopClock()
        metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        self.counts = metrics.trace_spans_total
        self.exporter = TraceExporter(
            cast(EventLoop, self.loop), "http://there", metrics, LogOptions()
        )
        self.program = cast(FakeProgram, self.exporter.child)

    def take(self, number):
        for _ in range(number):
            root = Span("ask", 1.0, 2.0, {"qa.cached": True})
            root.child("queue", 1.0, 1.5)
            self.exporter.take(Trace(TRACE_ID, "", root))
        self.loop.run_soon()

    @property
    def written(self):
        return [len(traces) for traces in self.program.written]


@pytest.fixture
def exporting(monkeypatch):
    return Exporting(monkeypatch)


def test_spans_are_sent_to_the_exporter_after_a_delay(exporting):
    exporting.take(3)
    exporting.loop.advance(FLUSH_DELAY_S * 0.9)
    assert exporting.written == []
    exporting.loop.advance(FLUSH_DELAY_S * 0.2)
    assert exporting.written == [3]
    [trace, *_] = exporting.program.written[0]
    assert (trace.trace_id, trace.root.count()) == (TRACE_ID, 2)
    assert trace.root.attributes == {"qa.cached": True}
    assert count_spans(exporting.program.written[0]) == 6
    exporting.take(1)
    exporting.loop.advance(FLUSH_DELAY_S)
    assert exporting.written == [3, 1]


def test_without_spans_no_timer_is_due(exporting):
    exporting.take(1)
    exporting.loop.advance(FLUSH_DELAY_S)
    exporting.loop.advance(100)
    assert exporting.loop.timers.next_due_s() == float("inf")


def test_spans_beyond_an_unread_output_buffer_are_dropped(exporting):
    exporting.program.output_bytes = MAX_OUTPUT_BYTES + 1
    exporting.take(MAX_PENDING)
    assert (exporting.written, exporting.counts["dropped"]) == ([], 2 * MAX_PENDING)
    exporting.program.output_bytes = MAX_OUTPUT_BYTES
    exporting.take(MAX_PENDING)
    assert (exporting.written, exporting.counts["dropped"]) == ([MAX_PENDING], 2 * MAX_PENDING)


def test_spans_while_the_exporter_is_down_are_dropped(exporting):
    exporting.program.is_running = False
    exporting.take(3)
    exporting.loop.advance(FLUSH_DELAY_S)
    assert exporting.counts == {"exported": 0, "dropped": 6}


def test_unreported_spans_of_a_dead_exporter_are_dropped(exporting):
    exporting.take(MAX_PENDING)
    report = encode(ExportReport(exported=5, dropped=2))
    exporting.program.on_data(bytes(report[PREFIX.size :]))
    exporting.program.on_end()
    assert exporting.program.num_restarts == 1
    assert exporting.counts == {"exported": 5, "dropped": 2 * MAX_PENDING - 5}
    exporting.take(MAX_PENDING)
    report = encode(ExportReport(exported=2 * MAX_PENDING))
    exporting.program.on_data(bytes(report[PREFIX.size :]))
    assert exporting.counts["exported"] == 5 + 2 * MAX_PENDING


def test_a_missing_package_is_named(monkeypatch):
    for package in ("nowhere.to.be.found", "json.nothing"):
        monkeypatch.setattr(sidecars, "EXPORTER_PACKAGE", package)
        with pytest.raises(SetupError, match=r"pip install .*\[otlp\]"):
            Exporting(monkeypatch)


def test_an_endpoint_is_a_url():
    for url in ("", "http://localhost:4318", "https://collector.example/otlp/"):
        assert ServerConfig.of(otlp_endpoint=url).traces.otlp_endpoint == url
    for url in ("localhost:4317", "grpc://there", "http://", "http://there/?a=1", "http://a b"):
        with pytest.raises(OptionError):
            ServerConfig.of(otlp_endpoint=url)
    assert TraceOptions().trace_sample_rate == 1.0
