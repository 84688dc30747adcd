"""Certificates and tokens, read again while the server serves.

A thread reads, since a mount may hang. All of them are taken or, if one is faulty, none. A reading
that hangs is waited for; a reload begins another, and the latest to begin counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from qa_service.net.event_loop import EventLoop
from qa_service.net.tls_stream import TlsTerms
from qa_service.server.front.auth import Authenticator
from qa_service.server.front.tokens import TokenSet
from qa_service.server.front.transport import Transport

logger = logging.getLogger(__name__)

HANGS_AFTER_S = 10.0
"""They are small files: seconds on a slow mount."""
MAX_READINGS = 4
"""At a time, all but one of which hang."""
Loaded = tuple[TlsTerms | None, TokenSet | None]


class Credentials:
    """What connections are encrypted with and who may ask, as it is on disk.

    Args:
        on_taken: Called when new ones are in use.
    """

    def __init__(
        self,
        loop: EventLoop,
        transport: Transport,
        authenticator: Authenticator,
        on_taken: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._authenticator = authenticator
        self._on_taken = on_taken
        self._num_begun = 0
        self._readings: set[int] = set()

    def reload(self) -> None:
        """Begins to read them; what is in use stays until all are read."""
        if len(self._readings) >= MAX_READINGS:
            self._stay(f"{MAX_READINGS} readings of their files hang")
            return
        self._num_begun += 1
        number = self._num_begun
        self._readings.add(number)
        self._loop.run_in_thread(self._read, partial(self._on_read, number))
        self._loop.call_at(self._loop.now_s() + HANGS_AFTER_S, partial(self._note_hang, number))

    def _read(self) -> Loaded:
        return self._transport.load(), self._authenticator.load()

    def _on_read(self, number: int, found: Loaded | Exception) -> None:
        self._readings.discard(number)
        if number != self._num_begun:
            return
        if isinstance(found, Exception):
            self._stay(str(found))
            return
        terms, tokens = found
        self._transport.use(terms)
        self._authenticator.use(tokens)
        self._on_taken()

    def _note_hang(self, number: int) -> None:
        if number == self._num_begun and number in self._readings:
            self._stay(f"a file could not be read for {HANGS_AFTER_S:g} s")

    def _stay(self, reason: str) -> None:
        logger.error("certificates and tokens are unchanged: %s", reason)
