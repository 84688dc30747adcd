"""HTTP/1.1, byte by byte: what is a request, what is refused, and where the next one begins."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.hostile_http import MALFORMED, SMUGGLED, TOKENS, chunked, head
from harness.mutate import Mutator
from qa_service.errors import HttpError
from qa_service.wire.http.http1 import FEED_BYTES, MAX_SLICES, HttpReader
from qa_service.wire.http.http_message import HttpHead, head_of

MAX_BODY_BYTES = 100_000
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
"""As Java's HttpClient and `curl --http2` offer it."""

GOOD: dict[str, tuple[bytes, dict[str, object]]] = {
    "GET": (head(line=b"GET / HTTP/1.1"), {"method": "GET", "path": "/", "body": b""}),
    "a query": (head(line=b"GET /a?b=c?d HTTP/1.1"), {"path": "/a"}),
    "a body": (head(b"Content-Length: 3\r\n") + b"abc", {"method": "POST", "body": b"abc"}),
    "a body of nothing": (head(b"Content-Length: 0\r\n"), {"body": b""}),
    "POST without a length": (head(), {"method": "POST", "body": b""}),
    "a blank line as a body": (head(b"Content-Length: 4\r\n") + b"\r\n\r\n", {"body": b"\r\n\r\n"}),
    "space around a length": (head(b"Content-Length: \t3 \t\r\n") + b"abc", {"body": b"abc"}),
    "chunks": (chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), {"body": b"abcde"}),
    "no chunks": (chunked(b"0\r\n\r\n"), {"body": b""}),
    "chunks of blank lines": (
        chunked(b"8\r\n" + b"\r\n" * 5 + b"0\r\n\r\n"),
        {"body": b"\r\n" * 4},
    ),
    "zeros before a chunk size": (chunked(b"0003\r\nabc\r\n00\r\n\r\n"), {"body": b"abc"}),
    "an extension": (chunked(b"3;x=y\r\nabc\r\n0\r\n\r\n"), {"body": b"abc"}),
    "a trailer": (
        chunked(b"3\r\nabc\r\n0\r\nAuthorization: x\r\n\r\n"),
        {"body": b"abc", "fields": {"host": "localhost", "transfer-encoding": "chunked"}},
    ),
    "many small chunks": (chunked(b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n"), {"body": b"a" * 20_000}),
    "small chunks with long sizes": (
        chunked(b"00000001\r\na\r\n" * 5000 + b"0\r\n\r\n"),
        {"body": b"a" * 5000},
    ),
    "the longest body": (chunked(b"186A0\r\n" + b"a" * 100_000 + b"\r\n0\r\n\r\n"), {}),
    "the longest target": (head(line=b"GET /" + b"a" * 8191 + b" HTTP/1.1"), {}),
    "the longest head": (head(b"X: " + b"a" * (16384 - 43) + b"\r\n"), {}),
    "as many fields as may be": (head(b"X: a\r\n" * 63), {}),
    "a field of bytes": (head(b"X: \xe9\r\n"), {"fields": {"host": "localhost", "x": "\xe9"}}),
    "a field twice": (head(b"X: a\r\nx: b\r\n"), {"fields": {"host": "localhost", "x": "a, b"}}),
    "a line before the request": (b"\r\n\r\n" + head(), {"method": "POST"}),
    "a whole URL": (
        head(line=b"GET http://Other:80/a?b HTTP/1.1"),
        {"path": "/a", "host": "other:80"},
    ),
    "a URL without a path": (
        head(line=b"GET http://other?b HTTP/1.1"),
        {"path": "/"},
    ),
    "OPTIONS *": (head(line=b"OPTIONS * HTTP/1.1"), {"method": "OPTIONS", "path": "*"}),
    "HTTP/1.0 that stays": (
        head(b"Connection: keep-alive\r\n", b"GET / HTTP/1.0"),
        {"is_http_1_0": True},
    ),
    "an upgrade": (
        head(b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"GET / HTTP/1.1"),
        {"body": b""},
    ),
    "an upgrade with a body": (head(H2C + b"Content-Length: 3\r\n") + b"abc", {"body": b"abc"}),
    "an upgrade with chunks": (
        head(H2C + b"Transfer-Encoding: chunked\r\n") + b"3\r\nabc\r\n0\r\n\r\n",
        {"body": b"abc"},
    ),
    "an IPv6 Host": (head(host=b"Host: [::1]:9999\r\n"), {"host": "[::1]:9999"}),
}  # fmt: skip
"""By name: a request after which the connection stays open, and some of what is read."""

LAST: dict[str, bytes] = {
    "close": head(b"Connection: close\r\n"),
    "close among others": head(b"Connection: Keep-Alive, Close\r\n"),
    "HTTP/1.0": head(line=b"GET / HTTP/1.0"),
    "HTTP/1.0 without a Host": head(line=b"GET / HTTP/1.0", host=b""),
}  # fmt: skip


def events(pieces: list[bytes]) -> list[Any]:
    """Heads, bodies, and the status that ends it all, of a stream that comes in these pieces."""
    reader, taken = HttpReader(MAX_BODY_BYTES), list[Any]()
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next_event()) is not None or reader.has_more:
                if event is not None:
                    taken.append(event)
    except HttpError as error:
        assert error.message
        taken.append(error.status)
        assert reader.next_event() is None
    if reader.is_closed:
        reader.feed(SMUGGLED)
        assert (reader.next_event(), reader.buffered_bytes) == (None, 0)
    return taken


def split(data: bytes, seed: int) -> list[bytes]:
    chance, pieces = random.Random(seed), []
    while data:
        size = chance.choice((1, 2, 3, 7, 100, 5000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def by_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def assert_any_split_gives(data: bytes, expected: list[object]) -> None:
    assert events([data]) == expected
    if len(data) < 20_000:
        assert events(by_byte(data)) == expected
    for seed in range(3):
        assert events(split(data, seed)) == expected


@pytest.mark.parametrize("name", GOOD)
def test_a_request_is_read_and_so_is_the_next(name):
    data, expected = GOOD[name]
    taken = events([data + SMUGGLED])
    read, body, following, nothing = taken
    seen = {"body": body, **{name: getattr(read, name) for name in HttpHead.__struct_fields__}}
    assert {name: seen[name] for name in expected} == expected
    assert not read.is_last
    assert (following.path, nothing) == ("/smuggled", b"")
    assert_any_split_gives(data + SMUGGLED, taken)


def test_a_blank_line_between_requests_is_skipped():
    _, _, following, _ = events([head() + b"\r\n" + SMUGGLED])
    assert following.path == "/smuggled"


@pytest.mark.parametrize("name", LAST)
def test_nothing_is_read_after_the_last_request(name):
    taken = events([LAST[name] + SMUGGLED])
    assert [taken[0].is_last, len(taken)] == [True, 2]
    assert_any_split_gives(LAST[name] + SMUGGLED, taken)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_once(name):
    data, status = MALFORMED[name]
    taken = events([data + SMUGGLED])
    assert [event for event in taken if isinstance(event, int)] == [status]
    assert taken[-1] == status
    assert sum(isinstance(event, HttpHead) for event in taken) <= (
        "chunk" in name or len(taken) == 2
    )
    assert_any_split_gives(data + SMUGGLED, taken)


def test_a_body_over_the_limit_is_refused_before_it_has_come():
    assert events([head(b"Content-Length: 100001\r\n")]) == [413]


def test_a_head_without_end_is_refused_at_its_limit():
    data = head(b"X: " + b"a" * 17_000)
    assert events([data[:16_383]]) == []
    assert events([data[:16_384]]) == [431]


def test_one_call_parses_a_bounded_part_of_a_chunked_body():
    reader = HttpReader(MAX_BODY_BYTES)
    reader.feed(chunked(b"c350\r\n" + b"\r\n\r\n" * 12_500 + b"\r\n0\r\n\r\n"))
    assert isinstance(reader.next_event(), HttpHead)
    calls = 1
    while (body := reader.next_event()) is None:
        assert reader.has_more
        calls += 1
    assert isinstance(body, bytes)
    assert (len(body), calls) == (50_000, 12_501 // MAX_SLICES + 1)
    reader.feed(chunked(b"c350\r\n" + b"a" * 50_000 + b"\r\n0\r\n\r\n"))
    assert isinstance(reader.next_event(), HttpHead)
    assert [reader.next_event() for _ in range(50_000 // FEED_BYTES)] == [None] * 3
    assert reader.next_event() == b"a" * 50_000


def test_buffered_bytes_counts_unparsed_input():
    reader = HttpReader(MAX_BODY_BYTES)
    reader.feed(head(b"Content-Length: 5\r\n") + b"abc")
    reader.next_event()
    assert (reader.next_event(), reader.buffered_bytes) == (None, 3)
    reader.feed(b"de" + b"GET")
    assert (reader.next_event(), reader.buffered_bytes) == (b"abcde", 3)


@given(st.lists(st.sampled_from([*GOOD, *LAST, *MALFORMED]), max_size=4), st.integers(0, 99))
def test_requests_do_not_depend_on_segments(names, seed):
    known = {name: case[0] for name, case in {**GOOD, **MALFORMED}.items()} | LAST
    data = b"".join(known[name] for name in names)
    assert_any_split_gives(data, events([data]))


@given(st.sampled_from(sorted({**GOOD, **MALFORMED})), st.integers(0, 2**32))
def test_mutated_requests_do_not_depend_on_segments(name, seed):
    bodies = [{**GOOD, **MALFORMED}[name][0][:3000]]
    data = Mutator(seed, bodies=bodies, tokens=TOKENS).edited(1, 3) + SMUGGLED
    assert_any_split_gives(data, events([data]))


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_or_refused(data):
    assert_any_split_gives(data, events([data]))


def test_a_head_is_remembered_if_it_holds_no_token():
    usual, secret = head(b""), head(b"authORIZATION: Bearer secret\r\n")
    assert head_of(usual) is head_of(usual)
    assert head_of(secret) is not head_of(secret)
