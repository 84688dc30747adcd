"""A connection's states, timeouts and faults, on a clock and a stream of the test's own."""

import json
import logging

import pytest

from harness.frames import frame, frames_in
from harness.hostile_http import head, replies_in
from qa_service.errors import QueueFullError, ShuttingDownError
from qa_service.server.front.connection_options import HttpOptions
from qa_service.server.front.protocols import Protocols
from qa_service.wire.http import http_routes
from qa_service.wire.http.open_inference import InferCall
from qa_service.wire.json_codec import MAX_AUTH_FRAME_BYTES
from tests.unit.server.fake_services import LoopClock
from tests.unit.server.front.connections import ScriptedStream, Surroundings
from tests.unit.wire.http.test_http_codec import ASK, get, infer, post

TOKEN = "a-token-of-this-test"
BEARER = f"Authorization: Bearer {TOKEN}\r\n".encode()
READY = "/v2/health/ready"


class Health:
    ready = True


class Setting(Surroundings):
    """A connection that chooses its protocol, and may want a token; its service may fail."""

    def __init__(self, tmp_path, *, tokens=False, rights="", **limits):
        auth = {}
        if tokens:
            token_file = tmp_path / "tokens"
            token_file.write_text(f"{TOKEN}{rights}\n")
            auth["auth_token_file"] = token_file
        self.submitting = self.reporting = None
        self.clock, self.stream = LoopClock(), ScriptedStream()
        protocols = Protocols(20_000, HttpOptions(), is_loopback=False)
        limits = {"idle_timeout_ms": 60_000, "client_timeout_ms": 3_000, **limits}
        super().__init__(
            self.stream,
            lambda data: protocols.codec_for(data, wants_token=tokens),
            self.clock,
            auth,
            **limits,
        )

    def submit(self, call):
        super().submit(call)
        if self.submitting:
            raise self.submitting

    def report(self, query, client):
        if self.reporting:
            raise self.reporting
        return Health()

    def send(self, data):
        self.stream.deliver(data)
        self.clock.run_soon()

    def answer(self, number=0):
        self.resolve(self.calls[number], "Ada")
        self.clock.run_soon()

    @property
    def replies(self):
        """The status, the fields and the JSON of each HTTP reply."""
        found = replies_in(self.stream.written)
        return [(status, fields, json.loads(body or "null")) for status, fields, body in found]

    @property
    def statuses(self):
        return [status for status, _, _ in self.replies]

    @property
    def frames(self):
        """The bodies of the frames that were written."""
        return frames_in(self.stream.written)


@pytest.fixture
def make(tmp_path):
    return lambda **options: Setting(tmp_path, **options)


class TestProbes:
    """A client that asks what needs no token, on a server that wants one."""

    def test_a_probe_connection_may_stay_as_long_as_others(self, make):
        setting = make(tokens=True)
        for _ in range(10):
            setting.send(get(READY))
            setting.clock.advance(50)
        assert setting.statuses == [200] * 10
        setting.clock.advance(11)
        assert setting.ended

    @pytest.mark.parametrize("sent", [frame({"type": "auth", "token": TOKEN}), get(READY)])
    def test_a_connection_may_be_idle_for_less_than_it_has_for_its_token(self, make, sent):
        setting = make(tokens=True, idle_timeout_ms=500)
        setting.send(sent)
        setting.clock.advance(0.6)
        assert setting.ended

    @pytest.mark.parametrize("sent", [b"", get(READY)[:-1]], ids=["nothing", "part of a probe"])
    def test_a_connection_without_a_probe_is_closed(self, make, sent):
        setting = make(tokens=True)
        if sent:
            setting.send(sent)
        setting.clock.advance(1.1)
        assert not setting.stream.is_open

    @pytest.mark.parametrize("tokens", [True, False])
    def test_a_message_that_a_pause_held_gets_its_time_again(self, make, tokens):
        setting = make(tokens=tokens)
        setting.send(get(READY)[:-1])
        setting.clock.pause(60.0)
        assert setting.stream.is_open
        setting.clock.advance(5.1)
        assert not setting.stream.is_open

    def test_an_unfinished_probe_gets_frame_timeout(self, make):
        setting = make(tokens=True)
        setting.send(get(READY) + get(READY)[:-1])
        setting.clock.advance(5.1)
        assert setting.statuses == [200, 408]
        assert not setting.stream.is_open

    @pytest.mark.parametrize(("token", "status"), [(BEARER, 200), (b"", 401)])
    def test_a_probe_connection_asks_with_a_token_alone(self, make, token, status):
        setting = make(tokens=True)
        setting.send(get(READY) + post("/qa", ASK, token))
        for call in setting.calls:
            setting.resolve(call, "Ada")
        assert setting.statuses == [200, status]
        assert (bool(setting.calls), setting.stream.is_open) == (status == 200, status == 200)

    def test_an_old_probe_connection_is_closed(self, make):
        setting = make(tokens=True, max_connection_age_s=10)
        setting.send(get(READY))
        setting.clock.advance(11.1)
        assert not setting.stream.is_open


def test_the_siblings_of_a_question_that_fails_are_cancelled(make):
    setting = make()
    setting.send(post("/v2/models/m/infer", infer(["a?", "b?", "c?"])) + post("/qa", ASK))
    setting.calls[1].fail(QueueFullError())
    assert setting.cancelled in (setting.calls[0:3:2], setting.calls[2::-2])
    assert setting.connection.calls.in_flight == {setting.calls[3]}
    assert setting.metrics.requests_total["abandoned"] == 2
    assert setting.statuses == [503]


@pytest.mark.parametrize(
    "first", [(MAX_AUTH_FRAME_BYTES + 1).to_bytes(4, "big"), frame({"id": 7, "type": "cancel"})]
)
def test_without_a_token_a_long_frame_and_a_cancellation_are_refused(make, first):
    setting = make(tokens=True)
    setting.send(first)
    assert setting.frames[0]["error"]["code"] == "unauthorized"
    assert not setting.stream.is_open


@pytest.mark.parametrize("tokens", [True, False])
def test_frames_after_authentication_may_be_long(make, tokens):
    setting = make(tokens=tokens)
    setting.send(frame({"type": "auth", "token": TOKEN}))
    setting.send(frame({**ASK, "text": "a" * MAX_AUTH_FRAME_BYTES}))
    assert len(setting.calls) == 1


@pytest.mark.parametrize(
    ("tokens", "rights", "status"), [(True, " admin", 200), (True, "", 403), (False, "", 403)]
)
def test_a_command_needs_a_token_with_that_right(make, tokens, rights, status):
    setting = make(tokens=tokens, rights=rights)
    setting.send(post("/v2/repository/models/m/load", b"{}", BEARER))
    assert setting.statuses == [status]


def fail(*_, **__):
    raise ZeroDivisionError


class TestFaults:
    """Exceptions that are the server's own: logged once, answered, and survived."""

    @pytest.fixture(autouse=True)
    def logged_once(self, caplog):
        caplog.set_level(logging.ERROR)
        yield
        assert [record.exc_info[0] for record in caplog.get_records("call")] == [ZeroDivisionError]

    @pytest.mark.parametrize("place", ["in the service", "before the service"])
    @pytest.mark.parametrize("data", [frame({"id": 1, **ASK}), post("/qa", ASK)])
    def test_a_fault_of_a_question_fails_its_request_alone(self, make, monkeypatch, data, place):
        setting = make()
        with monkeypatch.context() as patch:
            if place == "in the service":
                patch.setattr(setting, "submitting", ZeroDivisionError())
            else:
                patch.setattr("qa_service.server.front.calls.Call", fail)
            setting.send(data)
        setting.send(data)
        setting.answer(-1)
        assert setting.stream.written.count(b"internal_error") == 1
        assert setting.stream.written.count(b"Ada") == 1
        assert all(call.is_settled for call in setting.calls)
        assert setting.metrics.requests_total["internal_error"] == 1

    @pytest.mark.parametrize(
        ("faulty", "data", "words"),
        [
            ("parse_infer", post("/v2/models/m/infer", infer(["a?"])), "POST /v2/models/m/infer"),
            ("find_model", get("/v2/models/m"), "GET /v2/models/m"),
            ("", get("/stats"), "stats query"),
        ],
        ids=["a path's handler", "rendering a report", "a report"],
    )
    def test_a_fault_in_an_exchange_gets_500(self, make, monkeypatch, caplog, faulty, data, words):
        setting = make()
        setting.send(post("/qa", ASK))
        if faulty:
            monkeypatch.setattr(http_routes, faulty, fail)
        else:
            setting.reporting = ZeroDivisionError()
        setting.send(data)
        setting.reporting = None
        setting.send(get(READY))
        setting.answer()
        assert setting.statuses == [200, 500, 200]
        assert setting.replies[1][2] == {"error": "the server failed to answer this request"}
        assert words in caplog.text

    def test_a_fault_in_parsing_a_frame_gets_internal_error(self, make, monkeypatch):
        setting = make()
        with monkeypatch.context() as patch:
            patch.setattr("qa_service.wire.frame_codec.parse_request", fail)
            setting.send(frame({"id": 1, **ASK}))
        setting.send(frame({"id": 2, **ASK}))
        setting.answer()
        assert [(one["id"], one.get("error", {}).get("code")) for one in setting.frames] == [
            (None, "internal_error"), (2, None),
        ]  # fmt: skip

    def test_a_fault_in_cutting_the_stream_gets_500_and_a_close(self, make, monkeypatch):
        setting = make()
        setting.send(post("/qa", ASK))
        monkeypatch.setattr("qa_service.wire.http.http1.head_of", fail)
        setting.send(get(READY) + get(READY))
        assert setting.stream.is_open
        setting.answer()
        assert setting.statuses == [200, 500]
        assert not setting.stream.is_open

    def test_a_fault_in_encoding_an_answer_gets_500(self, make, monkeypatch):
        setting = make()
        setting.send(post("/v2/models/m/infer", infer(["a?", "b?"])) + post("/qa", ASK))
        with monkeypatch.context() as patch:
            patch.setattr(InferCall, "reply", fail)
            setting.answer(0)
            setting.answer(1)
        setting.answer(2)
        assert setting.statuses == [500, 200]

    def test_a_fault_in_encoding_an_error_drops_the_connection(self, make, monkeypatch):
        setting = make()
        setting.send(frame(ASK))
        monkeypatch.setattr("qa_service.wire.frame_codec.encode_error", fail)
        setting.calls[0].fail(ShuttingDownError())
        assert setting.stream.is_dropped
        assert setting.ended == [setting.connection]


@pytest.mark.parametrize("first", [b"\r\n", b"\r\n\r\n", b"\r"])
def test_an_empty_line_before_a_request_is_passed_over(make, first):
    setting = make()
    whole = b"\r\n\r\n" + get(READY)
    setting.send(first)
    setting.send(whole[len(first) :])
    assert setting.statuses == [200]


class TestShapes:
    """POST /qa tells every error as a frame would."""

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (head(b"Content-Length: 20001\r\n"), 413),
            (head(b"Content-Length: x\r\n"), 400),
            (head(b"Content-Length: " + b"1" * 5000 + b"\r\n"), 400),
            (head(b"A field without a colon\r\n"), 400),
            (head(host=b""), 400),
            (head(b"Transfer-Encoding: chunked\r\n") + b"no number\r\n\r\n", 400),
            (head(b"Expect: a-miracle\r\n"), 417),
            (head(b"Field: " + b"a" * 20_000 + b"\r\n"), 431),
            (head(line=b"POST /qa?a=b HTTP/1.7"), 505),
            (head(b"Content-Length: x\r\n", b"POST http://localhost/qa HTTP/1.1"), 400),
            (head(line=b"GET /qa HTTP/1.1"), 405),
        ],
    )
    def test_errors_on_qa_have_id_code_and_message(self, make, data, status):
        setting = make()
        setting.send(data)
        [(told, _, body)] = setting.replies
        assert (told, body["id"]) == (status, None)
        assert body["error"].keys() == {"code", "message", "retryable"}

    def test_an_unfinished_head_gets_408_in_the_form_of_its_path(self, make):
        setting = make()
        setting.send(head()[:-2])
        setting.clock.advance(5.1)
        [(status, _, body)] = setting.replies
        assert (status, body["error"]["code"]) == (408, "frame_timeout")

    @pytest.mark.parametrize(
        "data",
        [
            head(b"Content-Length: 20001\r\n", b"POST /v2/models/m/infer HTTP/1.1"),
            head(b"Content-Length: x\r\n", b"POST /qas HTTP/1.1"),
            b"POST\r\n\r\n",
            head(line=b"POST /qa"),
            get("/nothing"),
        ],
    )
    def test_errors_on_other_paths_have_tritons_form(self, make, data):
        setting = make()
        setting.send(data)
        [(status, _, body)] = setting.replies
        assert 400 <= status < 500
        assert isinstance(body["error"], str)
