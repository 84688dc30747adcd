"""Outlook's messages, written as the streams that they consist of.

Formats: [MS-CFB], with 512 bytes a sector and a directory in which each entry is the next one's
left neighbour, and [MS-OXMSG].
"""

import struct

_SECTOR, _SMALL_SECTOR = 512, 64
_FREE, _END, _FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_TEXT, _TIME, _BINARY = 0x001F, 0x0040, 0x0102
SUBJECT, BODY, HTML = 0x0037, 0x1000, 0x1013
DISPLAY_CC, DISPLAY_TO = 0x0E03, 0x0E04
SENDER_NAME, SENDER_ADDRESS, SENT = 0x0C1A, 0x0C1F, 0x0039


def outlook_file(properties: dict[int, str | bytes | int]) -> bytes:
    """A message of properties: texts, bytes, and times in 100 ns since 1601."""
    entries, streams = b"", {}
    for number, value in properties.items():
        if isinstance(value, int):
            entries += struct.pack("<HHIQ", _TIME, number, 6, value)
            continue
        kind = _TEXT if isinstance(value, str) else _BINARY
        data = value.encode("utf-16-le") if isinstance(value, str) else value
        entries += struct.pack("<HHIII", kind, number, 6, len(data) + 2 * (kind == _TEXT), 0)
        streams[f"__substg1.0_{number:04X}{kind:04X}"] = data
    streams["__properties_version1.0"] = bytes(32) + entries
    return compound_file(streams)


def compound_file(streams: dict[str, bytes]) -> bytes:
    """A file of streams that are shorter than 4,096 bytes."""
    small, small_fat, directory = b"", [], b""
    for number, (name, data) in enumerate(streams.items(), 1):
        following = number + 1 if number < len(streams) else _FREE
        first = len(small_fat)
        directory += _entry(name, 2, right=following, first=first, size=len(data))
        small += _padded(data, _SMALL_SECTOR)
        small_fat += [*range(first + 1, len(small) // _SMALL_SECTOR), _END]
    directory = _entry("Root Entry", 5, child=1, size=len(small)) + directory
    chains = [_padded(one) for one in (small, _table(small_fat), directory)]
    fat, starts = [], []
    for chain in chains:
        starts.append(len(fat))
        fat += [*range(len(fat) + 1, len(fat) + len(chain) // _SECTOR), _END]
    head = struct.pack(
        "<8s16sHHHHH6xIIIIIIIIII", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"",
        *(0x3E, 3, 0xFFFE, 9, 6), *(0, 1, starts[2], 0, 4096, starts[1], 1, _END, 0, len(fat)),
    )  # fmt: skip
    fat += [_FAT, *[_FREE] * (_SECTOR // 4 - len(fat) - 1)]
    return head + _table([_FREE] * 108) + b"".join(chains) + _table(fat)


def _table(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _entry(name: str, kind: int, *, right=_FREE, child=_FREE, first=0, size=0) -> bytes:
    encoded = name.encode("utf-16-le")
    places = struct.pack("<HBBIII", len(encoded) + 2, kind, 1, _FREE, right, child)
    return encoded.ljust(64, b"\0") + places + bytes(36) + struct.pack("<IQ", first, size)


def _padded(data: bytes, size: int = _SECTOR) -> bytes:
    return data + bytes(-len(data) % size)
