"""Questions about the server and its models: over HTTP, on the server's Unix socket.

The fields of the server's JSON have the names of the protocol's messages. A few connections stay
open, so that a health check costs the server no further connection. One that the server has
closed meanwhile is replaced: a lost connection says nothing about the server's health.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from qa_service.aio.connection import connect_unix
from qa_service.errors import HttpError, UnauthorizedError, UnavailableError

TIMEOUT_S = 10.0
"""The loop answers a report at once; a server that takes longer hangs."""
TICK_S = 1.0
"""The time is counted in these: one in which this process was suspended, or got no core, counts as
one, however long it was."""
MAX_CONNECTIONS = 4
"""Further questions wait for one of these."""
RETRY_S = 0.05
"""Between attempts on new connections that the server closes without a reply."""
_logger = logging.getLogger(__name__)
_HEAD = re.compile(rb"\AHTTP/1.1 ([0-9]{3}) .*\r\nContent-Length: ([0-9]+)", re.DOTALL)


class Reports:
    """Asks the server, whose Unix socket is at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._free: list[_Connection] = []
        self._hung_s = -math.inf
        """When the server was last found to hang."""
        self._is_away = False

    async def probe(self, target: str, token: str) -> bool:
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
        fields = {"Host": "localhost", "Content-Length": "0"}
        if token:
            fields["Authorization"] = f"Bearer {token}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]
        asked_s = time.monotonic()
        try:
            async with self._room:  # to wait for others is not to wait for the server
                if self._hung_s > asked_s:
                    raise TimeoutError
                status, body = await self._within_time("\r\n".join(lines).encode())
        except OSError as error:
            if not self._is_away:
                self._is_away = True
                _logger.warning("no server answers at %s: %s", self._path, error or "it hangs")
            raise UnavailableError("the server cannot be reached") from None
        if self._is_away:
            self._is_away = False
            _logger.info("a server answers at %s", self._path)
        said = msgspec.json.decode(body) if body else {}
        if status >= 400:
            raise HttpError(str(said.get("error", "")), status=status)
        return said

    async def _within_time(self, request: bytes) -> tuple[int, bytes]:
        """The reply to a request; an `OSError` if nobody listens, or the server hangs."""
        exchange = asyncio.ensure_future(self._exchange(request))
        try:
            for _ in range(math.ceil(TIMEOUT_S / TICK_S)):
                done, _ = await asyncio.wait({exchange}, timeout=TICK_S)
                if done:
                    return exchange.result()
        finally:
            exchange.cancel()
        self._hung_s = time.monotonic()
        raise TimeoutError

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request until a connection brings its reply; an `OSError` if nobody listens."""
        while True:
            self._free = [one for one in self._free if one.is_open]
            is_new = not self._free
            connection = await self._connect() if is_new else self._free.pop()
            try:
                reply = await connection.exchange(request)
            except ConnectionError:
                if is_new:
                    await asyncio.sleep(RETRY_S)
            else:
                self._free.append(connection)
                return reply

    async def _connect(self) -> _Connection:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await connect_unix(sock, str(self._path))
            protocol = _Protocol(reader := asyncio.StreamReader())
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
        except BaseException:
            sock.close()
            raise
        return _Connection(reader, transport)


class _Protocol(asyncio.StreamReaderProtocol):
    """Closes its connection when the server has, which waits for that."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


@dataclass(eq=False)
class _Connection:
    """A connection of HTTP, one request at a time."""

    reader: asyncio.StreamReader
    transport: asyncio.Transport

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the reply; a `ConnectionError` if the server has closed."""
        try:
            self.transport.write(request)
            status, size = _HEAD.findall(await self.reader.readuntil(b"\r\n\r\n"))[0]
            return int(status), await self.reader.readexactly(int(size))
        except BaseException as error:
            self.transport.abort()  # a late reply must not be taken for the next request's
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError from None
            raise


def model_path(name: str, version: str, rest: str = "") -> str:
    """The path of a model, or of its version if `version` is not empty."""
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(name, safe='')}{of_version}{rest}"
