"""HTTP requests that could be read in two ways or have no end, and the status that refuses each.

Shared by the tests of the parser and of a live server.
"""

from __future__ import annotations

HOST = b"Host: localhost\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""Follows every hostile request; it must never be answered."""


def head(fields: bytes = b"", line: bytes = b"POST /qa HTTP/1.1", host: bytes = HOST) -> bytes:
    """A request's head with these fields, each with its line's end."""
    return line + b"\r\n" + host + fields + b"\r\n"


def with_length(value: bytes) -> bytes:
    return head(b"Content-Length: " + value + b"\r\n") + b"12345"


def with_coding(value: bytes) -> bytes:
    return head(b"Transfer-Encoding: " + value + b"\r\n") + b"0\r\n\r\n"


def chunked(body: bytes) -> bytes:
    """A request whose chunked body is this."""
    return head(b"Transfer-Encoding: chunked\r\n") + body


CODING = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 5\r\n"

MALFORMED: dict[str, tuple[bytes, int]] = {
    "a length and a coding": (head(LENGTH + CODING) + b"0\r\n\r\n", 400),
    "a coding and a length": (head(CODING + LENGTH) + b"0\r\n\r\n", 400),
    "two equal lengths": (head(LENGTH * 2) + b"12345", 400),
    "two lengths": (head(LENGTH + b"Content-Length: 6\r\n") + b"12345", 400),
    **{
        f"the length {value.decode()!r}": (with_length(value), 400)
        for value in (b"+5", b"-1", b"0x5", b"5,5", b"5, 5", b"05", b"", b"5 5", b"5;", b"1e1")
    },
    "a length of 2^63": (with_length(b"9223372036854775808"), 413),
    "a length of 2^64": (with_length(b"18446744073709551616"), 400),
    **{
        f"the coding {value!r}": (with_coding(value), 400)
        for value in (b"xchunked", b"identity", b"chunked, chunked", b"chunked, gzip", b"",
                      b"\x0bchunked", b"chunked\x0b", b"chunked;a=b")
    },
    "the coding gzip, chunked": (with_coding(b"gzip, chunked"), 501),
    "two codings": (head(CODING * 2) + b"0\r\n\r\n", 400),
    "chunked and identity": (head(CODING + b"Transfer-Encoding: identity\r\n") + b"0\r\n\r\n", 400),
    "a coding in HTTP/1.0": (head(CODING, b"POST /qa HTTP/1.0") + b"0\r\n\r\n", 400),
    "a space before the colon": (head(b"Content-Length : 5\r\n") + b"12345", 400),
    "a folded line": (head(b"X: a\r\n b\r\n"), 400),
    "a folded first field": (head(host=b" Host: localhost\r\n"), 400),
    "a bare CR": (head(b"X: a\rb\r\n"), 400),
    "a bare LF": (head(b"X: a\nY: b\r\n"), 400),
    "bare LFs from the start": (b"POST /qa HTTP/1.1\nHost: localhost\n\n", 400),
    "a NUL in a value": (head(b"X: a\0b\r\n"), 400),
    "a NUL in a name": (head(b"X\0: a\r\n"), 400),
    "a control character": (head(b"X: a\x01b\r\n"), 400),
    "a name of nothing": (head(b": a\r\n"), 400),
    "no colon": (head(b"X\r\n"), 400),
    "a name that is no ASCII": (head(b"X\xe9: a\r\n"), 400),
    "no Host": (head(host=b""), 400),
    "a whole URL and no Host": (head(line=b"GET http://localhost/ HTTP/1.1", host=b""), 400),
    "an empty Host": (head(host=b"Host:\r\n"), 400),
    "two Hosts": (head(HOST), 400),
    "a Host with a path": (head(host=b"Host: localhost/x\r\n"), 400),
    "a Host with a user": (head(host=b"Host: me@localhost\r\n"), 400),
    "a Host with a space": (head(host=b"Host: local host\r\n"), 400),
    "a Host with a bad port": (head(host=b"Host: localhost:99x\r\n"), 400),
    "* with GET": (head(line=b"GET * HTTP/1.1"), 400),
    "CONNECT": (head(line=b"CONNECT localhost:80 HTTP/1.1"), 400),
    "an authority as a target": (head(line=b"GET localhost:80 HTTP/1.1"), 400),
    "a fragment in a target": (head(line=b"GET /#x HTTP/1.1"), 400),
    "a user in a target": (head(line=b"GET http://me@localhost/ HTTP/1.1"), 400),
    "a space in a target": (head(line=b"GET /a b HTTP/1.1"), 400),
    "a control character in a target": (head(line=b"GET /\x01 HTTP/1.1"), 400),
    "bytes in a target": (head(line=b"GET /\xe9 HTTP/1.1"), 400),
    "an unknown method": (head(line=b"FETCH / HTTP/1.1"), 400),
    "a method in lower case": (head(line=b"get / HTTP/1.1"), 400),
    "a space after the version": (head(line=b"GET / HTTP/1.1 "), 400),
    "a space before the method": (head(line=b" GET / HTTP/1.1"), 400),
    "HTTP/0.9": (b"GET /\r\n", 400),
    "HTTP/0.9 by name": (head(line=b"GET / HTTP/0.9"), 505),
    "HTTP/1.2": (head(line=b"GET / HTTP/1.2"), 505),
    "HTTP/2.0": (head(line=b"GET / HTTP/2.0"), 505),
    "HTTP/01.1": (head(line=b"GET / HTTP/01.1"), 505),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "RTSP": (head(line=b"GET / RTSP/1.0"), 400),
    "ICE": (head(line=b"SOURCE / ICE/1.0"), 400),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", 400),
    "a long target": (head(line=b"GET /" + b"a" * 8192 + b" HTTP/1.1"), 414),
    "a target without end": (b"GET /" + b"a" * 9000, 414),
    "a long head": (head(b"X: " + b"a" * 16384 + b"\r\n"), 431),
    "many fields": (head(b"X: a\r\n" * 64), 431),
    "a long body": (with_length(b"100001"), 413),
    **{
        f"the chunk size {size!r}": (chunked(size + b"\r\nabc\r\n0\r\n\r\n"), 400)
        for size in (b"+3", b"-3", b"0x3", b"3 ", b" 3", b"g", b"", b"fffffffffffffffff")
    },
    "a chunk size before a bare LF": (chunked(b"3\nabc\r\n0\r\n\r\n"), 400),
    "a chunk that is longer than said": (chunked(b"3\r\nabcd\r\n0\r\n\r\n"), 400),
    "a chunk without its end": (chunked(b"3\r\nabc0\r\n\r\n"), 400),
    "a chunk that ends in a bare LF": (chunked(b"3\r\nabc\n0\r\n\r\n"), 400),
    "chunks that end in a bare LF": (chunked(b"3\r\nabc\r\n0\r\n\n"), 400),
    "a NUL in an extension": (chunked(b"3;\0\r\nabc\r\n0\r\n\r\n"), 400),
    "an LF in an extension": (chunked(b'3;x="a\nb"\r\nabc\r\n0\r\n\r\n'), 400),
    "a malformed trailer": (chunked(b"0\r\nX\r\n\r\n"), 400),
    "a length in a trailer": (chunked(b"0\r\nContent-Length: 5\r\n\r\n"), 400),
    "chunks of more framing than a size takes": (
        chunked(b"1;extension=12345\r\na\r\n" * 5000 + b"0\r\n\r\n"),
        400,
    ),
    "a long chunk": (chunked(b"186a1\r\n" + b"a" * 100_001), 413),
    "a long extension": (chunked(b"3;x=" + b"y" * 33_000 + b"\r\nabc\r\n0\r\n\r\n"), 400),
    "long trailers": (chunked(b"0\r\n" + (b"X: " + b"y" * 4000 + b"\r\n") * 9 + b"\r\n"), 400),
}  # fmt: skip
"""By name: the bytes, with a limit of 100,000 bytes for a body, and the status."""

CLOSE = b"Connection: close\r\n"
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"0\r\n\r\n", b"HTTP/1.1", HOST, b"chunked", b",",
    b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"\t", b"\xff", b"5", CLOSE,
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"GET / ",
]  # fmt: skip
"""What a fuzzer puts between the bytes of a request."""


def replies_in(data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The status, the fields and the body of each reply, of which the last is whole too."""
    replies, rest = [], data
    while rest:
        first, _, rest = rest.partition(b"\r\n\r\n")
        line, *lines = first.decode().split("\r\n")
        fields = dict(item.split(": ", 1) for item in lines)
        size = int(fields.get("Content-Length", 0))
        assert line.startswith("HTTP/1.1 "), data
        assert len(rest) >= size, data
        replies.append((int(line.split()[1]), fields, rest[:size]))
        rest = rest[size:]
    return replies
