"""Questions about the server and its models: over HTTP, on the server's Unix socket.

The fields of the server's JSON have the names of the protocol's messages.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from qa_service.errors import HttpError, UnauthorizedError, UnavailableError

TIMEOUT_S = 10.0
"""The loop answers a report at once; a server that takes longer hangs."""


class Reports:
    """Asks the server, whose Unix socket is at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def is_well(self, target: str, token: str) -> bool:
        """True if a path answers 200, false if 503.

        Raises:
            HttpError: The path has answered with another error.
            QaError: The server cannot be asked.
        """
        try:
            await self.ask("GET", target, token)
        except HttpError as error:
            if error.status != 503:
                raise
            return False
        return True

    async def ask(self, method: str, target: str, token: str) -> Any:  # noqa: ANN401 - JSON
        """The JSON that the server's HTTP interface replies with.

        Raises:
            HttpError: The server has answered with an error.
            QaError: The server cannot be asked.
        """
        if not (token.isascii() and token.isprintable()):
            raise UnauthorizedError
        fields = {"Host": "localhost", "Connection": "close", "Content-Length": "0"}
        if token:
            fields["Authorization"] = f"Bearer {token}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._exchange("\r\n".join(lines).encode())
        except (OSError, TimeoutError):
            raise UnavailableError("the server cannot be reached") from None
        return _read(reply)

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


def _read(reply: bytes) -> Any:  # noqa: ANN401
    head, _, body = reply.partition(b"\r\n\r\n")
    try:
        status = int(head.split(b" ", 2)[1])
        said = msgspec.json.decode(body) if body else {}
    except (IndexError, ValueError):
        raise UnavailableError("the connection to the server was lost") from None
    if status >= 400:
        raise HttpError(str(said.get("error", "")), status=status)
    return said


def model_path(name: str, version: str, rest: str = "") -> str:
    """The path of a model, or of its version if `version` is not empty."""
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(name, safe='')}{of_version}{rest}"
