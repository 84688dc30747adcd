"""Answers by question, the least recently used dropped first. Bounded in bytes.

    key     BLAKE2b-128 over: model, question, text, each preceded by its length; top_k
    entry   for each answer its fields, but its words; and the source of all (msgpack)

A text itself is not kept: a client that asks again sends it, and an answer is `text[start:end]`. An
entry is one string of bytes, which the garbage collector never visits.

The entries are in many small ordered dictionaries rather than in one: a dictionary that grows moves
all its entries at once, which stops the loop for long if they are many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from qa_service.wire.messages import UNKNOWN_SOURCE, Answer, AnswerSource, Question

KEY_BYTES = 16  # 128 bits: equal keys of different questions need not be expected
ENTRY_BYTES = 320
"""An entry's memory besides its value: its key, its place in the dictionary, and room to grow."""

SHARD_BYTES = 1 << 20

_KEPT = [its for its in msgspec.structs.fields(Answer) if its.name != "answer"]
_Kept: Any = msgspec.defstruct("_Kept", [(its.name, its.type) for its in _KEPT], array_like=True)
_fields_of = attrgetter(*[its.name for its in _KEPT])


class _Entry(msgspec.Struct, array_like=True):
    answers: list[_Kept]
    source: AnswerSource


class KeptAnswers(NamedTuple):
    """The answers to a question, best first, and what their reply has once."""

    answers: list[Answer]
    source: AnswerSource


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


def cache_key(model: str, question: Question) -> bytes:
    """A question's key: equal for the same model, question, text and `top_k`."""
    a, b, c = model.encode(), question.question.encode(), question.text.encode()
    message = b"%d:%b%d:%b%d:%b%d" % (len(a), a, len(b), b, len(c), c, question.top_k)
    return blake2b(message, digest_size=KEY_BYTES).digest()


class CacheStore:
    """Answers by key, in `max_bytes` of memory, overhead included; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._shards = [_Shard() for _ in range(max(1, max_bytes // SHARD_BYTES))]
        self._max_shard_bytes = max_bytes // len(self._shards)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self._shards)

    def __len__(self) -> int:
        return sum(len(shard.entries) for shard in self._shards)

    def get(self, key: bytes, text: str) -> KeptAnswers | None:
        """The answers to a question, now the most recently used; None if there are none."""
        entries = self._shard(key).entries
        entry = entries.get(key)
        if entry is None:
            return None
        entries.move_to_end(key)
        kept = _decode(entry)
        return KeptAnswers([_to_answer(its, text) for its in kept.answers], kept.source)

    def put(
        self, key: bytes, answers: Sequence[Answer], source: AnswerSource = UNKNOWN_SOURCE
    ) -> int:
        """Keeps or replaces a question's answers; returns how many entries it dropped for room."""
        entry = _encode(([_fields_of(answer) for answer in answers], source))
        shard = self._shard(key)
        if (old := shard.entries.pop(key, None)) is not None:
            shard.num_bytes -= ENTRY_BYTES + len(old)
        shard.entries[key] = entry
        shard.num_bytes += ENTRY_BYTES + len(entry)
        num_dropped = 0
        while shard.num_bytes > self._max_shard_bytes:
            _, dropped = shard.entries.popitem(last=False)
            shard.num_bytes -= ENTRY_BYTES + len(dropped)
            num_dropped += 1
        return num_dropped

    def _shard(self, key: bytes) -> _Shard:
        return self._shards[int.from_bytes(key[:4]) % len(self._shards)]


def _to_answer(kept: Any, text: str) -> Answer:  # noqa: ANN401
    """The answer; its words are in its passage or else in the text."""
    words, at = "", 0
    if kept.passage:
        text, at = kept.passage.text, kept.passage.start
    if kept.start is not None:
        words = text[kept.start - at : kept.end - at]
    return Answer(answer=words, **msgspec.structs.asdict(kept))


class _Shard:
    """Some of the entries, the least recently used first."""

    __slots__ = ("entries", "num_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0
