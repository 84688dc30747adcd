"""The wire, byte by byte: the golden frames of docs/, and what no list can hold."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.frames import frame as framed
from harness.mutate import GOLDEN, body_of
from harness.server import ROOT
from qa_service.errors import (
    ERROR_KINDS,
    DuplicateIdError,
    FrameTooLargeError,
    HttpError,
    UnauthorizedError,
)
from qa_service.server.telemetry.health import Health
from qa_service.wire.error_codes import ERRORS, grpc_code_of, header_fields_of, status_of
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.frames import PREFIX, FrameReader
from qa_service.wire.json_codec import encode_answers, encode_error, parse_auth, parse_request
from qa_service.wire.messages import (
    MAX_QUESTION_CHARS,
    REQUEST_FIELDS,
    Answer,
    Answered,
    AnswerSource,
    Cancel,
    Passage,
    Query,
    RejectedError,
    Request,
    Timings,
)

DOCS = ROOT / "docs"
CODEC = FrameCodec(1 << 18, 1 << 12)
TYPES = "`type` must be question, health, stats, models, load, unload or cancel"


def question_of(body: bytes) -> Request:
    request = parse_request(body)
    assert isinstance(request, Request)
    return request


@pytest.mark.parametrize("case", GOLDEN["requests"], ids=lambda case: case["name"])
def test_a_golden_request_is_read_or_refused_as_expected(case):
    if "error" in case:
        with pytest.raises(RejectedError) as caught:
            parse_request(body_of(case))
        assert caught.value.error.code == case["error"]["code"]
        assert caught.value.id_json.decode() == case["error"]["id"]
        assert caught.value.error.message
    elif "cancel" in case:
        assert parse_request(body_of(case)) == Cancel(case["cancel"].encode())
    else:
        request = parse_request(body_of(case))
        parsed = {name: getattr(request, name) for name in case["expect"] if name != "id"}
        assert {**parsed, "id": request.id_json.decode()} == case["expect"]


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"question": "Who?", "context": "Ada."}, "text"),
        ({"question": "Who?", "Passage": "Ada."}, "text"),
        ({"question": "Who?", "txet": "a", "texts": "Ada."}, "text"),
        ({"q": "Who?", "text": "Ada."}, "question"),
        ({"questoin": "Who?", "text": "Ada."}, "question"),
        ({"question": "Who?", "text": "Ada.", "topk": 3}, "top_k"),
        ({"question": "Who?", "text": "Ada.", "topK": 3, "x": 1}, "top_k"),
        ({"question": "Who?", "text": "Ada.", "prioritty": 3}, "priority"),
        ({"question": "Who?", "text": "Ada.", "timeout": 3}, "timeout_ms"),
        ({"question": "Who?", "collection": "c", "maxPassages": 3}, "max_passages"),
    ],
)
def test_a_name_near_that_of_a_missing_field_is_refused(fields, meant):
    with pytest.raises(RejectedError, match=f"did you mean `{meant}`\\?$") as caught:
        parse_request(json.dumps({"id": 7, **fields}).encode())
    assert (caught.value.id_json, caught.value.error.code) == (b"7", "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "Ada.", "context": "of my own", "kk": [1], "note": {"topk": 1}},
        {"text": '"context": "topk": ', "x" * 300: 1},
        {"text": "Ada.", "top_k": 2, "topk": 3, "user": "me", "session": 4},
        {"text": "Ada.", **{f"field {n}": n for n in range(100)}},
        {"collection": "docs", "context": "of my own"},
    ],
)
def test_other_unknown_fields_are_ignored(fields):
    body = json.dumps({"id": 7, "question": "Who?", **fields}).encode()
    request = parse_request(body)
    known = {name: value for name, value in fields.items() if name in REQUEST_FIELDS}
    expected = Request("Who?", id=msgspec.Raw(b"7"), **known)
    assert request == expected


def test_a_fault_next_to_an_unknown_field_is_reported():
    body = b'{"id": 7, "question": "Who?", "text": "Ada.", "top_k": 99, "mine": 1}'
    with pytest.raises(RejectedError, match="top_k") as caught:
        parse_request(body)
    assert caught.value.id_json == b"7"


@pytest.mark.parametrize("case", GOLDEN["auth"], ids=lambda case: case["name"])
def test_a_golden_first_frame_is_read_as_its_token(case):
    auth = parse_auth(body_of(case))
    if "token" in case:
        assert auth
        assert (auth.token, bytes(auth.id).decode()) == (case["token"], case["id"])
        assert CODEC.encode_authenticated(auth).hex() == case["reply_hex"]
    else:
        assert auth is None


@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 4000, b"\xff", b'{"type":"auth","token":"\\ud800"}',
     b'{"type":"auth","token":"t","id":[]}', b'{"type":"auth","token":"' + b"x" * 4096 + b'"}'],
)  # fmt: skip
def test_other_frames_are_not_auth(body):
    assert parse_auth(body) is None


@pytest.mark.parametrize("case", GOLDEN["responses"], ids=lambda case: case["name"])
def test_a_golden_response_is_encoded_byte_for_byte(case):
    means = case["means"]
    id_json = json.dumps(means["id"]).encode()
    closing = {"is_closing": means.get("closing", False)}
    if query_type := {"health", "stats"} & means.keys():
        query = Query(id_json, query_type.pop())
        frame = CODEC.encode_report(query, means[query.type])
    elif "error" in means:
        kind = ERROR_KINDS[means["error"]["code"]]
        error = kind(means["error"]["message"], retry_after_ms=means["error"].get("retry_after_ms"))
        frame = encode_error(id_json, error, **closing)
    else:
        passage = Passage(**means["passage"]) if "passage" in means else None
        best = Answer(means["answer"], means["score"], means["start"], means["end"], passage)
        answers = [Answer(**answer) for answer in means.get("answers", [])] or [best]
        timings = Timings(**means["timings_ms"])
        fields = {"model": "", "version": 0, "cached": False, "models_asked": 0}
        source = AnswerSource(*(means.get(name, default) for name, default in fields.items()))
        answered = Answered(answers, timings, source)
        frame = encode_answers(id_json, answered, len(answers), **closing)
    assert frame.hex() == case["frame_hex"]


@pytest.mark.parametrize("name", ["health", "not_ready"])
def test_the_golden_health_report_has_all_fields(name):
    [means] = [case["means"] for case in GOLDEN["responses"] if case["name"] == name]
    frame = CODEC.encode_report(Query(b"1", "health"), Health(**means["health"]))
    assert json.loads(frame[PREFIX.size :])["health"] == means["health"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"id":7,"question":"q?"}', "`text` is empty"),
        ('{"id":7,"text":"t"}', "Object missing required field `question`"),
        ('{"id":7,"question":5,"text":"t"}', "Expected `str`, got `int` - at `$.question`"),
        ("[]", "Expected `object`, got `array`"),
        (
            '{"question":"q?","collection":""}',
            "Expected `str` of length >= 1 - at `$.collection`",
        ),
        (
            '{"question":"q?","collection":"c","max_passages":101}',
            "Expected `int` <= 100 - at `$.max_passages`",
        ),
        ('{"type":"x"}', TYPES),
        pytest.param(f'{{"type":"{"x" * 10_000}"}}', TYPES, id="a long type"),
        ('{"question":5,"type":"x"}', TYPES),
        (
            '{"question":"q?","text":"t","timeout_ms":1e999}',
            "Number out of range - at `$.timeout_ms`",
        ),
        ('{"type":5}', TYPES),
        ('{"type":"health","id":true}', "`id` must be a string, a number or null"),
    ],
)
def test_an_invalid_requests_error_says_what_is_wrong(body, message):
    with pytest.raises(RejectedError) as caught:
        parse_request(body.encode())
    assert caught.value.error.message == message


def test_a_cancel_frame_is_recognised_before_it_is_taken():
    codec = FrameCodec(1 << 18, 1000)
    for byte in framed(b'{"type":"cancel","id":7}'):
        assert not codec.next_is_cancel
        codec.feed(bytes([byte]))
    assert codec.next_is_cancel
    assert codec.next_message() == Cancel(b"7")
    for body in (b"", b"\xff", b'{"type":"health"}', b'{"type":"cancel"}' + b" " * 512):
        codec.feed(framed(body))
        assert not codec.next_is_cancel
    assert codec.buffered_bytes


def test_every_error_code_is_documented():
    page = (DOCS / "PROTOCOL.md").read_text()
    for code, kind in ERROR_KINDS.items():
        assert f"| `{code}` | {'yes' if kind.retryable else 'no'} |" in page


def test_each_kind_has_a_row():
    assert ERRORS.keys() == ERROR_KINDS.keys()


def test_an_id_twice_is_the_clients_fault():
    assert status_of(DuplicateIdError()) == 400
    assert grpc_code_of(DuplicateIdError()) == "INVALID_ARGUMENT"


def test_a_name_that_is_too_long_for_a_path_is_the_clients_fault():
    assert grpc_code_of(HttpError(status=414)) == "INVALID_ARGUMENT"


def test_an_http_errors_status_and_fields_are_its_own():
    error = HttpError(status=405, fields={"Allow": "GET"})
    assert (status_of(error), header_fields_of(error)) == (405, {"Allow": "GET"})
    assert header_fields_of(UnauthorizedError()) == {"WWW-Authenticate": "Bearer"}


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 60)))
def test_frames_do_not_depend_on_segments(bodies, sizes):
    stream = b"".join(map(framed, bodies))
    reader, taken = FrameReader(50), []
    for size in [*sizes, max(1, len(stream))]:
        reader.feed(stream[:size])
        stream = stream[size:]
        taken += iter(reader.next_frame, None)
    assert (taken, bytes(reader.buffer)) == (bodies, b"")


@pytest.mark.parametrize("length", [11, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_on_its_prefix(length):
    reader = FrameReader(max_frame_bytes=10)
    reader.feed(framed(b"0123456789") + PREFIX.pack(length))
    assert reader.next_frame() == b"0123456789"
    with pytest.raises(FrameTooLargeError):
        reader.next_frame()


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1000),
)
def test_any_text_is_decoded_unchanged(question, text):
    body = json.dumps({"question": question, "text": text}).encode()
    if question.isspace() or text.isspace():
        with pytest.raises(RejectedError):
            parse_request(body)
    else:
        request = question_of(body)
        assert (request.question, request.text) == (question, text)


def test_a_questions_length_is_bounded_in_characters():
    body = '{"id": 7, "question": "%s", "text": "t"}'
    assert question_of((body % ("é" * MAX_QUESTION_CHARS)).encode()).text == "t"
    with pytest.raises(RejectedError, match=str(MAX_QUESTION_CHARS + 1)) as caught:
        parse_request((body % ("é" * (MAX_QUESTION_CHARS + 1))).encode())
    assert (caught.value.error.code, caught.value.id_json) == ("invalid_request", b"7")


@pytest.mark.parametrize(
    "value",
    ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "1" * 100_000, "-" + "9" * 100_000 + ".5"],
    ids=["deep array", "deep object", "long integer", "long fraction"],
)
@pytest.mark.parametrize("field", ["extra", "id", "timeout_ms", "top_k", "type"])
def test_hostile_json_is_an_error_or_ignored(field, value):
    body = f'{{"question":"q?","text":"t","{field}":{value}}}'.encode()
    try:
        request = question_of(body)
    except RejectedError as rejected:
        assert rejected.error.code in {"invalid_frame", "invalid_request"}
    else:
        assert field == "extra"
        assert request.question == "q?"


def test_a_request_keeps_its_text_but_not_its_body():
    body = json.dumps({"id": 1, "question": "q?", "text": "t" * 500_000}).encode()
    tracemalloc.start()
    request = question_of(body)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(request.text) <= held_bytes < 1.1 * len(request.text)
