"""HTTP as a codec: what a connection is given of requests, and the replies in their order."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness.hostile_http import HOST, head, replies_in
from qa_service.errors import HttpError, QueueFullError, ShuttingDownError, UnauthorizedError
from qa_service.wire.codec import Wait
from qa_service.wire.http import pages
from qa_service.wire.http.http_access import HttpAccess
from qa_service.wire.http.http_codec import MAX_EXCHANGES, HttpCodec, HttpSite
from qa_service.wire.http.http_reply import MAX_MEMBERS, decompress
from qa_service.wire.json_codec import AnswersBody
from qa_service.wire.messages import (
    MAX_QUESTION_CHARS,
    MAX_TOP_K,
    NULL_ID,
    Answer,
    Answered,
    AnswerSource,
    Auth,
    Query,
    RejectedError,
    Request,
    Timings,
)
from tests.http_calls import tensors

MAX_BODY_BYTES = 5000
ANSWERS = [Answer("Ada", 0.5, 7, 10)]
TIMINGS = Timings(1.0, 2.0)
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
ASK = {"question": "Who?", "text": "It was Ada."}


def post(path: str, body: object, fields: bytes = b"", host: bytes = HOST) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    line = f"POST {path} HTTP/1.1".encode()
    return head(b"Content-Length: %d\r\n" % len(data) + fields, line, host) + data


def get(path: str, fields: bytes = b"", method: str = "GET") -> bytes:
    return head(fields, f"{method} {path} HTTP/1.1".encode())


def infer(questions: list[str], **options: object) -> dict[str, object]:
    """An inference request, all of whose texts are equal."""
    texts = ["It was Ada."] * len(questions)
    return {"inputs": tensors(question=questions, text=texts), **options}


INFER = "/v2/models/builtin/infer"


class Peer:
    """A codec and what a connection would do with it."""

    def __init__(self, *, wants_token=True, **access):
        site = HttpSite(MAX_BODY_BYTES, HttpAccess(**access), lambda: DATE)
        self.codec = HttpCodec(site, wants_token=wants_token)
        self.written = b""
        self.requests, self.queries, self.tokens, self.rejections = [], [], [], []

    def send(self, data: bytes) -> Peer:
        """Takes in what a client has sent, and everything that comes of it."""
        self.codec.feed(data)
        while (message := self._next()) is not None:
            if isinstance(message, Auth):
                self.tokens.append(message.token)
                self.written += self.codec.encode_authenticated(message)
            elif isinstance(message, Query):
                self.queries.append(message)
                self.written += self.codec.encode_report(message, self.report(message))
            else:
                self.requests.append(message)
        return self

    def _next(self):
        try:
            return self.codec.next_message()
        except RejectedError as rejected:
            self.rejections.append(rejected.error)
            self.written += self.codec.encode_rejection(rejected)
            return self._next()
        except HttpError as error:
            self.break_off(error)
            return None

    def break_off(self, error) -> None:
        self.written += self.codec.encode_rejection(RejectedError(NULL_ID, error))

    @staticmethod
    def report(query: Query, /) -> Any:
        return {"metrics": b"metrics\n", "stats": {"asked": "stats"}, "models": []}.get(query.type)

    def answer(self, number: int = 0, answers=ANSWERS) -> None:
        self.written += self.codec.encode_answers(
            self.requests[number], Answered(answers, TIMINGS, AnswerSource("builtin", 3))
        )

    def fail(self, error, number: int = 0) -> None:
        self.written += self.codec.encode_error(self.requests[number], error)

    def replies(self) -> list[tuple[int, dict[str, str], bytes]]:
        return replies_in(self.written)

    def statuses(self) -> list[int]:
        return [status for status, _, _ in self.replies()]

    def only(self) -> tuple[int, dict[str, str], Any]:
        """The one reply, its body from JSON."""
        [(status, fields, body)] = self.replies()
        return status, fields, json.loads(body)


def infer_peer(*questions: str, fields: bytes = b"", **options: object) -> Peer:
    """One that has sent an inference request."""
    return Peer().send(post(INFER, infer(list(questions), **options), fields))


def test_a_question_has_its_reply():
    peer = Peer().send(post("/qa", {"id": "x", **ASK, "top_k": 2, "priority": 3}))
    [request] = peer.requests
    assert (request.question, request.text, request.top_k, request.priority) == (
        "Who?", "It was Ada.", 2, 3,
    )  # fmt: skip
    peer.answer()
    status, fields, body = peer.only()
    assert (status, body["id"], body["answer"], len(body["answers"])) == (200, "x", "Ada", 1)
    assert fields["Content-Type"] == "application/json"
    assert fields["Server-Timing"] == "queue;dur=1.000, inference;dur=2.000"
    assert not peer.codec.has_ended


def test_replies_come_in_the_order_of_their_requests():
    peer = Peer().send(
        post("/qa", {"id": 1, **ASK}) + get("/stats") + post("/qa", {"id": 2, **ASK})
    )
    peer.answer(1)
    assert peer.written == b""
    peer.answer(0)
    bodies = [json.loads(body) for _, _, body in peer.replies()]
    assert [body.get("id", body.get("asked")) for body in bodies] == [1, "stats", 2]


def test_the_last_reply_says_so_and_ends_the_connection():
    peer = Peer().send(post("/qa", ASK, b"Connection: close\r\n") + get("/stats"))
    assert not peer.codec.has_ended
    peer.answer()
    _, fields, _ = peer.only()
    assert fields["Connection"] == "close"
    assert peer.codec.has_ended


def test_a_connection_that_is_to_close_says_so_on_its_last_reply():
    peer = Peer().send(post("/qa", ASK))
    peer.codec.announce_close()
    peer.send(get("/stats")).answer()
    assert [fields.get("Connection") for _, fields, _ in peer.replies()] == [None, "close"]
    assert peer.codec.has_ended


def test_a_connection_that_is_to_close_says_so_where_one_of_several_questions_fails():
    peer = infer_peer("Who?", "When?", "Why?")
    assert len(peer.requests) == 3
    peer.codec.announce_close()
    peer.fail(ShuttingDownError())
    status, fields, _ = peer.only()
    assert (status, fields["Connection"]) == (503, "close")
    assert peer.codec.has_ended


def test_an_http_1_0_keep_alive_request_is_answered_keep_alive():
    peer = Peer().send(head(b"Connection: keep-alive\r\n", b"GET /stats HTTP/1.0"))
    assert peer.only()[1]["Connection"] == "keep-alive"


def test_an_error_comes_after_the_answers_before_it():
    peer = Peer().send(post("/qa", ASK) + b"GET / HTTP/3.0\r\n\r\n" + get("/stats"))
    assert peer.written == b""
    peer.answer()
    assert peer.statuses() == [200, 505]
    assert "Connection" not in peer.replies()[0][1]
    assert peer.replies()[1][1]["Connection"] == "close"
    assert peer.codec.has_ended


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize(
    "path", ["/v2/health/live", "/livez", "/v2/health/ready", "/health", "/healthz", "/readyz"]
)
def test_health_has_a_status_and_a_body_and_needs_no_token(path, is_ready):
    peer = Peer()
    peer.report = lambda _: SimpleNamespace(ready=is_ready, reason="the server is draining")
    said = {"live": True}
    if "live" not in path:
        said |= {"ready": is_ready} | ({} if is_ready else {"reason": "the server is draining"})
    assert peer.send(get(path)).only()[::2] == (200 if all(said.values()) else 503, said)
    assert (peer.tokens, peer.queries[0].is_open) == ([], True)


def test_every_reply_has_the_date():
    data = post("/qa", ASK) + get("/stats") + get("/nothing") + get("/qa", method="OPTIONS")
    peer = Peer().send(data)
    peer.answer()
    peer.send(b"GARBAGE\r\n")
    assert peer.statuses() == [200, 200, 404, 204, 400]
    assert [fields["Date"] for _, fields, _ in peer.replies()] == [DATE] * 5


def test_the_page_of_the_description_loads_nothing():
    [(status, fields, body)] = Peer().send(get("/docs")).replies()
    page = body.decode()
    assert (status, fields["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'none'" in fields["Content-Security-Policy"]
    assert not re.search(r"(src|href)=\"(?!#|/|data:,)", page)
    for shown in ("POST /qa", "POST /v1/models/{model}:predict", "top_k", "from 1 to 20", "504"):
        assert shown in page


@pytest.mark.parametrize("colon", [":", "%3A", "%3a"])
@pytest.mark.parametrize("version", ["", "/versions/3", "/labels/stable"])
def test_the_colon_of_a_verb_may_be_encoded(colon, version):
    rows = {"instances": [ASK]}
    peer = Peer().send(post(f"/v1/models/builtin{version}{colon}predict", rows))
    assert (peer.requests[0].model, peer.requests[0].question) == ("builtin", "Who?")
    assert Peer().send(post(f"/v1/models/builtin{version}{colon}classify", rows)).statuses() == [
        400
    ]


def test_a_reply_to_head_has_no_body():
    peer = Peer().send(get("/stats", method="HEAD"))
    first, _, body = peer.written.partition(b"\r\n\r\n")
    assert (b"Content-Length: 17" in first, body) == (True, b"")


@pytest.mark.parametrize(
    ("data", "status", "field"),
    [
        (get("/nothing"), 404, {}),
        (get("/qa"), 405, {"Allow": "POST, OPTIONS"}),
        (post("/metrics", b""), 405, {"Allow": "GET, HEAD, OPTIONS"}),
        (get("/", method="TRACE"), 405, {"Allow": "GET, HEAD, OPTIONS"}),
        (get("/v2/models/other", method="DELETE"), 405, {}),
        (get("/v2/models/other"), 404, {}),
        (post("/v2/systemsharedmemory/region/x/register", b"{}"), 501, {}),
        (post("/v2/logging", b"{}"), 501, {}),
        (post("/qa", ASK, b"Content-Encoding: br\r\n"), 415, {"Accept-Encoding": "gzip, deflate"}),
        (post("/qa", b"x", b"Content-Encoding: gzip\r\n"), 400, {}),
        (post("/qa", gzip.compress(bytes(5001)), b"Content-Encoding: gzip\r\n"), 413, {}),
        (post("/qa", gzip.compress(b"{}") + b"x", b"Content-Encoding: gzip\r\n"), 400, {}),
        (post("/qa", zlib.compress(b"{}") * 2, b"Content-Encoding: deflate\r\n"), 400, {}),
        (post("/qa", gzip.compress(bytes(2600)) * 2, b"Content-Encoding: gzip\r\n"), 413, {}),
        (post("/qa", b"", b"Content-Encoding: gzip\r\n"), 400, {}),
        (post("/qa", gzip.compress(b"{}")[:-1], b"Content-Encoding: gzip\r\n"), 400, {}),
        (post("/qa", b"{"), 400, {}),
        (post("/qa", {"type": "health"}), 400, {}),
        (post("/qa", {"id": 7, "type": "cancel"}), 400, {}),
        (post("/qa", {**ASK, "question": "a" * (MAX_QUESTION_CHARS + 1)}), 400, {}),
    ],
)
def test_an_unserved_path_gets_its_status_and_the_next_request_is_served(data, status, field):
    peer = Peer().send(data + get("/stats"))
    assert peer.statuses() == [status, 200]
    assert field.items() <= peer.replies()[0][1].items()


@pytest.mark.parametrize(
    ("data", "status"),
    [(post("/qa", ASK, b"Expect: a-miracle\r\n"), 417), (head(b"Content-Length: 5001\r\n"), 413)],
)
def test_a_request_refused_by_its_head_ends_the_connection(data, status):
    peer = Peer().send(data + get("/stats"))
    assert peer.statuses() == [status]
    assert peer.codec.has_ended


def test_a_bad_questions_error_has_its_id_and_the_code_of_frames():
    peer = Peer().send(post("/qa", {"id": 7, **ASK, "text": ""}))
    status, _, body = peer.only()
    assert (status, body["id"], body["error"]["code"]) == (400, 7, "invalid_request")


@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        (b"gzip", gzip.compress),
        (b"X-GZIP", gzip.compress),
        (b"deflate", zlib.compress),
        (b"identity", bytes),
        (
            b"gzip",
            lambda body: gzip.compress(body[:9]) + gzip.compress(b"") + gzip.compress(body[9:]),
        ),
    ],
)
def test_a_compressed_question_is_read(coding, compress):
    body = compress(json.dumps(ASK).encode())
    peer = Peer().send(post("/qa", body, b"Content-Encoding: " + coding + b"\r\n"))
    assert peer.requests[0].question == "Who?"


def test_a_body_has_a_bounded_number_of_gzip_members():
    members = gzip.compress(b"")
    assert decompress(members * MAX_MEMBERS, "gzip", 10) == b""
    with pytest.raises(HttpError, match="goes on behind"):
        decompress(members * (MAX_MEMBERS + 1), "gzip", 10)


def test_a_full_queues_reply_has_retry_after():
    peer = infer_peer("Who?")
    peer.fail(QueueFullError(retry_after_ms=1200))
    status, fields, body = peer.only()
    assert (status, fields["Retry-After"]) == (503, "2")
    assert body == {"error": "the server's queue is full"}


@pytest.mark.parametrize(
    ("data", "version", "said"),
    [
        (post("/v2/models/fast/versions/canary/infer", infer(["Who?"])), "canary",
         {"model_name": "builtin", "model_version": "3"}),
        (post("/qa", {**ASK, "model": "fast", "version": 2}), 2,
         {"model": "builtin", "version": 3}),
    ],
)  # fmt: skip
def test_a_question_names_a_model_and_the_reply_names_the_version(data, version, said):
    peer = Peer().send(data)
    assert (peer.requests[0].model, peer.requests[0].version) == ("fast", version)
    peer.answer()
    assert said.items() <= peer.only()[2].items()


@pytest.mark.parametrize("command", ["load", "unload"])
def test_a_model_is_loaded_and_unloaded_by_name(command):
    peer = Peer().send(post(f"/v2/repository/models/fast/{command}", b"{}"))
    [query] = peer.queries
    assert (query.type, query.model, query.is_open) == (command, "fast", False)
    assert peer.only()[::2] == (200, {})


class TestTokens:
    def test_each_request_needs_its_own_token(self):
        values = (b"Bearer abc", b"Basic abc", b"Bearer abc d")
        data = b"".join(get("/stats", b"Authorization: %b\r\n" % value) for value in values)
        assert Peer().send(data + get("/stats")).tokens == ["abc", "", "abc d", ""]

    def test_the_page_needs_no_token(self):
        peer = Peer().send(get("/"))
        assert (peer.tokens, peer.queries[0].is_open) == ([], True)

    def test_a_token_is_asked_for_before_the_body(self):
        codec = Peer().codec
        codec.feed(post("/qa", ASK)[:-10])
        assert isinstance(codec.next_message(), Auth)
        assert codec.next_message() is None

    def test_no_token_is_read_where_none_is_required(self):
        peer = Peer(wants_token=False).send(get("/stats", b"Authorization: Bearer abc\r\n"))
        assert (peer.tokens, peer.statuses()) == ([], [200])

    def test_a_wrong_token_ends_the_connection(self):
        peer = Peer()
        peer.codec.feed(post("/qa", ASK) + get("/stats"))
        assert isinstance(peer.codec.next_message(), Auth)
        peer.break_off(UnauthorizedError())
        status, fields, body = peer.only()
        assert (status, fields["WWW-Authenticate"], body["error"]["code"]) == (
            401, "Bearer", "unauthorized",
        )  # fmt: skip
        assert peer.codec.has_ended
        assert peer.codec.next_message() is None

    def test_break_off_without_a_request_writes_nothing(self):
        peer = Peer().send(get("/stats"))
        peer.written = b""
        peer.break_off(UnauthorizedError())
        assert peer.written == b""
        assert peer.codec.has_ended


class TestExpectations:
    EXPECT = b"Expect: 100-continue\r\n"

    @pytest.mark.parametrize("wants_token", [True, False])
    def test_a_client_that_expects_100_continue_gets_it(self, wants_token):
        data = post("/qa", ASK, self.EXPECT)
        start = data.index(b"\r\n\r\n") + 4
        peer = Peer(wants_token=wants_token).send(data[:start])
        assert peer.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(data[start:])
        assert len(peer.requests) == 1

    def test_a_client_that_has_sent_its_body_gets_no_100_continue(self):
        assert Peer().send(post("/qa", ASK, self.EXPECT)).written == b""

    def test_100_continue_follows_the_earlier_replies(self):
        data = post("/qa", ASK, self.EXPECT)
        peer = Peer().send(post("/qa", ASK) + data[: data.index(b"\r\n\r\n") + 4])
        assert peer.written == b""
        peer.answer()
        assert peer.written.startswith(b"HTTP/1.1 200 ")
        assert peer.written.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")


class TestManyQuestions:
    def test_questions_of_one_body_are_requests_with_one_reply(self):
        peer = infer_peer("a?", "b?", "c?", id="7")
        assert [request.question for request in peer.requests] == ["a?", "b?", "c?"]
        assert len({request.id_json for request in peer.requests}) == 3
        peer.answer(2, [Answer("c", 0.3, 2, 3)])
        peer.answer(0, [Answer("a", 0.1, 0, 1)])
        assert peer.written == b""
        peer.answer(1, [Answer("", 0.2, None, None)])
        _, _, body = peer.only()
        assert (body["id"], body["model_name"], body["model_version"]) == ("7", "builtin", "3")
        assert {output["name"]: output["data"] for output in body["outputs"]} == {
            "answer": ["a", "", "c"],
            "score": [0.1, 0.2, 0.3],
            "start": [0, -1, 2],
            "end": [1, -1, 3],
        }

    def test_a_failed_question_cancels_its_siblings(self):
        peer = infer_peer("a?", "b?", "c?")
        peer.fail(QueueFullError(), 1)
        assert peer.statuses() == [503]
        assert peer.codec.take_cancelled() == [peer.requests[0], peer.requests[2]]
        assert peer.codec.take_cancelled() == []

    def test_questions_behind_a_failed_one_are_dropped(self):
        codec = Peer().codec
        codec.feed(post(INFER, infer(["a?", "b?", "c?"])))
        first = [codec.next_message() for _ in range(2)][1]
        assert isinstance(first, Request)
        codec.encode_error(first, QueueFullError())
        assert codec.take_cancelled() == []
        assert (codec.next_message(), codec.buffered_bytes) == (None, 0)

    def test_the_reply_is_compressed_on_request(self):
        peer = infer_peer("Who?", fields=b"Accept-Encoding: br;q=1.0, gzip;q=0, deflate\r\n")
        peer.answer()
        [(_, fields, body)] = peer.replies()
        assert fields["Content-Encoding"] == "deflate"
        assert json.loads(zlib.decompress(body))["model_name"] == "builtin"

    @pytest.mark.parametrize(
        ("accepted", "coding"),
        [("gzip", "gzip"), ("x-gzip", "gzip"), ("GZIP ; Q=0.3", "gzip"), ("*", "gzip"),
         ("gzip;q=0.00", None), ("gzip;q=0.000, *;q=0", None), ("gzip;q=0, *", "deflate"),
         ("gzip;q=0.2, deflate;q=0.3", "deflate"), ("gzip;q=0.5, identity", None),
         ("gzip;q=2", None), ("gzip;q=nan", None), ("br", None), ("", None)],
    )  # fmt: skip
    def test_the_coding_with_the_greatest_weight_is_taken(self, accepted, coding):
        peer = infer_peer("Who?", fields=f"Accept-Encoding: {accepted}\r\n".encode())
        peer.answer()
        [(_, fields, _)] = peer.replies()
        assert fields.get("Content-Encoding") == coding

    def test_other_replies_are_not_compressed(self):
        peer = Peer().send(get("/stats", b"Accept-Encoding: gzip\r\n"))
        assert peer.only()[2] == {"asked": "stats"}


class TestBounds:
    def test_requests_wait_while_many_replies_are_unsent(self):
        peer = Peer().send(post("/qa", ASK) + get("/stats") * MAX_EXCHANGES)
        assert len(peer.queries) == MAX_EXCHANGES - 1
        assert peer.codec.waits_for is Wait.ANSWERS
        peer.answer()
        peer.send(b"")
        assert len(peer.queries) == MAX_EXCHANGES

    def test_a_chunked_body_is_parsed_in_turns(self):
        codec = Peer().codec
        codec.feed(head(b"Transfer-Encoding: chunked\r\n") + b"1000\r\n" + b"\r\n\r\n" * 1024)
        assert isinstance(codec.next_message(), Auth)
        assert codec.next_message() is None
        assert codec.waits_for is Wait.TURN


GOOD_SITE = {"cors_origins": frozenset({"https://good.example"})}


class TestAccess:
    def post_from(self, peer, origin=None, site=None):
        fields = b"" if origin is None else b"Origin: " + origin + b"\r\n"
        fields += b"" if site is None else b"Sec-Fetch-Site: " + site + b"\r\n"
        return peer.send(post("/qa", ASK, fields, b"Host: localhost:1\r\n"))

    @pytest.mark.parametrize(
        ("origin", "site"),
        [(b"http://evil.example", None), (b"http://localhost:2", b"same-site"), (b"null", None),
         (b"http://localhost", None), (None, b"cross-site")],
    )  # fmt: skip
    def test_a_page_of_another_origin_is_refused(self, origin, site):
        assert self.post_from(Peer(), origin, site).statuses() == [403]

    @pytest.mark.parametrize(
        ("origin", "site"),
        [(None, None), (b"http://localhost:1", b"same-origin"), (b"https://LOCALHOST:1", None)],
    )
    def test_the_servers_own_page_is_allowed(self, origin, site):
        assert len(self.post_from(Peer(), origin, site).requests) == 1

    def test_a_configured_origin_is_allowed_with_cors_headers(self):
        peer = self.post_from(Peer(**GOOD_SITE), b"https://good.example", b"cross-site")
        peer.answer()
        [(_, fields, _)] = peer.replies()
        assert fields["Access-Control-Allow-Origin"] == "https://good.example"
        assert self.post_from(Peer(**GOOD_SITE), b"https://evil.example").statuses() == [403]

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            (b"Content-Length: 5001\r\n", 413),
            (b"Transfer-Encoding: chunked\r\n\r\n1770\r\n" + bytes(6000), 413),
            (b"X: 1\r\n" * 65, 431),
            (b"X: " + b"x" * 16_384 + b"\r\n", 431),
            (b"Content-Length: x\r\n", 400),
        ],
    )
    def test_a_configured_origin_may_read_why_its_request_is_refused(self, fields, expected):
        for line in (b"Origin: https://good.example\r\n", b"origin:https://good.example \r\n"):
            peer = Peer(**GOOD_SITE).send(head(line + fields))
            [(status, its, _)] = peer.replies()
            assert status == expected
            assert its["Access-Control-Allow-Origin"] == "https://good.example"
        evil = Peer(**GOOD_SITE)
        evil.send(head(b"Origin: https://evil.example\r\n" + fields))
        [(_, its, _)] = evil.replies()
        assert "Access-Control-Allow-Origin" not in its

    def test_a_cors_preflight_is_answered(self):
        peer = Peer(**GOOD_SITE).send(get("/qa", b"Origin: https://good.example\r\n", "OPTIONS"))
        [(status, fields, _)] = peer.replies()
        assert status == 204
        assert "Authorization" in fields["Access-Control-Allow-Headers"]
        assert peer.tokens == []

    @pytest.mark.parametrize(
        ("host", "statuses"),
        [(b"evil.example", [421]), (b"192.0.2.1:9999", [421]), (b"localhost.evil.example", [421]),
         (b"localhost:9999", [200]), (b"127.0.0.1", [200]), (b"[::1]:9999", [200]),
         (b"localhost.", [200]), (b"localhost.:9999", [200]), (b"evil.example.", [421])],
    )  # fmt: skip
    def test_a_loopback_server_serves_only_loopback_names(self, host, statuses):
        peer = Peer(is_loopback=True).send(
            head(line=b"GET /stats HTTP/1.1", host=b"Host: " + host + b"\r\n")
        )
        assert peer.statuses() == statuses


def test_the_openapi_description_is_made_from_the_types():
    description = pages.description()
    schemas = description["components"]["schemas"]
    assert schemas["Question"]["required"] == ["question"]
    assert schemas["Question"]["properties"]["top_k"]["maximum"] == MAX_TOP_K
    assert schemas["Answers"]["properties"]["timings_ms"]["$ref"] == "#/components/schemas/Timings"
    assert "at most" in schemas["Question"]["properties"]["question"]["description"]
    names = {field.encode_name for field in msgspec.structs.fields(AnswersBody)}
    assert "cached" in names
    assert schemas["Answers"]["properties"].keys() == names


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-what-follows", TRACE),
        (f"00-{TRACE}-b7ad6b7169203331-01-what-follows", ""),
        (f"ff-{TRACE}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE}-b7ad6b7169203331", ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        ("", ""),
    ],
)
def test_a_question_belongs_to_the_trace_of_its_request(traceparent, expected):
    peer = Peer().send(post("/qa", ASK, f"traceparent: {traceparent}\r\n".encode()))
    assert peer.codec.trace_of(peer.requests[0]).trace_id == expected
