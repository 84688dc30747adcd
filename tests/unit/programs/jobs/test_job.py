"""A job's body, what is asked of the server, and what is answered."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.client import QaServerError, ServerUnreachableError
from qa_service.programs.jobs.job import (
    as_server_error,
    encode_answer,
    encode_error,
    encode_request,
    is_error,
    parse_request,
    peek_id,
    read_reply,
)

FULL = {
    "id": "a",
    "type": "question",
    "question": "q",
    "text": "t",
    "top_k": 3,
    "timeout_ms": 5,
    "priority": 9,
    "model": "m",
    "version": 2,
    "unknown": [1],
}


def test_a_job_asks_under_the_connections_id_with_the_lowest_priority():
    asked = json.loads(encode_request(parse_request(json.dumps(FULL).encode()), 17, 5))
    expected = {key: FULL[key] for key in ("question", "text", "top_k", "model", "version")}
    assert asked == expected | {"id": 17, "timeout_ms": 5.0}


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
    lambda value: json.dumps({"question": "q", "text": "t", "id": value, "top_k": value}).encode()
))  # fmt: skip
def test_any_body_is_asked_as_json_or_refused(body):
    try:
        request = parse_request(body)
    except QaServerError as error:
        assert not error.retryable
    else:
        assert json.loads(encode_request(request, 1, None))["id"] == 1
    assert isinstance(peek_id(body), str | int | float | None)


@pytest.mark.parametrize("kind", ["health", "stats", 5, None])
def test_a_job_of_another_type_is_an_invalid_request(kind):
    with pytest.raises(QaServerError, match="`type` must be question") as caught:
        parse_request(json.dumps({"question": "q", "text": "t", "type": kind}).encode())
    assert (caught.value.code, caught.value.retryable) == ("invalid_request", False)


@pytest.mark.parametrize("depth", [600, 50_000])
def test_json_that_is_nested_deeply_fails_its_job_alone(depth):
    body = b'{"question":"q","text":"t","id":' + b"[" * depth + b"]" * depth + b"}"
    try:
        parse_request(body)
    except QaServerError as error:
        assert error.code == "invalid_frame"
    peek_id(body)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"id":1,"answer":"a"}', False),
        (b'{"id":1,"answer":"\\"error\\""}', False),
        (b'{"id":"error","answer":"a"}', False),
        (b'{"id":1,"error":{"code":"c"}}', True),
        (b'no JSON "error"', False),
    ],
)
def test_error_answers_are_distinguished_from_answers(answer, expected):
    assert is_error(answer) == expected


def test_an_answer_has_the_jobs_id_and_all_fields_of_the_servers_reply():
    body = b'{"id":17,"answer":"x","score":0.50,"new_field":{"a":1e3}}'
    answer = b'{"id":"a","answer":"x","score":0.50,"new_field":{"a":1e3}}'
    reply = read_reply(body)
    assert isinstance(reply, dict)
    assert encode_answer("a", reply) == answer


def test_an_error_of_the_servers_is_read_and_written_as_the_wire_has_it():
    body = (
        b'{"id":"a","error":{"code":"queue_full","message":"m","retryable":true,'
        b'"retry_after_ms":5}}'
    )
    reply = read_reply(body)
    assert isinstance(reply, QaServerError)
    assert encode_error("a", reply) == body


@pytest.mark.parametrize("error", [b"5", b"{}", b'{"code":1,"message":"m","retryable":true}'])
def test_a_malformed_error_is_refused(error):
    with pytest.raises(msgspec.DecodeError):
        read_reply(b'{"error":%s}' % error)


def test_the_id_is_found_in_a_malformed_request():
    assert peek_id(b'{"id": "a", "question": 5}') == "a"
    assert peek_id(b'{"id": {}}') is None


def test_a_client_error_can_be_written_as_an_answer():
    error = as_server_error(ServerUnreachableError("nobody is there"))
    seen = (error.code, error.message, error.retryable)
    assert seen == ("server_unreachable", "nobody is there", True)
