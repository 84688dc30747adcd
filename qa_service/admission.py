"""Who may come in: by TLS, with certificates of both sides or of one, by tokens, by both or all.

    socket ──open_stream──▶ TLS handshake, if there is TLS
    first frame ──greet───▶ its token looked up, if there are tokens

Until a client is in, it can send one small frame and has a bounded time for that, and nothing
that it sends is run. Certificates and tokens are read when the server starts and again at
`reload`: small files, so that a moment of the loop's time is enough. A reload changes who comes
in from then on; those who are in stay.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from qa_service.errors import SetupError, TlsRequiredError, UnauthorizedError
from qa_service.event_loop import EventLoop
from qa_service.protocol import (
    MAX_AUTH_FRAME_BYTES,
    NULL_ID,
    encode_auth_reply,
    encode_error,
    parse_auth,
)
from qa_service.stream import Stream
from qa_service.tls import server_context
from qa_service.tls_stream import HandshakeQueue, TlsStream, TlsTerms
from qa_service.tokens import TokenSet, load_tokens

logger = logging.getLogger(__name__)

OnData = Callable[[bytes], None]
OnEvent = Callable[[], None]


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """What a client has to show.

    Attributes:
        tls_cert: The server's certificate; None, as of the key, for no TLS.
        tls_key: Its private key.
        tls_client_ca: Who must have signed a client's certificate; None asks for none.
        token_file: The tokens that are let in; None asks for none.
        handshake_timeout_s: How long a TLS handshake may take.
        auth_timeout_s: How long after it has connected a client must have shown its token.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    token_file: Path | None = None
    handshake_timeout_s: float = 10.0
    auth_timeout_s: float = 10.0


class Admission:
    """Lets clients in, or not.

    Args:
        loop: The loop that waits for them.
        config: What they have to show.

    Attributes:
        auth_timeout_s: How long after it has connected a client must have shown its token.

    Raises:
        SetupError: Certificates or tokens cannot be had, or are asked for by halves.
    """

    def __init__(self, loop: EventLoop, config: AdmissionConfig) -> None:
        self._loop = loop
        self._config = config
        self._queue = HandshakeQueue(loop)
        self.auth_timeout_s = config.auth_timeout_s
        self._tls = self._load_tls()
        self._tokens = self._load_tokens()

    @property
    def wants_token(self) -> bool:
        """Whether a client must show a token."""
        return self._tokens is not None

    def first_frame_bytes(self, max_frame_bytes: int) -> int:
        """The longest first frame, where all others may have `max_frame_bytes`."""
        return min(max_frame_bytes, MAX_AUTH_FRAME_BYTES) if self.wants_token else max_frame_bytes

    def open_stream(
        self,
        sock: socket.socket,
        name: str,
        on_data: OnData,
        on_end: OnEvent,
        on_flushed: OnEvent,
    ) -> Stream | TlsStream:
        """Opens a new client's stream; see `Stream` and `TlsStream`."""
        if self._tls is None:
            return Stream(self._loop, sock, on_data, on_end, on_flushed)
        return TlsStream(
            self._loop,
            sock,
            name,
            self._tls,
            on_data=on_data,
            on_end=on_end,
            on_flushed=on_flushed,
        )

    def greet(self, body: bytes) -> bytearray | None:
        """Looks at a client's first frame, and lets the client in.

        A client that shows a token to a server that wants none is let in too, so that one
        client's settings do for all its servers.

        Returns:
            The frame's reply; None if it is no auth frame, but something to be done.

        Raises:
            UnauthorizedError: The client is not let in.
        """
        auth = parse_auth(body)
        if self._tokens is not None:
            if auth is None:
                raise UnauthorizedError
            self._tokens.check(auth.token, datetime.now(UTC))
        return encode_auth_reply(auth) if auth else None

    def reload(self) -> None:
        """Reads certificates and tokens anew; what cannot be used leaves the old in force."""
        try:
            tls, tokens = self._load_tls(), self._load_tokens()
        except SetupError as error:
            logger.error("certificates and tokens stay as they were: %s", error)
            return
        self._tls, self._tokens = tls, tokens
        if tls:
            logger.info(
                "new connections get the certificate that %s has now", self._config.tls_cert
            )
        if tokens:
            logger.info("%d tokens are let in from now on", len(tokens))

    def warn(self, host: str) -> None:
        """Says in the log what others can do who reach this address."""
        if _is_loopback(host):
            return
        if self._tls is None and self._tokens is None:
            logger.warning(
                "anyone who can reach %s may ask and read along: there is neither --tls_cert nor "
                "--auth_token_file",
                host,
            )
        elif self._tls is None:
            logger.warning("tokens come to %s in clear: there is no --tls_cert", host)

    def _load_tls(self) -> TlsTerms | None:
        config = self._config
        if config.tls_cert is None or config.tls_key is None:
            if config.tls_cert or config.tls_key or config.tls_client_ca:
                raise SetupError("--tls_cert and --tls_key are needed together")
            return None
        return TlsTerms(
            context=server_context(config.tls_cert, config.tls_key, config.tls_client_ca),
            queue=self._queue,
            handshake_timeout_s=config.handshake_timeout_s,
            plain_reply=bytes(encode_error(NULL_ID, TlsRequiredError())),
        )

    def _load_tokens(self) -> TokenSet | None:
        return load_tokens(self._config.token_file) if self._config.token_file else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
