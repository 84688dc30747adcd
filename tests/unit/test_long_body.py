"""What a long body may look like, held against a scanner that takes it byte by byte."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qa_service.errors import InvalidFrameError
from qa_service.long_body import ESCAPE_BYTES, is_mostly_one_string
from qa_service.protocol import NULL_ID, RejectedError, Request, RequestLimits, parse_request

LIMITS = RequestLimits(max_question_chars=100, max_text_chars=100_000)
MARGIN = LIMITS.margin_bytes
STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*:)?')

awkward = st.text(st.sampled_from('ab"\\/[]{}:,\n\té漢\U0001f600'), max_size=40)
values = st.one_of(awkward, st.integers(), st.lists(st.integers() | awkward, max_size=4))
objects = st.dictionaries(awkward, values, max_size=4)


def strings_of_fields(body: bytes) -> list[tuple[int, int]]:
    """Where the strings begin and end that are fields of a JSON object, without their quotes."""
    spans, depth, position = [], 0, 0
    for match in STRING.finditer(body):
        between = body[position : match.start()]
        depth += sum(map(between.count, b"[{")) - sum(map(between.count, b"]}"))
        if depth == 1 and not match[2]:
            spans.append(match.span(1))
        position = match.end()
    return spans


def dumped(fields: dict, is_ascii: bool) -> bytes:
    return json.dumps(fields, ensure_ascii=is_ascii).encode()


@given(objects, st.booleans(), st.integers(0, 60))
def test_it_is_what_a_scanner_finds(fields, is_ascii, margin):
    body = dumped(fields, is_ascii)
    assume(len(body) > 2 * margin)
    spans, end, slack = strings_of_fields(body), len(body) - margin, 2 * ESCAPE_BYTES
    if any(start <= margin - slack and stop >= end for start, stop in spans):
        assert is_mostly_one_string(body, margin)
    if is_mostly_one_string(body, margin):
        assert any(start <= margin and stop >= end - slack for start, stop in spans)


@given(st.binary(max_size=60) | awkward.map(str.encode), st.integers(0, 40))
def test_no_bytes_do_anything_but_pass_or_not(body, margin):
    assert is_mostly_one_string(body, margin) in {True, False}


@given(objects, st.booleans())
def test_a_short_body_may_be_anything(fields, is_ascii):
    body = dumped(fields, is_ascii)
    assert is_mostly_one_string(body, (len(body) + 1) // 2)


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


LONG = "a" * 2 * MARGIN
TOO_MUCH = {
    "a list": {"more": [0] * MARGIN},
    "a list before the text": {"more": [0] * MARGIN, "text": LONG},
    "a list after the text": {"text": LONG, "more": [0] * MARGIN},
    "fields": {str(i): i for i in range(MARGIN)},
    "another string within the text's length": {"text": LONG, "more": LONG},
    "a string that is not a field": {"more": [LONG]},
    "a name": {LONG: 1},
    "digits": {"id": 10 ** (4 * MARGIN // 10)},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_is_not_mostly_one_string_is_refused_if_it_is_long(name):
    body = dumped({"question": "Who?", "text": "Ada.", **TOO_MUCH[name]}, True)
    body = body.replace(b'"id": 1', b'"id": 1' + b"0" * 2 * MARGIN)
    with pytest.raises(RejectedError, match=f"over {2 * MARGIN} bytes") as caught:
        parse_request(body, LIMITS)
    assert isinstance(caught.value.error, InvalidFrameError)
    assert caught.value.id_json == NULL_ID


def test_a_long_body_has_its_own_faults_told():
    body = dumped({"id": 7, "question": "Who?", "text": LONG, "top_k": 99}, True)
    with pytest.raises(RejectedError, match="top_k") as caught:
        parse_request(body, LIMITS)
    assert caught.value.id_json == b"7"
    with pytest.raises(RejectedError, match="truncated"):
        parse_request(body[:-20], LIMITS)
