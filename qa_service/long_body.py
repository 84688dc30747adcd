"""What a long body may look like, so that parsing it costs little more than reading it.

A string of 256 KiB is read in a fraction of a millisecond; brackets, numbers and small fields of
the same length, which no request needs, take up to ten times as long. So all but a body's margins
must be one string, and what is wrong with the rest is found without it.

    { "id": 7, "question": "…", "text": "…………………………………………", "top_k": 2 }
    |-------- margin --------|----------- middle ------------|--- margin ---|
"""

from __future__ import annotations

import re

import msgspec

ESCAPE_BYTES = 6
UTF8_BYTES = 4


class _Object(msgspec.Struct):
    """Any object: what fields it has is not looked at."""


_object_decoder = msgspec.json.Decoder(_Object)
_string_decoder = msgspec.json.Decoder(msgspec.Raw)
_first_of_a_pair = re.compile(rb"\\u[dD][89abAB]")


def without_middle(body: bytes, margin_bytes: int) -> bytes | None:
    r"""A body without its middle, which is part of a string: like the body but for that string.

    What is in the margins, how the string ends, and what is in it is not looked at: that is for
    parsing. No character is cut, also if it is written as an escape sequence or as two (`\n`,
    `\u00e9`, pairs of surrogates: RFC 8259, section 7): the middle begins and ends so much earlier.

    Args:
        body: What should be JSON.
        margin_bytes: How much may be something else, at each end. A body of no more than twice
            this has no middle.

    Returns:
        None if the middle does not lie within one string, a field of the object that the body is.

    Raises:
        RecursionError: The front margin is nested too deep.
    """
    if len(body) <= 2 * margin_bytes:
        return body
    start, end = (_boundary(body, at) for at in (margin_bytes, len(body) - margin_bytes))
    try:
        _object_decoder.decode(body[:start] + b'"}')
        if body.find(b'"', start, end) >= 0:
            _string_decoder.decode(b"".join((b'"', memoryview(body)[start:end], b'"')))
    except msgspec.DecodeError:
        return None
    return body[:start] + body[end:]


def _boundary(body: bytes, at: int) -> int:
    """Where a character begins, at the place or just before, if it is within a string."""
    escape = body.rfind(b"\\", max(0, at - ESCAPE_BYTES), at)
    if escape < 0:
        head = body[max(0, at - UTF8_BYTES) : at + 1]
        return at - next((i for i, byte in enumerate(reversed(head)) if byte & 0xC0 != 0x80), 0)
    if not _begins_escape(body, escape):
        return escape - 1
    first = escape - ESCAPE_BYTES
    is_pair = first >= 0 and _first_of_a_pair.match(body, first) and _begins_escape(body, first)
    return first if is_pair else escape


def _begins_escape(body: bytes, backslash: int) -> bool:
    """Whether a backslash is the first of its escape sequence, not the second of an escaped one."""
    run, step = 0, 1
    while step:  # gallops, as a run may be long
        if body.endswith(b"\\" * step, 0, backslash + 1 - run):
            run, step = run + step, step * 2
        else:
            step //= 2
    return run % 2 == 1
