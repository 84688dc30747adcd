"""TLS without a socket: ciphertext in, plain bytes out, and back; loads the certificates.

    socket bytes ──feed──▶ incoming ┐            ┌──▶ read ──▶ plain bytes
                                    ├─ SSLObject ┤
    socket bytes ◀─output── outgoing┘            └─── write ◀── plain bytes

Without a socket, nothing here waits: TLS's own messages (handshake, alerts, key updates) are in
`output` after each step, and missing bytes come with the next `feed`. Versions are 1.2 and later;
renegotiation, which only 1.2 has, is refused.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.files import open_regular

RECORD_BYTES = 16384
"""The maximum of plain bytes in one record (RFC 8446, 5.1)."""

HANDSHAKE_RECORD = 0x16
"""The first byte of a connection that speaks TLS (RFC 8446, 5.1)."""


def server_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Loads a server's certificates.

    Args:
        cert: PEM: the certificate, then the intermediate ones.
        key: PEM, without a passphrase.
        client_ca: PEM; one of these must have signed a client's certificate. None asks for no
            certificate.

    Raises:
        SetupError: A file cannot be read, has another format, or does not fit another file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    for flag, path in (("cert", cert), ("key", key), ("client_ca", client_ca)):
        try:  # OpenSSL's errors do not name the file that cannot be read
            if path is not None:
                open_regular(path).close()
        except OSError as error:
            raise SetupError(f"cannot read --tls_{flag} {path}: {error.strerror}") from None

    def refuse_to_ask() -> bytes:
        raise SetupError(f"--tls_key {key} has a passphrase; use a key without one")

    try:
        context.load_cert_chain(cert, key, password=refuse_to_ask)
    except ssl.SSLError as error:
        raise SetupError(f"--tls_cert {cert} and --tls_key {key}: {_mismatch(error)}") from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError:
            raise SetupError(f"--tls_client_ca {client_ca}: holds no certificate in PEM") from None
    return context


def _mismatch(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if error.reason in {"EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
        return "the certificate is too weak; make one with a P-256 key and SHA-256"
    return "not a certificate and its private key in PEM"


class TlsSession:
    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_ended = False

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Continues the handshake with the bytes it has; returns whether it is complete.

        Raises:
            ssl.SSLError: The handshake failed; `output` may hold an alert for the peer.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bytes:
        """Takes out the plain bytes of all complete records; raises `ssl.SSLError` for another."""
        pieces = []
        # An incomplete record is inside the SSLObject and not pending, so this ends.
        while (self._incoming.pending or self._ssl.pending()) and not self.has_ended:
            try:
                piece = self._ssl.read(RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            self.has_ended = not piece
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, data: bytes | bytearray) -> None:
        """Encrypts data; the records are in `output`."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += self._ssl.write(view[done : done + RECORD_BYTES])

    def say_goodbye(self) -> None:
        """Sends close_notify, so that the peer knows that nothing was cut off."""
        with contextlib.suppress(ssl.SSLError):  # the peer has not sent its own, and need not
            self._ssl.unwrap()

    def output(self) -> bytes:
        return self._outgoing.read()

    def free(self) -> None:
        """Frees its memory now: a stream and its owner are a cycle, which is collected late."""
        del self._ssl, self._incoming, self._outgoing
