"""Frames as a fuzzer makes them: golden ones, broken in seeded ways."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from harness.frames import frame
from harness.server import ROOT
from qa_service.wire.json_codec import parse_request
from qa_service.wire.messages import Cancel, RejectedError, Request

GOLDEN = json.loads((ROOT / "docs" / "golden_frames.json").read_text())


def body_of(case: dict) -> bytes:
    return bytes.fromhex(case["body_hex"]) if "body_hex" in case else case["body"].encode()


SHORT = [case for case in GOLDEN["requests"] if len(body_of(case)) < 2000]
GOOD = [body_of(case) for case in SHORT if "error" not in case]
BAD = [body_of(case) for case in SHORT if "error" in case]
BODIES = GOOD * 3 + BAD
TOKENS = [
    b"null", b"true", b"-0", b"1e999", b"-1", b"0.1", b"9" * 400, b'""', b"[]", b"{}", b"[[[[",
    b'{"a":', b'"\\ud800"', b'"\\udc00\\ud800"', b"\\u0000", b"\x00", b"\xff\xfe", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xc0\x80", b'"id":', b'"id":1,', b'"top_k":3,', b'"timeout_ms":1,',
    b'"priority":9,', b'"type":"health",', b'"question":"q",', b'"text":"t",', b",", b":", b'"',
    b"\\", b" " * 300, b"\xe2\x80\xa8", b"NaN", b"Infinity", b"0x10", b"/*", b"\xef\xbb\xbf",
]  # fmt: skip
LENGTHS = [0, 1, 3, 255, 65536, 2**20 - 1, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1]
LEAST_TIMEOUT_MS = 1e-3
EXPIRING = b'{"timeout_ms":1e-6,'
MAX_RANDOM_BYTES = 64
MAX_EDITS = 3


class Mutator:
    """An endless supply of broken bodies and frames, the same for the same seed.

    Args:
        expiring: Gives each golden body a timeout that is over at once, so that a body that stays
            valid is not run, unless an edit hits the timeout.
        bodies: What is edited; by default the golden ones.
        tokens: What edits insert.
    """

    def __init__(
        self,
        seed: int,
        *,
        expiring: bool = False,
        bodies: Sequence[bytes] = BODIES,
        tokens: Sequence[bytes] = TOKENS,
    ) -> None:
        self._random, self._tokens = random.Random(seed), tokens
        self._edits: list[Callable[[bytearray, int], None]] = [
            self._flip, self._set, self._delete, self._insert, self._insert, self._repeat,
            self._splice, self._truncate,
        ]  # fmt: skip
        self._bodies = bodies
        if expiring:
            self._bodies = [EXPIRING + b[1:] if b[:1] == b"{" else b for b in bodies]

    def body(self) -> bytes:
        """A body; about one in twenty is nothing but random bytes."""
        if self._random.random() < 0.05:
            return self._random.randbytes(self._random.randrange(MAX_RANDOM_BYTES))
        return self.edited(0, MAX_EDITS)

    def edited(self, fewest: int, most: int) -> bytes:
        """A body after that number of edits."""
        body = bytearray(self._random.choice(self._bodies))
        for _ in range(self._random.randint(fewest, most)):
            self._random.choice(self._edits)(body, self._random.randint(0, len(body)))
        return bytes(body)

    def bodies(self, count: int) -> list[bytes]:
        return [self.body() for _ in range(count)]

    def idle_bodies(self, count: int) -> list[bytes]:
        """A number of bodies, none of which makes a server run its model."""
        bodies = (self.body() for _ in itertools.count())
        return list(itertools.islice((body for body in bodies if not is_run(body)), count))

    def broken_frame(self) -> bytes:
        """A frame whose length is not its body's, or whose end never comes."""
        body = self.body()
        if self._random.random() < 0.5:
            return self._random.choice(LENGTHS).to_bytes(4, "big") + body
        whole = frame(body)
        return whole[: self._random.randrange(len(whole))]

    def _flip(self, body: bytearray, at: int) -> None:
        if at < len(body):
            body[at] ^= 1 << self._random.randrange(8)

    def _set(self, body: bytearray, at: int) -> None:
        if at < len(body):
            body[at] = self._random.randrange(256)

    def _delete(self, body: bytearray, at: int) -> None:
        del body[at : at + self._random.randint(1, 8)]

    def _insert(self, body: bytearray, at: int) -> None:
        body[at:at] = self._random.choice(self._tokens)

    def _repeat(self, body: bytearray, at: int) -> None:
        body[at:at] = body[at : at + 16] * self._random.randint(1, 20)

    def _splice(self, body: bytearray, at: int) -> None:
        other = self._random.choice(self._bodies)
        body[at:] = other[self._random.randint(0, len(other)) :]

    def _truncate(self, body: bytearray, at: int) -> None:
        del body[at:]


def is_run(body: bytes) -> bool:
    """Whether it is a request that waits for an instance, if only for a moment."""
    try:
        request = parse_request(body)
    except RejectedError:
        return False
    return isinstance(request, Request) and not (request.timeout_ms or 1) < LEAST_TIMEOUT_MS


def has_reply(body: bytes) -> bool:
    """Whether its frame has a reply of its own; all but a cancel frame have."""
    try:
        return not isinstance(parse_request(body), Cancel)
    except RejectedError:
        return True


def check_json(data: bytes | bytearray) -> Any:
    """Reads it as strict JSON in UTF-8: no NaN, no lone surrogate."""
    value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
