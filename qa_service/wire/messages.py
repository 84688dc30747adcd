"""What clients and the server say to each other, as typed structs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from qa_service.errors import QaError

NULL_ID = b"null"
MAX_ID_BYTES = 256
"""Several UUIDs: the server keeps the id of each request in flight."""
MAX_NAME_BYTES = 512
"""The longest JSON of a type or of a model's name, which may be written in escapes."""
MAX_TOP_K = 20
"""More than a person reads; the work per window and the length of a reply grow with it."""
MAX_PRIORITY = 9
"""One digit; a request of the highest priority has ten shares of the machine."""
MAX_PASSAGES = 100
"""The maximum of passages, or of windows of a text, that a request may have read: each is a run."""
MAX_UNSURE = 5
"""How many answers that are not sure enough a reply without an answer has."""
MAX_NAME_CHARS = 64
"""The longest name of a model, of a route, of a collection and of a version's label."""
MAX_QUESTION_CHARS = 2000
"""More than a window of the reader has; what is longer is a text."""
MIN_FRAME_BYTES = 256
"""The smallest bound that leaves room for a short question."""
MAX_FRAME_BYTES = 2**24 - 1
"""A frame's length begins with a zero byte, which distinguishes frames from HTTP and TLS."""


class Question(msgspec.Struct, frozen=True):
    """A question about a text, and the number of answers."""

    question: Annotated[
        str, Meta(description=f"not blank, at most {MAX_QUESTION_CHARS:,} characters")
    ]
    text: Annotated[str, Meta(description="not blank")]
    top_k: Annotated[int, Meta(ge=1, le=MAX_TOP_K, description="how many answers")] = 1


class Task(Question, frozen=True):
    """A question on its way to a worker.

    Attributes:
        core: Of a segment of a longer text: the range in which its spans start, in code points;
            the rest is context. None for a whole text.
    """

    core: tuple[int, int] | None = None


MAX_FILTER_FIELDS = 16
MAX_FILTER_VALUES = 100
MAX_FILTER_CHARS = 256
_FilterText = Annotated[str, Meta(max_length=MAX_FILTER_CHARS)]
_FilterValue = _FilterText | int | float | bool
_Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}\Z")]


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a document's field must be, if that is no value of it; one of them, or several.

    Attributes:
        prefix: With what it begins.
        after: It is a date later than this day, as 2026-01-31.
        before: It is an earlier date.
    """

    prefix: _FilterText | None = None
    after: _Day | None = None
    before: _Day | None = None


Condition = (
    _FilterValue | Annotated[list[_FilterValue], Meta(max_length=MAX_FILTER_VALUES)] | Bounds
)
"""A value, some values of which it has one, or bounds."""
Filter = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Condition],
    Meta(min_length=1, max_length=MAX_FILTER_FIELDS),
]
"""The conditions that all hold for a document, by the names of its fields."""

_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
MAX_COLLECTIONS = 16
ALL_COLLECTIONS = "*"
CollectionNames = Annotated[
    str, Meta(min_length=1, max_length=MAX_COLLECTIONS * (MAX_NAME_CHARS + 1))
]
_Number = Annotated[int, Meta(ge=1, le=2**53)]
_Passages = Annotated[int, Meta(ge=1, le=MAX_PASSAGES)]


class Request(Question, frozen=True, tag_field="type", tag="question", forbid_unknown_fields=True):
    """A question as a client sends it; its `type`, if it has one, is `question`.

    Its decoder takes no unknown fields, so that whoever decodes it can look at them.
    """

    text: Annotated[str, Meta(description="not blank; required without a `collection`")] = ""
    id: Annotated[
        msgspec.Raw,
        Meta(
            title="string, number or null",
            description=f"echoed byte for byte; at most {MAX_ID_BYTES} bytes",
        ),
    ] = msgspec.Raw(NULL_ID)
    timeout_ms: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="how long it may wait for an instance, up to `--request_timeout_ms`"),
    ] = None
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_PRIORITY,
            description="each step is one more share of the machine, up to the token's "
            "`max_priority`, or `--max_priority` without tokens (0 by default)",
        ),
    ] = 0
    model: Annotated[
        _Name | None, Meta(description="the model or the route; null: the server's default")
    ] = None
    version: Annotated[
        _Number | _Name | None,
        Meta(description="the model's version, a number or a label; null: the server's choice"),
    ] = None
    traceparent: Annotated[
        str, Meta(description="the client's span (W3C Trace Context); a malformed one is ignored")
    ] = ""
    collection: Annotated[
        CollectionNames | Annotated[list[_Name], Meta(min_length=1)] | None,
        Meta(
            title="string, list of strings or null",
            description=f"the collection to ask, in place of a text; or up to {MAX_COLLECTIONS} "
            f"in a list or with commas; `{ALL_COLLECTIONS}`: all that the client may ask",
        ),
    ] = None
    max_passages: Annotated[
        _Passages | None, Meta(description="how many passages are read; null: the server's default")
    ] = None
    passages: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_PASSAGES)] | None,
        Meta(
            description="how many of the read passages the reply has, best first; null: all of "
            "them if there is no answer, else none"
        ),
    ] = None
    filter: Annotated[
        Filter | None,
        Meta(
            description="of a collection: only documents whose fields are like this "
            "([filters](PROTOCOL.md#filters)); null: all"
        ),
    ] = None

    @property
    def id_json(self) -> bytes:
        return bytes(self.id)

    @property
    def collections(self) -> tuple[str, ...]:
        """The names of the collections that are asked; none for a text."""
        if self.collection is None:
            return ()
        its = self.collection
        names = its.split(",") if isinstance(its, str) else its
        return tuple(dict.fromkeys(name.strip() for name in names))

    def as_task(self, core: tuple[int, int] | None = None) -> Task:
        return Task(self.question, self.text, self.top_k, core)


REQUEST_FIELDS = frozenset({"type", *Request.__struct_fields__})

QueryType = Literal["health", "stats", "metrics", "models", "load", "unload", "document"]
QUERY_TYPES = get_args(QueryType)
FRAME_QUERY_TYPES = ("health", "stats", "models", "load", "unload")
COMMANDS = {"load", "unload"}
"""Queries that change something and take a token with the right `admin`."""


@dataclass(frozen=True, slots=True)
class Query:
    """A client's query about the server itself, which the loop answers at once.

    Attributes:
        type: For a `document` the codec needs no report.
        is_open: Whether it is answered without a token.
    """

    id_json: bytes
    type: QueryType
    is_open: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Withdraws the request in flight that has this id; a cancel itself gets no reply."""

    id_json: bytes


class Passage(msgspec.Struct, frozen=True):
    """A part of a document of a collection: `document[start:end]`, in Unicode code points."""

    document: Annotated[
        str, Meta(description="the file's path in the indexed folder, perhaps with `#` and an id")
    ]
    title: Annotated[str, Meta(description="the document's title")]
    heading: Annotated[
        str, Meta(description='the headings above the passage, the highest first; `""` if none is')
    ]
    start: Annotated[int, Meta(description="its start in the document, in code points")]
    end: Annotated[int, Meta(description="its exclusive end")]
    text: Annotated[str, Meta(description="the passage")]
    line: Annotated[
        int, Meta(description="its first line in the file, from 1; 0 if the file has no lines")
    ] = 0
    page: Annotated[
        int,
        Meta(description="the answer's page or slide, else the first, from 1; 0 if it has none"),
    ] = 0
    place: Annotated[
        str,
        Meta(description='that in words: "page 3", "slide 4" or "sheet Prices, row 12"; else ""'),
    ] = ""
    collection: Annotated[
        str, Meta(description='if several were asked: the collection that it is in; else ""')
    ] = ""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offsets of an answer in the text, or in a document of a collection."""

    start: Annotated[int, Meta(description="its start in code points")]
    end: Annotated[int, Meta(description="its exclusive end")]
    document: Annotated[str, Meta(description="of a collection: the document")] = ""
    collection: Annotated[
        str, Meta(description="if several were asked: the collection of the document")
    ] = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A span of the text, or no answer."""

    answer: Annotated[
        str, Meta(description='the span, as in the text; `""` if the text has no answer')
    ]
    score: Annotated[float, Meta(description="the probability that it is right, 0 to 1")]
    start: Annotated[
        int | None, Meta(description="its start in code points; null if there is no answer")
    ]
    end: Annotated[int | None, Meta(description="its exclusive end; null if there is no answer")]
    passage: Annotated[
        Passage | None,
        Meta(title="object", description="of a collection: the passage that the answer is in"),
    ] = None
    places: Annotated[
        tuple[Place, ...],
        Meta(
            title="list of objects",
            description="the places of equal answers (ignoring case, articles and punctuation), "
            "if there are several, the best first; `score` is the sum of their probabilities",
        ),
    ] = ()

    def is_sure(self, min_score: float, *, if_unknown: bool) -> bool:
        """Whether no other model needs to be asked: "no answer" ends a cascade if it may."""
        return self.score >= min_score and (if_unknown or self.start is not None)


class Timings(msgspec.Struct, frozen=True):
    """A request's time in the queue and in the instance, in milliseconds."""

    queue: Annotated[
        float,
        Meta(description="from the arrival of its last byte until an instance began to run it"),
    ]
    inference: Annotated[
        float, Meta(description="from then to the answers of its last batch: a long text has many")
    ]


class AnswerSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model and version that answered a request; the fields that a reply has once."""

    model: Annotated[str, Meta(description="the model that answered")] = ""
    version: Annotated[int, Meta(description="its version")] = 0
    is_cached: Annotated[
        bool, Meta(description="whether an equal request was answered before; both timings are 0")
    ] = msgspec.field(default=False, name="cached")
    models_asked: Annotated[
        int, Meta(description="how many models a cascade asked; the timings are their sums")
    ] = 0
    passages: Annotated[
        tuple[Passage, ...],
        Meta(
            title="list of objects",
            description="of a collection, without an answer or with `passages`: the read "
            "passages, in the order of the search",
        ),
    ] = ()
    unsure: Annotated[
        tuple[Answer, ...],
        Meta(
            title="list of objects",
            description=f"of a collection, without an answer: up to {MAX_UNSURE} answers that were "
            "considered and are not sure enough, the best first",
        ),
    ] = ()


UNKNOWN_SOURCE = AnswerSource()


class Answered(msgspec.Struct, frozen=True):
    """The answers to a request: one or more, the best first."""

    answers: Sequence[Answer]
    timings: Timings
    source: AnswerSource = UNKNOWN_SOURCE


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request."""

    max_frame_bytes: Annotated[
        int,
        Meta(
            ge=MIN_FRAME_BYTES,
            le=MAX_FRAME_BYTES,
            description="maximum size of one request in bytes; 256 KiB take the loop about a "
            "millisecond",
        ),
    ] = 1 << 18


class RejectedError(Exception):
    """A body that is not a request; `id_json` is that of the error's reply, `null` if unknown."""

    def __init__(self, id_json: bytes, error: QaError) -> None:
        super().__init__(str(error))
        self.id_json = id_json
        self.error = error


class Auth(msgspec.Struct, frozen=True):
    """A client's token, in its first frame; the reply has the id, byte for byte."""

    type: Literal["auth"]
    token: str
    id: msgspec.Raw = msgspec.Raw(NULL_ID)
