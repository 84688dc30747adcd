"""Opens clients' streams: plain, or with TLS and the certificates of one side or both.

Certificates are read when the server starts, and again at a reload, which holds for new
connections.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from qa_service.errors import SetupError
from qa_service.net.event_loop import EventLoop
from qa_service.net.listen_options import TlsOptions
from qa_service.net.readings import HANGS_AFTER_S, MAX_READINGS, Readings
from qa_service.net.stream import ByteStream, Stream
from qa_service.net.tls import HandshakeQueue, TlsStream, TlsTerms, server_context, tls_files
from qa_service.server.front.protocols import reply_without_tls
from qa_service.server.front.tokens import Authenticator, Tokens

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Transport:
    """Opens clients' streams; raises what `load` raises."""

    loop: EventLoop
    options: TlsOptions
    handshake_timeout_s: float

    def __post_init__(self) -> None:
        self._queue = HandshakeQueue(self.loop)
        self._tls = self.load()

    @property
    def is_encrypted(self) -> bool:
        return self._tls is not None

    def open_stream(self, sock: socket.socket, name: str) -> ByteStream:
        """Opens a new client's stream; the name is for the log."""
        if self._tls is None:
            return Stream(self.loop, sock)
        return TlsStream(self.loop, sock, name, self._tls)

    def use(self, terms: TlsTerms | None) -> None:
        self._tls = terms
        if terms:
            logger.info(
                "new connections get the certificate that %s has now", self.options.tls_cert
            )

    def load(self) -> TlsTerms | None:
        """Reads the certificates, or raises `SetupError`; None for no TLS."""
        its = self.options
        if not (files := tls_files(its.tls_cert, its.tls_key, its.tls_client_ca)):
            return None
        return TlsTerms(
            context=server_context(*files),
            queue=self._queue,
            handshake_timeout_s=self.handshake_timeout_s,
            plain_reply=reply_without_tls,
        )


Loaded = tuple[TlsTerms | None, Tokens | None]


@dataclass(eq=False)
class Credentials:
    """Certificates and tokens, read again while the server serves: all are taken, or none.

    Attributes:
        fault: Why they could not be read again; empty if they could.
    """

    loop: EventLoop
    transport: Transport
    authenticator: Authenticator
    on_taken: Callable[[], None]

    def __post_init__(self) -> None:
        self.fault = ""
        self._readings: Readings[Loaded] = Readings(
            self.loop,
            self._stay,
            too_many=f"{MAX_READINGS} readings of their files hang",
            hanging=f"a file could not be read for {HANGS_AFTER_S:g} s",
        )

    def reload(self) -> None:
        """Begins to read them; what is in use stays until all are read."""
        self._readings.start(self._read, self._on_read)

    def _read(self) -> Loaded:
        return self.transport.load(), self.authenticator.load()

    def _on_read(self, found: Loaded | Exception) -> None:
        if isinstance(found, SetupError | OSError):
            self._stay(str(found))
            return
        if isinstance(found, Exception):
            raise found
        self.fault = ""
        terms, tokens = found
        self.transport.use(terms)
        self.authenticator.use(tokens)
        self.on_taken()

    def _stay(self, reason: str) -> None:
        self.fault = f"certificates and tokens are unchanged: {reason}"
        logger.error("%s", self.fault)
