"""The field tables of docs/, made from the message types; they stand between marks in the pages.

    <!-- fields of Request -->
    | field | type | default | |
    <!-- end -->

`python -m harness.field_tables` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Raw, inspect

from harness.documents import PAGES
from qa_service.programs.client_main import option_flag
from qa_service.server.telemetry.health import Health
from qa_service.wire.fields import OUTPUTS, REQUEST, RequestRow
from qa_service.wire.http.model_reports import ModelReport
from qa_service.wire.http.tf_serving import Instance
from qa_service.wire.json_codec import AnswersBody, ErrorDetail
from qa_service.wire.messages import FRAME_QUERY_TYPES, Passage, Place, Request

TYPES = {
    kind.__name__: kind
    for kind in (Request, AnswersBody, Passage, Place, ErrorDetail, Health, ModelReport, Instance)
}
FROM_CLIENTS = {Request, Instance}
"""A field that a client leaves out has its default; one that the server leaves out has none."""

_TABLE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PLAIN = {
    inspect.BoolType: "true or false",
    inspect.DictType: "object",
    inspect.NoneType: "null",
    inspect.StructType: "object",
    inspect.DataclassType: "object",
}


def with_tables(page: str) -> str:
    """The page with its tables as the types have them now."""
    page = _PLACES.sub(lambda found: found[1] + _PLACE_TABLES[found[2]]() + found[3], page)
    return _TABLE.sub(lambda found: found[1] + table(TYPES[found[2]]) + found[3], page)


def _request_places() -> str:
    """Where each protocol has a request's fields, as `wire/fields.py` says."""
    head = ["frames, `POST /qa`", "Open Inference, gRPC", "TensorFlow Serving", "a job",
            "Python", "`client.py`"]  # fmt: skip
    return _markdown([head, ["---"] * len(head), *map(_request_place, REQUEST, REQUEST.values())])


def _request_place(name: str, row: RequestRow) -> list[str]:
    infer = f"the input `{name}`" if row.tensor else f"the parameter `{row.parameter}`"
    infer = row.elsewhere or infer
    column = f"`{name}`" if row.is_column else row.elsewhere
    flag = f"`{option_flag(name)}`" if row.is_option else ""
    job, keyword = (f"`{name}`" if there else "" for there in (row.is_in_jobs, row.is_option))
    return [f"`{name}`", infer, column, job, keyword, flag]


def _output_places() -> str:
    """The outputs, as `wire/fields.py` says."""
    head = ["output", "datatype", "shape", "in replies"]
    rows = [
        [
            f"`{name}`",
            f"{output.datatype}, a list in JSON" if output.is_json else output.datatype,
            "`[N]`" if output.is_of_reply else "`[N]`, or `[N,k]` with `top_k`",
            output.shown.value,
        ]
        for name, output in OUTPUTS.items()
    ]
    return _markdown([head, ["---"] * len(head), *rows])


_PLACES = re.compile(r"(<!-- places of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PLACE_TABLES = {"requests": _request_places, "outputs": _output_places}


def _markdown(rows: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in rows)


def table(kind: type) -> str:
    """A row for each field."""
    names = ["field", "type", "default"] if kind in FROM_CLIENTS else ["field", "type"]
    rows = [[*names, ""], ["---"] * (len(names) + 1), *_rows(kind)]
    return _markdown(rows)


def _rows(kind: type) -> Iterator[list[str]]:
    info: Any = inspect.type_info(kind)
    for field in info.fields:
        yield from _sent_rows(field) if kind in FROM_CLIENTS else _replied_rows(field)
    if getattr(info, "tag_field", None):
        tag, others = f'`"{info.tag}"`', ", ".join(f'`"{name}"`' for name in FRAME_QUERY_TYPES)
        about = (
            f"or {others}: a question [about the server](#about-the-server); or "
            '`"cancel"`: it [withdraws](#cancelling) one'
        )
        yield [f"`{info.tag_field}`", tag, tag, about]


def _sent_rows(field: inspect.Field) -> Iterator[list[str]]:
    default = field.default
    words = (
        bytes(default).decode() if isinstance(default, Raw) else json.dumps(default, default=str)
    )
    yield [
        f"`{field.name}`",
        _type_of(field),
        "required" if field.required else words,
        _description_of(field),
    ]


def _replied_rows(field: inspect.Field, of: str = "") -> Iterator[list[str]]:
    """A field's row; where it is an object whose fields are described, theirs instead."""
    bare = getattr(field.type, "type", None)
    if isinstance(bare, inspect.StructType):
        for its in bare.fields:
            yield from _replied_rows(its, f"{of}{field.encode_name}.")
        return
    yield [f"`{of}{field.encode_name}`", _type_of(field), _description_of(field)]


def _description_of(field: inspect.Field) -> str:
    schema = getattr(field.type, "extra_json_schema", None) or {}
    assert "description" in schema, f"the type of {field.name} has no Meta(description=...)"
    return str(schema["description"])


def _type_of(field: inspect.Field) -> str:
    its: Any = field.type
    return its.extra_json_schema.get("title") or in_words(its.type)


def in_words(kind: inspect.Type) -> str:
    """A type with its bounds."""
    match kind:
        case inspect.UnionType():
            *most, last = map(in_words, kind.types)
            return f"{', '.join(most)} or {last}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"list of {in_words(kind.item_type)}s"
        case inspect.StrType(max_length=int(most)):
            return f"string of {kind.min_length} to {most} characters"
        case inspect.StrType():
            return "string"
        case inspect.IntType(ge=int(low), le=int(high)) if high < 2**53:
            return f"integer from {low} to {high}"
        case inspect.IntType(ge=int(low)):
            return f"integer from {low}"
        case inspect.IntType():
            return "integer"
        case inspect.FloatType(gt=low):
            return "number" if low is None else f"number above {low}"
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in sorted(map(str, kind.values)))
    return _PLAIN[type(kind)]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text()))
