"""Certificates and tokens, read again while the server serves.

All of them are taken or, if one is faulty, none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS, Readings
from qa_service.net.tls_stream import TlsTerms
from qa_service.server.front.tokens import Authenticator, TokenSet
from qa_service.server.front.transport import Transport

logger = logging.getLogger(__name__)

Loaded = tuple[TlsTerms | None, TokenSet | None]


class Credentials:
    """What connections are encrypted with and who may ask, as it is on disk.

    Attributes:
        fault: Why they could not be read again; empty if they could.
    """

    def __init__(
        self,
        loop: EventLoop,
        transport: Transport,
        authenticator: Authenticator,
        on_taken: Callable[[], None],
    ) -> None:
        self.fault = ""
        self._transport = transport
        self._authenticator = authenticator
        self._on_taken = on_taken
        self._readings: Readings[Loaded] = Readings(
            loop,
            self._stay,
            too_many=f"{MAX_READINGS} readings of their files hang",
            hanging=f"a file could not be read for {HANGS_AFTER_S:g} s",
        )

    def reload(self) -> None:
        """Begins to read them; what is in use stays until all are read."""
        self._readings.start(self._read, self._on_read)

    def _read(self) -> Loaded:
        return self._transport.load(), self._authenticator.load()

    def _on_read(self, found: Loaded | Exception) -> None:
        if isinstance(found, SetupError | OSError):
            self._stay(str(found))
            return
        if isinstance(found, Exception):
            raise found
        self.fault = ""
        terms, tokens = found
        self._transport.use(terms)
        self._authenticator.use(tokens)
        self._on_taken()

    def _stay(self, reason: str) -> None:
        self.fault = f"certificates and tokens are unchanged: {reason}"
        logger.error("%s", self.fault)
