"""Where each protocol has the fields of a request and of a reply: a row each. Sans-IO.

What a field is (its type, bounds and description) is in `messages`; frames, `POST /qa` and their
clients have it by that name. To add one is its line in the message's struct, its row here, its use
and, for Python and the terminal, its line in client.py's `AskOptions` or `Answer`.

A field that the server does not know is ignored, so that clients may send more than it reads. One
that is nearly a field of the server, where that field is missing, would be ignored to the client's
cost: its sender is asked what it means (`near_miss`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec.inspect
from msgspec import Struct

from qa_service.wire.messages import Answer, Passage, Place, Request


class RequestRow(NamedTuple):
    """Where a field of `Request` is.

    Attributes:
        tensor: Whether it is an input, BYTES, in the Open Inference Protocol, over HTTP or gRPC.
        parameter: The parameter's name there; empty for none.
        elsewhere: Where that protocol and TensorFlow Serving's have it if they have it otherwise.
        is_json: Whether that is a string of JSON.
        is_column: Whether TensorFlow Serving's rows and columns have it.
        is_option: Whether `AskOptions` has it, and so Python's clients and the terminal.
    """

    tensor: bool = False
    parameter: str = ""
    elsewhere: str = ""
    is_json: bool = False
    is_column: bool = True
    is_in_jobs: bool = True
    is_option: bool = True


REQUEST = {
    "question": RequestRow(tensor=True, is_option=False),
    "text": RequestRow(tensor=True, is_option=False),
    "top_k": RequestRow(parameter="top_k"),
    "id": RequestRow(elsewhere="`id` of them all", is_column=False, is_option=False),
    "timeout_ms": RequestRow(parameter="timeout"),
    "priority": RequestRow(parameter="priority", is_in_jobs=False),
    "model": RequestRow(elsewhere="the path", is_column=False),
    "version": RequestRow(elsewhere="the path", is_column=False),
    "traceparent": RequestRow(
        elsewhere="the header", is_column=False, is_in_jobs=False, is_option=False
    ),
    "collection": RequestRow(tensor=True),
    "max_passages": RequestRow(parameter="max_passages"),
    "passages": RequestRow(parameter="passages"),
    "filter": RequestRow(parameter="filter", is_json=True),
}

TENSORS = [name for name, row in REQUEST.items() if row.tensor]
PARAMETERS = {row.parameter: name for name, row in REQUEST.items() if row.parameter}
"""The field of each of the Open Inference Protocol's parameters."""
COLUMNS = [name for name, row in REQUEST.items() if row.is_column]
JOB_FIELDS = [name for name, row in REQUEST.items() if row.is_in_jobs]
OPTIONS = [name for name, row in REQUEST.items() if row.is_option]


def _numbers() -> dict[str, tuple[Any, Any]]:
    """The bounds of each field of a request that is a number or null; None for a fraction's."""
    found: dict[str, tuple[Any, Any]] = {}
    for field in msgspec.inspect.type_info(Request).fields:  # type: ignore[attr-defined]
        bare: Any = field.type.type
        kinds = bare.types if isinstance(bare, msgspec.inspect.UnionType) else [bare]
        match [kind for kind in kinds if not isinstance(kind, msgspec.inspect.NoneType)]:
            case [msgspec.inspect.IntType(ge=low, le=high)]:
                found[field.name] = low, high
            case [msgspec.inspect.FloatType()]:
                found[field.name] = None, None
    return found


NUMBERS = _numbers()


class Shown(Enum):
    """Which replies have an output if the request does not name those that it wants."""

    ALWAYS = "all"
    OF_COLLECTION = "of a collection, or if asked for"
    IF_ANY = "if asked for; TensorFlow Serving's if there are any"


class Output(NamedTuple):
    """An output of the Open Inference Protocol, and a column of TensorFlow Serving's.

    Attributes:
        kind: The type of an element; of a list of structs, which is JSON in a tensor, the struct.
        read: Takes it from an answer or, if it is one for all answers, from their source.
        is_of_reply: Whether it is one for all answers to a question.
    """

    kind: Any
    read: Callable[[Any], object]
    shown: Shown = Shown.ALWAYS
    is_of_reply: bool = False

    @property
    def datatype(self) -> str:
        return {int: "INT32", float: "FP32"}.get(self.kind, "BYTES")

    @property
    def is_json(self) -> bool:
        """Whether an element is a list of structs."""
        return issubclass(self.kind, Struct)


def _of_passage(name: str, none: object = "") -> Callable[[Answer], object]:
    def read(answer: Answer) -> object:
        return getattr(answer.passage, name) if answer.passage else none

    return read


OUTPUTS = {
    "answer": Output(str, attrgetter("answer")),
    "score": Output(float, attrgetter("score")),
    "start": Output(int, lambda its: -1 if its.start is None else its.start),
    "end": Output(int, lambda its: -1 if its.end is None else its.end),
    "document": Output(str, _of_passage("document"), Shown.OF_COLLECTION),
    "title": Output(str, _of_passage("title"), Shown.OF_COLLECTION),
    "passage": Output(str, _of_passage("text"), Shown.OF_COLLECTION),
    "page": Output(int, _of_passage("page", 0), Shown.IF_ANY),
    "place": Output(str, _of_passage("place"), Shown.IF_ANY),
    "places": Output(Place, attrgetter("places"), Shown.IF_ANY),
    "passages": Output(Passage, attrgetter("passages"), Shown.IF_ANY, True),
    "unsure": Output(Answer, attrgetter("unsure"), Shown.IF_ANY, True),
}
ALWAYS_SHOWN = [name for name, output in OUTPUTS.items() if output.shown is Shown.ALWAYS]


def shown_outputs(*, has_collection: bool) -> list[str]:
    """The outputs of a reply to a request that names none, without those shown if any has them."""
    shown = {Shown.ALWAYS, Shown.OF_COLLECTION} if has_collection else {Shown.ALWAYS}
    return [name for name, output in OUTPUTS.items() if output.shown in shown]


# Names that a client has probably meant otherwise: `context` for `text`, `topk` for `top_k`.

MAX_NAMED_CHARS = 64
"""Of a client's name that a message repeats."""
MAX_COMPARED = 32
"""Unknown names that are looked at: comparing one takes some 50 µs."""
SIMILARITY = 0.85
"""difflib's ratio: a letter too many, missing or exchanged in a name of seven letters."""

OTHER_NAMES = {
    **dict.fromkeys(("context", "passage", "paragraph", "content", "document", "txt"), "text"),
    **dict.fromkeys(("q", "query"), "question"),
    **dict.fromkeys(("k", "nbest", "topn"), "top_k"),
    "timeout": "timeout_ms",
}
"""What other servers call a field, in small letters without `_` and `-`."""


def near_miss(
    given: Collection[str], known: Collection[str], other_names: Mapping[str, str] = OTHER_NAMES
) -> str:
    """What is wrong with a name; empty if none is nearly that of a missing field.

    Args:
        other_names: What else a field may be called, folded.
    """
    unknown = [name for name in given if name not in known]
    missing = {name for name in known if name not in given}
    if "collection" in given:
        missing.discard("text")
    for name in (name[:MAX_NAMED_CHARS] for name in unknown[:MAX_COMPARED]):
        meant = {_folded(one): one for one in missing}.get(_folded(name))
        meant = meant or other_names.get(_folded(name), "")
        if meant not in missing:
            close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=SIMILARITY)
            meant = close[0] if close else ""
        if meant:
            return f"there is no `{name}`: did you mean `{meant}`?"
    return ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
