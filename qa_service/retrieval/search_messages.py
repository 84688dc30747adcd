"""The messages between the loop and a search process: msgpack in frames, typed at both ends.

loop ──Ask──▶ search process       any number, each with a number
loop ◀──Reply── search process     one for each, with its number

Paths and reasons cross here; a client is shown neither.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from qa_service.retrieval.retriever import FoundPassage, WordCounts
from qa_service.wire.frames import encode_frame
from qa_service.wire.messages import Filter

MAX_MESSAGE_BYTES = 2**32 - 1
"""All that a frame's prefix can say: texts are bounded as they come, and neither end is hostile."""


class Open(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Opens a collection, or the newest index of one that is open.

    Attributes:
        path: Its folder; empty if it has a URL.
        is_fresh: Whether what is open is dropped first, as it is damaged.
    """

    collection: str
    path: str = ""
    url: str = ""
    is_fresh: bool = False


class Close(msgspec.Struct, frozen=True, tag=True, array_like=True):
    collection: str


class List(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Looks for collections in a folder."""

    folder: str


class Search(msgspec.Struct, frozen=True, tag=True, array_like=True):
    collection: str
    question: str
    max_passages: int
    wanted: Filter | None = None
    counts: WordCounts | None = None


class Count(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Counts the passages of a collection that have each word of a question."""

    collection: str
    question: str


Work = Open | Close | List | Search | Count


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A collection is open.

    Attributes:
        identity: Differs between indexes in which a search may find something else.
        fault: Why it is searched worse than it could be, or its cluster does not answer; empty if
            neither.
    """

    identity: str
    fault: str = ""


class Closed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A collection is closed."""


class Listed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The collections of a folder: their folders, by name."""

    paths: dict[str, str]


class Found(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The passages that match best, the best first.

    Attributes:
        left_out: Documents that a search engine found and that are no passages.
    """

    passages: list[FoundPassage]
    took_ms: float
    left_out: int = 0


class Counted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    counts: WordCounts


Kind = Literal["setup", "damaged", "unavailable", "request"]


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The work could not be done.

    Attributes:
        reason: For the log and for health.
        kind: `setup` if a person has to change something: the configuration, what is installed;
            `damaged` if files cannot be read; `unavailable` if a cluster does not answer; `request`
            if the client has to.
        is_open: Of an `Open`: whether the index of before is still open.
    """

    reason: str
    kind: Kind
    is_open: bool = False


Result = Opened | Closed | Listed | Found | Counted | Refused


class Ask(msgspec.Struct, frozen=True, array_like=True):
    number: int
    work: Work


class Reply(msgspec.Struct, frozen=True, array_like=True):
    number: int
    result: Result


ask_decoder = msgspec.msgpack.Decoder(Ask)
reply_decoder = msgspec.msgpack.Decoder(Reply)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Ask | Reply) -> bytearray:
    return encode_frame(_encoder, message)
