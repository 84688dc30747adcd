"""The OpenAPI description of `/qa` and `/v1`, made from the types of their messages; the pages.

At `/` one asks the server; at `/docs` is the description as HTML, which runs no script. A page's
policy lets only its own scripts and styles run. The Open Inference Protocol has a separate
description.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from qa_service import __version__
from qa_service.wire.http.http_reply import HttpReply, json_reply
from qa_service.wire.http.tf_serving import ModelStatus, PredictBody, PredictReply, TfServingError
from qa_service.wire.json_codec import AnswersBody, ErrorBody
from qa_service.wire.messages import Request

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The body is no question, or the question does not fit the model.",
    401: "The token is missing, wrong or expired.",
    403: "A page of another site has made the request.",
    404: "There is no such model, route, version or collection.",
    408: "The rest of the request did not come in time.",
    413: "The body is too long.",
    415: "The body is compressed in another way than gzip or deflate.",
    500: "The server failed.",
    503: "The server is too busy, or is shutting down; `Retry-After` says when to try again.",
    504: "The timeout was over before the question was begun, or before all of its text was read.",
}
_TF_SERVING_TYPES = [PredictBody, PredictReply, ModelStatus, TfServingError]
_TF_SERVING_ERRORS = {
    **_ERRORS,
    429: "The server is too busy; `Retry-After` says when to try again.",
    503: "No instance is alive, or the server is shutting down.",
}
_STATUS_ERRORS = {status: _ERRORS[status] for status in (401, 403, 404)}


_DATA = Path(__file__).parents[2] / "data"
_FRAME = (_DATA / "docs.html").read_text(encoding="utf-8")
_CONTENTS = "<!-- contents -->"
_Schema = dict[str, Any]


@functools.cache
def openapi() -> HttpReply:
    return json_reply(description())


def description() -> _Schema:
    types = [
        *(_described("Question", Request), _described("Answers", AnswersBody)),
        *(_described("Error", ErrorBody), *_TF_SERVING_TYPES),
    ]
    refs, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    ask = {
        "operationId": "ask",
        "summary": "Asks a question of a text.",
        "requestBody": {"required": True, "content": _json(refs[0])},
        "responses": _responses("The answer.", refs[1], _ERRORS, refs[2]),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Question answering",
            "version": __version__,
            "description": "Answers a question with the span of a text that answers it.",
        },
        "paths": {"/qa": {"post": ask}, **_tf_serving(*refs[3:])},
        "security": [{}, {"token": []}],
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _tf_serving(
    request: _Schema, reply: _Schema, status: _Schema, error: _Schema
) -> dict[str, Any]:
    """TensorFlow Serving's paths, without those that name a version."""
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    predict = {
        "operationId": "predict",
        "summary": "Asks questions as TensorFlow Serving takes them: by rows or by columns.",
        "requestBody": {"required": True, "content": _json(request)},
        "responses": _responses("The answers.", reply, _TF_SERVING_ERRORS, error),
    }
    get_status = {
        "operationId": "getModelStatus",
        "summary": "Says which versions of a model there are, and whether they are available.",
        "responses": _responses("The status.", status, _STATUS_ERRORS, error),
    }
    return {
        "/v1/models/{model}:predict": {"parameters": [model], "post": predict},
        "/v1/models/{model}": {"parameters": [model], "get": get_status},
    }


def _responses(
    text: str, schema: _Schema, errors: Mapping[int, str], error: _Schema
) -> dict[str, Any]:
    said = {200: (text, schema), **{status: (words, error) for status, words in errors.items()}}
    return {
        str(status): {"description": words, "content": _json(body)}
        for status, (words, body) in said.items()
    }


def _json(schema: _Schema) -> _Schema:
    return {"application/json": {"schema": schema}}


def _described(name: str, kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The type with an id as clients see it; the server keeps the id's JSON as it came."""
    fields = [
        (field.name, str | float | None, None)
        if field.name == "id"
        else (field.encode_name, field.type, *([] if field.required else [field.default]))
        for field in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(name, fields, kw_only=True)


# The pages.


def page_reply(html: bytes) -> HttpReply:
    policy = (
        f"default-src 'none'; script-src {_hashes('script', html)}; "
        f"style-src {_hashes('style', html)}; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    fields = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HttpReply(html, content_type="text/html; charset=utf-8", fields=fields)


def _hashes(element: str, html: bytes) -> str:
    """The hashes by which a Content-Security-Policy allows the contents of such elements."""
    contents = re.findall(rf"<{element}>(.*?)</{element}>".encode(), html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


PAGE = page_reply((_DATA / "page.html").read_bytes())


@functools.cache
def docs() -> HttpReply:
    return page_reply(_FRAME.replace(_CONTENTS, render(description())).encode())


def render(description: _Schema) -> str:
    """The contents of the page: a section for each operation, then one for each schema."""
    info = description["info"]
    operations = [
        _operation(method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    ]
    schemas = [_schema(name, its) for name, its in description["components"]["schemas"].items()]
    return "\n".join(
        [
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f"<p>{escape(info['description'])} This page shows "
            '<a href="/openapi.json">openapi.json</a>; <a href="/">the page at /</a> asks the '
            "server.</p>",
            *operations,
            *schemas,
        ]
    )


def _operation(method: str, path: str, operation: _Schema) -> str:
    body = operation.get("requestBody")
    asks = f"<p>Body: {_type(_content(body))}</p>" if body else ""
    rows = [
        (f"<code>{status}</code>", escape(its["description"]), _type(_content(its)))
        for status, its in operation["responses"].items()
    ]
    return (
        f"<section><h2><code>{method} {escape(path)}</code></h2>"
        f"<p>{escape(operation['summary'])}</p>{asks}"
        f"{_table(('status', 'when', 'body'), rows)}</section>"
    )


def _content(part: _Schema) -> _Schema:
    [content] = part["content"].values()
    return dict(content["schema"])


def _schema(name: str, schema: _Schema) -> str:
    rows = []
    for field, its in schema.get("properties", {}).items():
        default = f"<code>{escape(json.dumps(its['default']))}</code>" if "default" in its else ""
        if field in schema.get("required", ()):
            default = "required"
        about = _words(its.get("description", ""))
        rows.append((f"<code>{escape(field)}</code>", _type(its), default, about))
    about = f"<p>{_words(schema.get('description', ''))}</p>"
    table = _table(("field", "type", "default", ""), rows)
    return f'<section id="{escape(name)}"><h2>{escape(name)}</h2>{about}{table}</section>'


def _type(schema: _Schema) -> str:
    """The type of a field in words, with its bounds or a link to a schema."""
    if ref := schema.get("$ref"):
        name = escape(ref.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf"):
        return " or ".join(_type(choice) for choice in choices)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = (f" {word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema)
    return escape(schema.get("type", "any")) + "".join(bounds)


_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to",
           "minLength": "at least", "maxLength": "at most"}  # fmt: skip


def _words(text: str) -> str:
    """Plain words, in which backquotes enclose code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{word}</th>" for word in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
