"""The gateway's side of TLS: the server's own certificate, read again when the server reads it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import grpc

from qa_service.errors import SetupError
from qa_service.net.tls import server_context

logger = logging.getLogger(__name__)


class Credentials:
    """What new connections are shown: PEM files, which must be usable.

    With `client_ca`, one of its certificates must have signed a client's.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._paths = (cert, key, client_ca)
        self._latest = self._read()
        self._num_reloads = 0

    def make(self) -> grpc.ServerCredentials:
        """Credentials for a server, which takes the latest certificate at each handshake."""
        wants_certificates = self._paths[2] is not None
        return grpc.dynamic_ssl_server_credentials(
            self._latest, lambda: self._latest, wants_certificates
        )

    def reload(self) -> None:
        """Reads the files again; if they are faulty, the certificates in use stay.

        A thread reads, since a mount may hang; the latest reload to begin counts.
        """
        self._num_reloads += 1
        number = self._num_reloads

        def read() -> None:
            try:
                latest = self._read()
            except (SetupError, OSError) as error:
                logger.error("certificates are unchanged: %s", error)
                return
            if number == self._num_reloads:
                self._latest = latest

        threading.Thread(target=read, daemon=True).start()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._paths
        server_context(cert, key, client_ca)  # says in words what is wrong
        authorities = client_ca.read_bytes() if client_ca else None
        pair = (key.read_bytes(), cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], authorities)
