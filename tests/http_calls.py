"""HTTP requests, each on a connection of its own."""

import http.client
import json
from collections.abc import Mapping, Sequence
from email.message import Message
from typing import Any, NamedTuple

from harness.process import GIVE_UP_S


class Reply(NamedTuple):
    """A reply, read to its end."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    return call(port, "GET", path, headers=headers)


def post(port: int, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
    fields = {"Content-Type": "application/json", **(headers or {})}
    return call(port, "POST", path, json.dumps(body), fields)


def tensors(**columns: Sequence[object]) -> list[dict[str, object]]:
    """The inputs of a request in the Open Inference Protocol, a tensor for each column."""
    return [
        {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data}
        for name, data in columns.items()
    ]


def call(
    port: int,
    method: str,
    path: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    connection = http.client.HTTPConnection("localhost", port, timeout=GIVE_UP_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
