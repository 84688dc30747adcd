"""What clients and the server say to each other, as typed structs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import msgspec

from qa_service.errors import QaError

NULL_ID = b"null"
MAX_ID_BYTES = 256
MAX_NAME_BYTES = 512
"""The longest JSON of a type or of a model's name, which may be written in escapes."""
MAX_TOP_K = 20
MAX_PRIORITY = 9
MAX_NAME_CHARS = 64
"""The longest name of a model, of a route and of a version's label."""
MIN_FRAME_BYTES = 256
MAX_FRAME_BYTES = 2**24 - 1
"""A frame's length begins with a zero byte: by that it is told from HTTP and from TLS."""


class Question(msgspec.Struct, frozen=True):
    """What is asked of a text, and how many answers are wanted."""

    question: str
    text: str
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)] = 1


class Task(Question, frozen=True):
    """A question on its way to a worker.

    Attributes:
        core: Of a segment of a longer text, where its spans start, in code points; the rest is
            context for them. None for a whole text.
    """

    core: tuple[int, int] | None = None


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Request(Question, frozen=True, tag_field="type", tag="question"):
    """A question as a client sends it; its `type`, if it has one, is `question`.

    Attributes:
        id: The JSON value that its answer carries, byte for byte as it was sent.
        timeout_ms: How long it may wait for a session, in milliseconds.
        priority: 0 to 9; of two requests that wait, the higher one goes sooner.
        model: The model or the route that is asked; None for the default.
        version: A version of the model, by its number or by a label; None leaves it to the server.
    """

    id: msgspec.Raw = msgspec.Raw(NULL_ID)
    timeout_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    model: _Name | None = None
    version: _Number | _Name | None = None

    @property
    def id_json(self) -> bytes:
        """The id's JSON."""
        return bytes(self.id)

    def as_task(self, core: tuple[int, int] | None = None) -> Task:
        """The part that a worker needs."""
        return Task(self.question, self.text, self.top_k, core)


QueryType = Literal["health", "stats", "metrics", "models", "load", "unload", "document"]
QUERY_TYPES = get_args(QueryType)
FRAME_QUERY_TYPES = ("health", "stats", "models", "load", "unload")
COMMANDS = {"load", "unload"}
"""Queries that change something, which takes a token with that right."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a client asks about the server itself; the loop answers it at once.

    Attributes:
        id_json: The id's JSON.
        type: What is asked; for a `document` the codec needs no report.
        is_open: Whether it is answered without a token.
        model: The model that a command is about.
    """

    id_json: bytes
    type: QueryType
    is_open: bool = False
    model: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A span of the text, or the finding that there is none.

    Attributes:
        answer: The span exactly as it stands in the text; empty for "no answer".
        score: Probability that this is the answer, 0 to 1.
        start: Where it starts in the text, in Unicode code points; None for "no answer".
        end: One past where it ends; None for "no answer".
    """

    answer: str
    score: float
    start: int | None
    end: int | None


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in milliseconds.

    Attributes:
        queue: From its last byte's arrival until an instance began with its batch.
        inference: From then to the batch's answers: tokenizing, the model, and reading the
            logits; and for a long text, what the instance did between its steps.
    """

    queue: float
    inference: float


class AnswerSource(msgspec.Struct, frozen=True):
    """What has answered a request.

    Attributes:
        model: The model; empty if it is not known.
        version: Its version; 0 if it is not known.
        is_cached: Whether the answer was kept from an equal request.
        models_asked: How many models a cascade has asked; 0 without one.
    """

    model: str = ""
    version: int = 0
    is_cached: bool = False
    models_asked: int = 0


UNKNOWN_SOURCE = AnswerSource()


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request."""

    max_frame_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=MIN_FRAME_BYTES,
            le=MAX_FRAME_BYTES,
            description="bytes in one request; 256 KiB take the loop about a millisecond",
        ),
    ] = 1 << 18
    max_question_chars: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_FRAME_BYTES, description="characters in a question")
    ] = 2000
    max_text_chars: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_FRAME_BYTES, description="characters in a text")
    ] = 250_000


class RejectedError(Exception):
    """A body that is not a request.

    Attributes:
        id_json: The id to answer it under, `null` where none could be read.
        error: What to answer.
    """

    def __init__(self, id_json: bytes, error: QaError) -> None:
        super().__init__(str(error))
        self.id_json = id_json
        self.error = error


class Auth(msgspec.Struct, frozen=True):
    """What a client authenticates with, in its first frame.

    Attributes:
        token: A secret that the server knows.
        id: The JSON value that the reply carries, byte for byte as it was sent.
    """

    type: Literal["auth"]
    token: str
    id: msgspec.Raw = msgspec.Raw(NULL_ID)
