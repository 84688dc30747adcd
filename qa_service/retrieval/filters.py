r"""The parts of a collection that a question may be about: what is indexed for them, and asked.

A passage has its document's facts, each a term of one field of the index:

    NAME \0 VALUE         a field's value, as it is written
    NAME \1 2026-01-31    the same if it is a date, or begins with one
    \2 NAME               the document has the field
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from qa_service.errors import InvalidRequestError
from qa_service.retrieval.documents import Document, FieldValues
from qa_service.wire.messages import MAX_FILTER_CHARS, Bounds, Condition, Filter

if TYPE_CHECKING:
    import tantivy

FACTS = "facts"
"""The field of the index."""
PATH = "path"
_VALUE, _DAY, _FIELD = "\0", "\1", "\2"
_DAY_CHARS = len("2026-01-31")
_MAX_NAMED = 20
"""Of the fields that a collection has, in an error's message."""


def facts_of(file: str, document: Document) -> list[str]:
    """The terms of a document of a file."""
    folders = [f"{folder}/" for folder in PurePosixPath(file).parents if folder.name]
    fields: dict[str, FieldValues] = {
        **document.fields,
        "title": (document.title,),
        PATH: tuple(dict.fromkeys([file, document.name, *folders])),
    }
    terms = dict[str, None]()
    for name, values in fields.items():
        terms[f"{_FIELD}{name}"] = None
        for value in values:
            terms[f"{name}{_VALUE}{value[:MAX_FILTER_CHARS]}"] = None
            if day := day_of(value):
                terms[f"{name}{_DAY}{day}"] = None
    return list(terms)


def day_of(value: str) -> str:
    """The day with which a value begins, as 2026-01-31; "" if it begins with none."""
    try:
        return date.fromisoformat(value[:_DAY_CHARS]).isoformat()
    except ValueError:
        return ""


def wanted_terms(wanted: Filter, searcher: tantivy.Searcher) -> list[list[str]]:
    """For each of a filter's conditions the terms of an index, one of which a passage has.

    Raises:
        InvalidRequestError: No document of the index has the field.
    """
    for name in wanted:
        if not searcher.doc_freq(FACTS, f"{_FIELD}{name}"):
            found = [term[1:] for term, _ in searcher.terms_with_prefix(FACTS, _FIELD)]
            more = ", …" if len(found) > _MAX_NAMED else ""
            known = ", ".join(sorted(found[:_MAX_NAMED])) + more
            raise InvalidRequestError(
                f"no document of the collection has the field `{name}` of `filter`; there are: "
                f"{known}"
            )
    return [
        terms
        for name, condition in wanted.items()
        for terms in _terms_of(name, condition, searcher)
    ]


def _terms_of(name: str, condition: Condition, searcher: tantivy.Searcher) -> Iterator[list[str]]:
    if not isinstance(condition, Bounds):
        values = condition if isinstance(condition, list | tuple) else [condition]
        yield [f"{name}{_VALUE}{text_of(value)}" for value in values]
        return
    if condition.prefix is not None:
        yield _with_prefix(searcher, f"{name}{_VALUE}{condition.prefix}")
    if condition.after is not None or condition.before is not None:
        after, before = condition.after or "", condition.before or "~"
        start = f"{name}{_DAY}"
        days = _with_prefix(searcher, start)
        yield [term for term in days if after < term.removeprefix(start) < before]


def _with_prefix(searcher: tantivy.Searcher, prefix: str) -> list[str]:
    return [term for term, _ in searcher.terms_with_prefix(FACTS, prefix)]


def text_of(value: object) -> str:
    """A value as it is indexed: true, 7 and 7.0 as JSON has the first two."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
