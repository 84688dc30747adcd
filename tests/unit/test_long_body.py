"""What a long body may look like, held against a scanner that takes it byte by byte."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qa_service.errors import InvalidFrameError
from qa_service.long_body import ESCAPE_BYTES, MIN_MIDDLE_BYTES, cut
from qa_service.protocol import (
    MAX_ID_BYTES,
    MAX_TYPE_BYTES,
    NULL_ID,
    Query,
    Question,
    RejectedError,
    Request,
    RequestLimits,
    parse_request,
)

LIMITS = RequestLimits(max_question_chars=100, max_text_chars=100_000)
MARGIN = LIMITS.margin_bytes
STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"')

awkward = st.text(st.sampled_from('ab"\\/[]{}:,\n\té漢\U0001f600'), max_size=40)
values = st.one_of(awkward, st.integers(), st.lists(st.integers() | awkward, max_size=4))
objects = st.dictionaries(awkward, values, max_size=4)


def dumped(fields: dict, is_ascii: bool) -> bytes:
    return json.dumps(fields, ensure_ascii=is_ascii).encode()


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


@given(objects, st.booleans(), st.integers(0, 60))
def test_both_parts_are_json_just_if_the_cuts_are_in_one_string(fields, is_ascii, margin):
    body = dumped(fields, is_ascii)
    assume(len(body) > 2 * margin)
    parts, end, slack = cut(body, margin), len(body) - margin, 2 * ESCAPE_BYTES
    strings = [match.span(1) for match in STRING.finditer(body)]
    are_json = is_json(parts.rest) and is_json(parts.middle)
    if any(start <= margin - slack and stop >= end for start, stop in strings):
        assert are_json
    if are_json:
        assert any(start <= margin and stop >= end - slack for start, stop in strings)


@given(objects, st.booleans(), st.integers(0, 60))
def test_the_middle_put_back_is_the_body_again(fields, is_ascii, margin):
    body = dumped(fields, is_ascii)
    assume(len(body) > 2 * margin)
    parts = cut(body, margin)
    assert parts.rest.replace(parts.marker, parts.middle[1:-1]) == body
    if is_json(parts.rest) and is_json(parts.middle):
        rest = json.dumps(json.loads(parts.rest), ensure_ascii=False)
        middle = json.dumps(json.loads(parts.middle), ensure_ascii=False)[1:-1]
        assert json.loads(rest.replace(parts.marker.decode(), middle)) == fields


@given(st.binary(max_size=60) | awkward.map(str.encode), st.integers(0, 40))
def test_any_bytes_are_cut_and_nothing_is_lost(body, margin):
    assume(len(body) > 2 * margin)
    parts = cut(body, margin)
    assert parts.rest.replace(parts.marker, parts.middle[1:-1]) == body


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize(
    "unit",
    ["It was Ada. ", "Это была Ада. ", "那是阿达。", "\U0001f600", '<a href="x">', "\\", '"', "\n",
     "[", '{"a": [1, "\\""]}, ', "é", "\x01"],
)  # fmt: skip
def test_any_long_text_comes_through_wherever_it_stands(unit, is_ascii):
    text = "Ada:" + (unit * 50_000)[:50_000]
    question = {"question": 'Who, "at last"?' * 6, "id": 7, "top_k": 2, "more": [1, {"a": "b"}]}
    for shift in range(13):
        for fields in ({**question, "text": text}, {"text": text, **question}):
            request = parse_request(dumped({"-": "-" * shift, **fields}, is_ascii), LIMITS)
            assert isinstance(request, Request)
            assert (request.text, request.id_json) == (text, b"7")


LONG = "a" * 3 * MARGIN
TOO_MUCH = {
    "a list": {"more": [0] * MARGIN},
    "a list before the text": {"more": [0] * MARGIN, "text": LONG},
    "a list after the text": {"text": LONG, "more": [0] * MARGIN},
    "fields": {str(i): i for i in range(MARGIN)},
    "another string within the text's length": {"text": LONG, "more": LONG},
    "digits": {"id": 10 ** (4 * MARGIN // 10)},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_is_not_mostly_one_string_is_refused_if_it_is_long(name):
    body = dumped({"question": "Who?", "text": "Ada.", **TOO_MUCH[name]}, True)
    body = body.replace(b'"id": 1', b'"id": 1' + b"0" * 2 * MARGIN)
    with pytest.raises(RejectedError, match=f"over {LIMITS.max_short_body_bytes} bytes") as caught:
        parse_request(body, LIMITS)
    assert isinstance(caught.value.error, InvalidFrameError)
    assert caught.value.id_json == NULL_ID


@pytest.mark.parametrize(
    ("fields", "id_json", "words"),
    [({"top_k": 99}, b"7", "top_k"), ({"type": "other"}, b"7", "`type` must be"),
     ({"id": []}, b"null", "`id` must be"), ({"question": ""}, b"7", "`question` is empty"),
     ({"text": 2 * LONG}, b"7", "characters; at most 10000")],
)  # fmt: skip
def test_a_long_body_has_its_own_faults_told(fields, id_json, words):
    limits = RequestLimits(LIMITS.max_question_chars, 10_000)
    body = dumped({"id": 7, "question": "Who?", "text": LONG, **fields}, True)
    with pytest.raises(RejectedError, match=words) as caught:
        parse_request(body, limits)
    assert caught.value.id_json == id_json


@pytest.mark.parametrize("field", ["text", "more", "id", "type"])
@pytest.mark.parametrize("wrong", [b"\xff", b"\xed\xa0\x80", b"\n", b"\\x", b"\\ud800"])
@pytest.mark.parametrize("query", [b"question", b"health"])
@pytest.mark.parametrize("is_quoted", [True, False])
def test_what_is_wrong_in_the_middle_is_found(field, wrong, query, is_quoted):
    body = dumped({"question": "Who?", "text": "Ada.", "type": query.decode(), field: LONG}, True)
    for shift in range(0, len(LONG), 997):
        place = body.index(b"aaa") + shift
        faulty = body[:place] + b'\\"' * is_quoted + wrong + body[place:]
        with pytest.raises(RejectedError):
            parse_request(faulty, LIMITS)


@pytest.mark.parametrize("word", ["question", "health"])
@pytest.mark.parametrize("field", ["id", "type"])
@pytest.mark.parametrize("also", ["", '"top_k":99,'])
def test_a_string_that_is_short_without_its_middle_is_still_a_long_one(field, word, also):
    """As the id is, or the type, where it begins just before the middle and ends just after."""
    head, tail = word[: len(word) // 2], word[len(word) // 2 :]
    types = also if field == "type" else f'{also}"type":"{word}",'
    front, end = f'{{"question":"Who?","text":"Ada.",{types}"-":"', '","+":"'
    front += "-" * (MARGIN - len(front) - len(f'","{field}":"{head}')) + f'","{field}":"{head}'
    end = f"{tail}{end}" + "-" * (MARGIN - len(f'{tail}{end}"}}')) + '"}'
    body = f"{front}{LONG}{end}".encode()
    parts = cut(body, MARGIN)
    assert json.loads(parts.rest.replace(parts.marker, b""))[field] == word
    with pytest.raises(RejectedError, match=r"`id` is longer|`type` must be") as caught:
        parse_request(body, LIMITS)
    assert caught.value.id_json == NULL_ID
    assert len(caught.value.error.message) < 100


def test_no_id_is_longer_than_the_marker_and_the_middle():
    parts = cut(b"-" * LIMITS.max_short_body_bytes, MARGIN)
    assert len(parts.marker) > MAX_ID_BYTES
    assert len(parts.middle) - 2 * ESCAPE_BYTES > MAX_ID_BYTES > MAX_TYPE_BYTES


def test_a_long_body_that_ends_early_is_no_json():
    body = dumped({"id": 7, "question": "Who?", "text": LONG}, True)
    with pytest.raises(RejectedError, match="must be JSON"):
        parse_request(body[:-20], LIMITS)


@pytest.mark.parametrize("fields", [{"more": [LONG]}, {LONG: 1}, {"more": {"a": {"b": LONG}}}])
def test_the_one_string_may_be_anywhere(fields):
    request = parse_request(dumped({"question": "Who?", "text": "Ada.", **fields}, True), LIMITS)
    assert isinstance(request, Request)
    assert request.as_question() == Question("Who?", "Ada.")


def test_where_the_fields_meet_does_not_matter():
    """A body just long enough to be cut, with any part of it in the middle."""
    half = MARGIN + MIN_MIDDLE_BYTES // 2
    front = b'"id":7,"question":"Who?","top_k":2,"priority":3,"timeout_ms":500,"text":"'
    front += b'Ada \\"wrote\\" it \\ud83d\\ude00.","type":"question","-":"'
    for shift in range(half - len(front) - 100, half + 100):
        start = b'{"+":"%b",%b' % (b"+" * shift, front)
        body = start + b"-" * (LIMITS.max_short_body_bytes - len(start)) + b'"}'
        assert len(body) > LIMITS.max_short_body_bytes
        try:
            request = parse_request(body, LIMITS)
        except RejectedError as rejected:
            assert "within one string" in str(rejected)
        else:
            assert request == parse_request(b"{" + front + b'"}', LIMITS)


def test_a_long_question_is_put_back():
    limits = RequestLimits(max_question_chars=1, max_text_chars=1)
    with pytest.raises(RejectedError, match=f"`question` has {len(LONG)} characters"):
        parse_request(dumped({"question": LONG, "text": "Ada."}, True), limits)


def test_a_long_query_is_a_query():
    query = parse_request(dumped({"type": "health", "id": 7, "more": LONG}, True), LIMITS)
    assert isinstance(query, Query)
    assert query.id_json == b"7"
