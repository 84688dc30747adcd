"""Bodies made to cost their reader more than their sender, and what must become of them."""

from __future__ import annotations

from collections.abc import Callable

Maker = Callable[[int], bytes]
"""Makes a body of about a given number of bytes."""

START = b'{"question":"Who?","text":"It was Ada.",'


DEEP = b"[" * 500 + b"]" * 500 + b","


def filled(start: bytes, unit: bytes, end: bytes) -> Maker:
    """The unit as often as it fits between a start and an end."""
    return lambda size: start + unit * max(1, (size - len(start) - len(end)) // len(unit)) + end


def nested(start: bytes, opening: bytes, closing: bytes) -> Maker:
    """So deep that opening and closing fill the size."""

    def make(size: int) -> bytes:
        depth = max(1, (size - len(start) - 2) // (len(opening) + len(closing)))
        return start + opening * depth + b"0" + closing * depth + b"}"

    return make


def as_text(unit: bytes, end: bytes = b'"}') -> Maker:
    """The unit as the text of a question, and how its body ends."""
    return filled(b'{"question":"Who?","text":"', unit, end)


OK = "answered"
FRAME = "invalid_frame"
REQUEST = "invalid_request"

HOSTILE: dict[str, tuple[Maker, str]] = {
    "bytes that are no UTF-8": (filled(b"", bytes(range(128, 256)), b"."), FRAME),
    "UTF-8 that is no JSON": (filled(b"", "žäß漢".encode(), b"."), FRAME),
    "NUL bytes": (filled(b"", b"\0", b""), FRAME),
    "NUL bytes in a string": (as_text(b"\0"), FRAME),
    "spaces": (filled(b"", b" ", b""), FRAME),
    "opening brackets": (filled(b"", b"[", b""), REQUEST),
    "a deep array": (nested(START + b'"more":', b"[", b"]"), FRAME),
    "a deep object": (nested(START + b'"more":', b'{"a":', b"}"), FRAME),
    "a deep id": (nested(START + b'"id":', b"[", b"]"), FRAME),
    "many small arrays": (filled(START + b'"more":[', b"[],", b"0]}"), OK),
    "arrays almost too deep": (filled(START + b'"more":[', DEEP, b"0]}"), OK),
    "arrays before and after a string": (
        filled(
            START + b'"more":[' + 13 * DEEP + b'0],"more":"',
            b"a",
            b'","more":[' + 13 * DEEP + b"0]}",
        ),
        OK,
    ),
    "digits in a field that is ignored": (filled(START + b'"more":', b"9", b"}"), OK),
    "digits in the id": (filled(START + b'"id":', b"9", b"}"), REQUEST),
    "digits in top_k": (filled(START + b'"top_k":', b"9", b"}"), REQUEST),
    "digits in timeout_ms": (filled(START + b'"timeout_ms":', b"9", b"}"), REQUEST),
    "a long fraction in timeout_ms": (filled(START + b'"timeout_ms":9.', b"9", b"}"), OK),
    "a lone surrogate at the end": (as_text(b"\\u00e9", b'\\ud800"}'), FRAME),
    "an encoded surrogate": (filled(START + b'"more":"', b"\xed\xa0\x80", b'"}'), FRAME),
    "an unpaired quotation mark": (filled(START + b'"more":"', b"a", b""), FRAME),
    "an id of one string": (filled(START + b'"id":"', b"a", b'"}'), REQUEST),
    "the id again and again": (filled(START, b'"id":1,', b'"id":1}'), OK),
    "the text again and again": (filled(START, b'"text":"a",', b'"id":1}'), OK),
    "many fields": (filled(START, b'"a":0,', b'"id":1}'), OK),
    "a text and too many answers wanted": (
        as_text(b"\\u042d", b'","top_k":99}'),
        REQUEST,
    ),
    "a text and the type of a query": (as_text(b"\\u042d", b'","type":"health"}'), OK),
    "a text of another type": (as_text(b"\\u042d", b'","type":"other"}'), REQUEST),
    "many fields and no text": (
        filled(b'{"question":"Who?",', b'"a":0,', b'"id":1}'),
        REQUEST,
    ),
}
"""By name: the maker, and the outcome: an error's code or that it is a request."""

HONEST: dict[str, Maker] = {
    "a text in English": as_text(b"It was Ada. "),
    "a text in Russian": as_text("Это была Ада. ".encode()),
    "a text in Chinese": as_text("那是阿达。".encode()),
    "a text of emoji": as_text("\U0001f600".encode()),
    "a text in escapes": as_text(b"\\u042d\\u0442"),
    "a text of line breaks": as_text(b"It was Ada.\\n"),
    "a text of quotation marks": as_text(b'\\"'),
    "a text of backslashes": as_text(b"\\\\"),
    "a text in Russian, and what is ignored": as_text("Это была Ада. ".encode(), b'","more":1}'),
    "a text in HTML": as_text(b'<p class=\\"who\\">It was Ada.</p>\\n'),
}
