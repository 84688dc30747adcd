"""What a long body may look like, held against a scanner that takes it byte by byte."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qa_service.errors import InvalidFrameError
from qa_service.long_body import ESCAPE_BYTES, without_middle
from qa_service.protocol import NULL_ID, Query, RejectedError, Request, RequestLimits, parse_request

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
        assert without_middle(body, margin)
    if without_middle(body, margin):
        assert any(start <= margin and stop >= end - slack for start, stop in spans)


@given(objects, st.booleans(), st.integers(0, 60))
def test_without_its_middle_a_body_is_what_it_was_but_for_one_string(fields, is_ascii, margin):
    body = dumped(fields, is_ascii)
    short = without_middle(body, margin)
    assume(short is not None)
    cut = json.loads(short)
    (name,) = [name for name in fields if cut[name] != fields[name]] or [None]
    assert {**cut, name: 0} == {**fields, name: 0}
    if name is not None:
        size, left = len(fields[name]), len(cut[name])
        assert any(
            cut[name] == fields[name][:i] + fields[name][i + size - left :] for i in range(left + 1)
        )
        assert len(short) <= 2 * (margin + 2 * ESCAPE_BYTES)


@given(st.binary(max_size=60) | awkward.map(str.encode), st.integers(0, 40))
def test_no_bytes_do_anything_but_pass_or_not(body, margin):
    short = without_middle(body, margin)
    assert short is None or len(short) <= len(body)


@given(objects, st.booleans())
def test_a_short_body_may_be_anything(fields, is_ascii):
    body = dumped(fields, is_ascii)
    assert without_middle(body, (len(body) + 1) // 2) is body


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
def test_a_string_that_is_short_without_its_middle_is_still_a_long_one(field, word):
    """As the id is, or the type, where it begins just before the middle and ends just after."""
    head, tail = word[: len(word) // 2], word[len(word) // 2 :]
    types = "" if field == "type" else f'"type":"{word}",'
    front, end = f'{{"question":"Who?","text":"Ada.",{types}"-":"', '","+":"'
    front += "-" * (MARGIN - len(front) - len(f'","{field}":"{head}')) + f'","{field}":"{head}'
    end = f"{tail}{end}" + "-" * (MARGIN - len(f'{tail}{end}"}}')) + '"}'
    body = f"{front}{LONG}{end}".encode()
    assert json.loads(without_middle(body, MARGIN))[field] == word
    with pytest.raises(RejectedError, match=r"`id` is longer|`type` must be") as caught:
        parse_request(body, LIMITS)
    assert len(caught.value.error.message) < 100


def test_a_long_body_that_ends_early_is_no_json():
    body = dumped({"id": 7, "question": "Who?", "text": LONG}, True)
    with pytest.raises(RejectedError, match="truncated"):
        parse_request(body[:-20], LIMITS)


def test_a_long_query_is_a_query():
    query = parse_request(dumped({"type": "health", "id": 7, "more": LONG}, True), LIMITS)
    assert isinstance(query, Query)
    assert query.id_json == b"7"
