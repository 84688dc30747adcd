"""The OpenAPI description of `POST /qa`, made from the types that parse and encode it.

The Open Inference Protocol's paths have their own description, which this does not repeat.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from qa_service import __version__
from qa_service.wire.http_reply import HttpReply, json_reply
from qa_service.wire.json_codec import AnswersBody, ErrorBody
from qa_service.wire.messages import Request

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The body is no question, or the question does not fit the model.",
    401: "The token is missing, wrong or expired.",
    403: "A page of another site has made the request.",
    404: "There is no such model, route or version.",
    408: "The rest of the request did not come in time.",
    413: "The body is too long.",
    415: "The body is compressed in another way than gzip or deflate.",
    500: "The server failed.",
    503: "The server is too busy, or is shutting down; `Retry-After` says when to try again.",
    504: "The timeout was over before the question was begun, or before all of its text was read.",
}


@functools.cache
def reply() -> HttpReply:
    """The description as a reply."""
    return json_reply(description())


def description() -> dict[str, Any]:
    """The description as an object."""
    types = [
        _described("Question", Request),
        _described("Answers", AnswersBody),
        _described("Error", ErrorBody),
    ]
    (request, answers, error), schemas = msgspec.json.schema_components(types, ref_template=_REF)
    responses = {"200": _response("The answer.", answers)}
    responses |= {str(status): _response(text, error) for status, text in _ERRORS.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Question answering",
            "version": __version__,
            "description": "Answers a question with the span of a text that answers it.",
        },
        "paths": {
            "/qa": {
                "post": {
                    "operationId": "ask",
                    "summary": "Asks a question of a text.",
                    "requestBody": {"required": True, "content": _json(request)},
                    "responses": responses,
                }
            }
        },
        "security": [{}, {"token": []}],
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": _json(schema)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _described(name: str, kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The type with an id as a client sees it, which for us is JSON that is kept as it came."""
    fields = [
        (field.name, str | float | None, None)
        if field.type is msgspec.Raw
        else (field.name, field.type, *([] if field.required else [field.default]))
        for field in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(name, fields, kw_only=True)
