"""The messages between the loop and a search process: msgpack in frames, typed at both ends.

loop ──Ask──▶ search process       any number, each with a number
loop ◀──Reply── search process     one for each, with its number

Paths and reasons cross here; a client is shown neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from qa_service.headings import SEPARATOR, headings_over
from qa_service.retrieval.documents import Mark
from qa_service.wire.frames import encode_frame
from qa_service.wire.messages import Filter, Passage

BM25_WEIGHT = 0.71
COSINE_WEIGHT = 21.5
"""What a point of BM25 and a cosine of 1 add to a merged score (`embeddings`)."""

TYPICAL_COSINE = 0.62
"""The highest cosine of a question's passages, in the mean: of 514 questions with an answer."""

MAX_LEAD = 8.0
"""By how many points a passage leads the next at most, for what that says of its answer."""
MAX_MESSAGE_BYTES = 2**32 - 1
"""All that a frame's prefix can say: texts are bounded as they come, and neither end is hostile."""


class FoundPassage(msgspec.Struct, frozen=True):
    """A passage and how well it matches.

    Attributes:
        score: In points of BM25; with embeddings, in units worth as much (`embeddings`); comparable
            within one question's passages.
        cosine: Of the passage's and the question's embeddings, by the encoder for which models know
            what it is worth; comparable between questions and collections.
        marks: Where in its file its parts are; none if that is not known.
    """

    score: float
    passage: Passage
    cosine: float | None = None
    marks: tuple[Mark, ...] = ()

    def passage_at(self, start: int) -> Passage:
        """The passage with the page and the place of what stands at an offset of the document."""
        before = [mark for mark in self.marks if mark.start <= start]
        if not before:
            return self.passage
        page, place = before[-1].page, before[-1].place
        return msgspec.structs.replace(self.passage, page=page, place=place)


class WordCounts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """By which a rare word counts more than a common one: of one index, or of several together.

    Attributes:
        by_word: How many passages have each of a question's words.
    """

    passages: int
    by_word: dict[str, int]


class ReadText(msgspec.Struct, frozen=True):
    """What a reader is given of a passage: a line that says where it stands, then the passage.

    Attributes:
        start: Where the passage begins in the text, in code points; no answer lies before it.
    """

    text: str
    start: int


def read_text(title: str, heading: str, passage: str) -> ReadText:
    """The text that a reader is given; it was trained on the same.

    Args:
        heading: The headings above the passage, joined by " > ".
    """
    line = headings_over(title, heading)
    context = f"{line}\n" if line else ""
    return ReadText(context + passage, len(context))


def distinct(found: Iterable[FoundPassage], count: int) -> list[FoundPassage]:
    """The first passages, without those with the text and heading of an earlier one.

    Folders have copies and chapters beside the whole: read twice, a passage would seem twice as
    likely, and take the place of another.
    """
    passages: dict[tuple[str, str], FoundPassage] = {}
    for one in found:
        heading = one.passage.heading.rpartition(SEPARATOR)[2]
        passages.setdefault((heading, one.passage.text), one)
        if len(passages) == count:
            break
    return list(passages.values())


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
        fault: Why it is searched worse than it could be, or not at all; empty if neither.
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


Result = Opened | Closed | Listed | Found | WordCounts | Refused


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
