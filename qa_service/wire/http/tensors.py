"""The data of a tensor, in JSON and in binary.

In binary, each element of BYTES has a 4-byte little-endian length before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from qa_service.errors import InvalidRequestError

_FORMATS = {"FP32": "f", "INT32": "i"}
_LENGTH = struct.Struct("<I")
_encode = msgspec.json.Encoder().encode


def flat(name: str, data: Sequence[str | list[str]] | None) -> list[str]:
    """The elements of an input's JSON data, nested or not."""
    if data is None:
        raise InvalidRequestError(f"{name} has no data")
    elements: list[str] = []
    for element in data:
        if isinstance(element, str):
            elements.append(element)
        else:
            elements += element
    return elements


def from_binary(name: str, data: memoryview) -> list[str]:
    """The elements of an input's binary data."""
    elements, at = [], 0
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise InvalidRequestError(f"the binary data of {name} ends within a length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        if at > len(data):
            raise InvalidRequestError(f"the binary data of {name} ends within an element")
        try:
            elements.append(str(data[at - size : at], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidRequestError(f"an element of {name} is not UTF-8") from None
    return elements


def as_json(column: Sequence[object]) -> list[str]:
    return [_encode(element).decode() for element in column]


def to_binary(datatype: str, column: Sequence[object]) -> bytes:
    if datatype == "BYTES":
        elements = [str(element).encode() for element in column]
        return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
    return struct.pack(f"<{len(column)}{_FORMATS[datatype]}", *column)
