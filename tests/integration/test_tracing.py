"""Spans of requests, sent to a real receiver by OpenTelemetry's own exporter."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from harness.frames import ANSWER, ASK, TEXT, frame, receive
from harness.otlp import receiving
from harness.process import GIVE_UP_S, held_still, reserve_port, wait_for_end, wait_until
from harness.server import INSTANT, ONE_INSTANCE, running_server
from tests.http_calls import post

TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{CLIENT_SPAN}-{flags}" for flags in ("01", "00"))
RUN = ["queue", {"inference": ["tokenize", "model", "read"]}]
SERVER_KIND, INTERNAL_KIND = 2, 1
ROUNDING_S = 2e-6


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def module_receiver():
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def server(quick_model, module_receiver, tmp_path_factory):
    """A model, and a cascade of it and itself, where the first is never sure."""
    config = tmp_path_factory.mktemp("traced") / "server.toml"
    config.write_text(f"""
[models.small]
path = "{quick_model}"
num_inference_sessions = 1
[models.large]
path = "{quick_model}"
num_inference_sessions = 1
[routes.default]
cascade = ["small"]
[routes.careful]
cascade = ["small", "large"]
min_score = 1.0
""")
    flags = (*module_receiver.flags, "--log_level", "debug", "--log_format", "json")
    flags = (*flags, "--config", str(config))
    with running_server(quick_model, *ONE_INSTANCE, *flags) as running:
        yield running


@pytest.fixture
def traced(server, module_receiver):
    """Asks, and returns the reply with the root of what was recorded of it."""

    def ask(**request):
        before = len(module_receiver.roots)
        reply = server.ask(**request)
        *_, root = module_receiver.wait_for(before + 1)
        return reply, root

    return ask


def exporter_of(server):
    for pid in server.worker_pids():
        if b"trace_exporter_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def spans_of(server):
    return server.stats()["counters"]["trace_spans_total"]


def wait_for_spans(server, condition):
    return wait_until(lambda: spans_of(server), condition)


def test_a_frames_spans_say_where_its_time_went(traced, server):
    before_s = time.time()
    reply, root = traced(model="small", **ASK)
    assert before_s - 1 < root.start_s < root.end_s < time.time() + 1
    assert reply["answer"] == ANSWER
    assert root.shape == {"ask": RUN}
    assert (root.kind, root.child("queue").kind) == (SERVER_KIND, INTERNAL_KIND)
    assert (root.parent_id, root.is_error) == ("", False)
    queue, run = root.children
    for span, name in ((queue, "queue"), (run, "inference")):
        told_s = reply["timings_ms"][name] / 1e3
        assert span.end_s - span.start_s == pytest.approx(told_s, abs=ROUNDING_S)
    ordered = [root.start_s, queue.end_s, *(stage.end_s for stage in run.children), root.end_s]
    assert ordered == sorted(ordered)
    assert root.attributes == {
        **{name: root.attributes[name] for name in ("client.address", "client.port", "qa.request")},
        "network.protocol.name": "qa-frames",
        "server.address": "localhost",
        "server.port": server.port,
        "qa.question_chars": len(ASK["question"]),
        "qa.text_chars": len(TEXT),
        "qa.model": "small",
        "qa.version": 1,
        "qa.cached": False,
        "qa.score": pytest.approx(reply["score"]),
    }
    assert run.attributes == {"qa.batch_size": 1}


def test_a_frame_may_belong_to_its_clients_trace(traced, server):
    _, root = traced(model="small", traceparent=SAMPLED, **ASK)
    assert (root.trace_id, root.parent_id) == (TRACE, CLIENT_SPAN)
    server.wait_for_log(f"{root.attributes['qa.request']}: answered")
    lines = [json.loads(line) for line in server.log.splitlines()]
    mine = [line for line in lines if root.attributes["qa.request"] in line["message"]]
    assert len(mine) >= 3
    assert {line["trace_id"] for line in mine} == {TRACE}


def test_a_trace_that_begins_here_is_in_the_log(traced, server):
    _, root = traced(model="small", **ASK)
    server.wait_for_log(f"{root.attributes['qa.request']}: answered")
    lines = [json.loads(line) for line in server.log.splitlines()]
    mine = [line for line in lines if line.get("trace_id") == root.trace_id]
    assert mine[0]["message"].startswith(f"request {root.attributes['qa.request']}: received")


def test_an_http_request_is_traced_as_its_client_says(server, module_receiver):
    before = len(module_receiver.roots)
    for traceparent in (UNSAMPLED, SAMPLED):
        assert post(server.port, "/qa", ASK, {"traceparent": traceparent}).status == 200
    [root] = module_receiver.wait_for(before + 1)[before:]
    assert (root.trace_id, root.parent_id) == (TRACE, CLIENT_SPAN)
    assert root.attributes["http.request.method"] == "POST"
    assert root.attributes["url.path"] == "/qa"
    assert root.attributes["network.protocol.name"] == "http"


def test_a_cascade_has_a_span_for_each_model(traced):
    _, root = traced(model="careful", **ASK)
    assert root.shape == {"ask": [{"model": RUN}, {"model": RUN}]}
    first, second = root.children
    assert first.end_s <= second.start_s
    assert [one.attributes["qa.model"] for one in root.children] == ["small", "large"]
    assert root.attributes["qa.models_asked"] == 2


def test_a_message_in_pieces_has_been_received_for_a_while(server, module_receiver):
    before, message = len(module_receiver.roots), frame({"model": "small", **ASK})
    with server.connect() as sock:
        sock.sendall(message[:20])
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(GIVE_UP_S)
        sock.sendall(message[20:])
        receive(sock)
    *_, root = module_receiver.wait_for(before + 1)
    assert root.shape == {"ask": ["receive", *RUN]}
    received = root.child("receive")
    assert received.start_s == root.start_s < received.end_s == root.child("queue").start_s


def test_opentelemetrys_variables_apply_and_the_endpoint_may_have_its_path(
    quick_model, receiver, monkeypatch
):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "reader")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    flag, endpoint, *others = receiver.flags
    with running_server(quick_model, *INSTANT, flag, f"{endpoint}/v1/traces", *others) as server:
        server.ask(**ASK)
        receiver.wait_for(1)
        wait_for_spans(server, lambda spans: spans["exported"] == 6)
    resource = receiver.resources[0]
    assert resource["service.name"] == "reader"
    assert resource["deployment.environment.name"] == "test"
    assert resource["telemetry.sdk.language"] == "python"
    assert receiver.headers[0]["api-key"] == "secret"


def test_without_the_flag_no_exporter_runs(quick_model):
    with running_server(quick_model, *INSTANT) as server:
        server.ask(**ASK, traceparent=SAMPLED)
        assert exporter_of(server) is None
        assert spans_of(server) == {"exported": 0, "dropped": 0}


def test_a_drain_sends_the_remaining_spans(quick_model, receiver):
    with (
        running_server(quick_model, *INSTANT, *receiver.flags) as server,
        server.connect() as sock,
    ):
        for number in range(100):
            sock.sendall(frame({"id": number, **ASK}))
        for _ in range(100):
            receive(sock)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert len(receiver.roots) == 100
    assert receiver.resources[0]["service.name"] == "qa-server"


def test_an_exporter_that_is_killed_is_started_again(quick_model, receiver):
    with running_server(quick_model, *INSTANT, *receiver.flags) as server:
        server.ask(**ASK)
        wait_for_spans(server, lambda spans: spans["exported"])
        os.kill(exporter_of(server), signal.SIGKILL)
        server.wait_for_log("the trace exporter was killed by SIGKILL")
        server.ask(**ASK)
        receiver.wait_for(2)
        made = len(receiver.spans)
        assert wait_for_spans(server, lambda spans: sum(spans.values()) == made)["dropped"] == 0


def test_an_exporter_that_hangs_costs_spans_and_nothing_else(quick_model, receiver):
    number, chunk = 6000, 50
    with running_server(quick_model, *INSTANT, *receiver.flags) as server:
        server.ask(**ASK)
        receiver.wait_for(1)
        with held_still([exporter_of(server)]), server.connect() as sock:
            for _ in range(number // chunk):
                sock.sendall(frame(ASK) * chunk)
                for _ in range(chunk):
                    assert receive(sock)["answer"]
            assert spans_of(server)["dropped"]
        made = (number + 1) * receiver.roots[0].count
        spans = wait_for_spans(server, lambda spans: sum(spans.values()) == made)
        assert spans["exported"] == len(receiver.spans)


def test_an_exporter_dies_with_a_server_that_is_killed(quick_model, receiver):
    with running_server(quick_model, *INSTANT, *receiver.flags) as server:
        server.ask(**ASK)
        receiver.wait_for(1)
        pid = exporter_of(server)
        server.process.kill()
        server.wait()
        wait_for_end(pid)


def test_an_endpoint_that_is_down_costs_spans_and_nothing_else(quick_model, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")  # tried again once
    port = reserve_port()
    flags = (*INSTANT, "--otlp_endpoint", f"http://127.0.0.1:{port}")
    with running_server(quick_model, *flags) as server:
        for _ in range(2):
            lost = spans_of(server)["dropped"]
            assert server.ask(**ASK)["answer"]
            wait_for_spans(server, lambda spans, lost=lost: spans["dropped"] > lost)
        assert spans_of(server)["exported"] == 0
        with receiving(port) as receiver:
            server.ask(**ASK)
            receiver.wait_for(1)
            server.wait_for_log(f"spans arrive at http://127.0.0.1:{port} again")
        server.wait_for_log("spans do not arrive")
        assert server.log.count("spans do not arrive") == 1
        server.wait_for_log("Connection refused")


def test_spans_that_the_receiver_refuses_are_dropped(quick_model, receiver):
    with running_server(quick_model, *INSTANT, *receiver.flags) as server:
        for number, receiver.status in enumerate((401, 307), 1):
            server.ask(**ASK)
            wait_for_spans(server, {"exported": 0, "dropped": 6 * number}.__eq__)
        server.wait_for_log("spans do not arrive")
