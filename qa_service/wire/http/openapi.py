"""The OpenAPI description of `/qa` and `/v1`, made from the types that parse and encode them.

The Open Inference Protocol has a separate description.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
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


@functools.cache
def reply() -> HttpReply:
    return json_reply(description())


def description() -> dict[str, Any]:
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


_Schema = dict[str, Any]


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
    failures = {str(status): _response(words, error) for status, words in errors.items()}
    return {"200": _response(text, schema), **failures}


def _response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": _json(schema)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
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
