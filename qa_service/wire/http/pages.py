"""The pages that the server shows, whose policy lets only their scripts and styles run.

At `/` one asks the server; at `/docs` is the OpenAPI description as HTML, which runs no script.
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

from qa_service.wire.http import openapi
from qa_service.wire.http.http_reply import HttpReply

_DATA = Path(__file__).parents[2] / "data"
_FRAME = (_DATA / "docs.html").read_text(encoding="utf-8")
_CONTENTS = "<!-- contents -->"
_Schema = Mapping[str, Any]


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
    return page_reply(_FRAME.replace(_CONTENTS, render(openapi.description())).encode())


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
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
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
