"""Certificates for the tests, made on the spot, of authorities nobody else trusts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import Lazy

if TYPE_CHECKING:
    import trustme


class Certificates:
    """The certificate of an authority, and those of a server at localhost and of a client."""

    def __init__(self, folder: Path) -> None:
        authority = Lazy("trustme").CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = _issue(authority, folder / "server", "localhost")
        self.client_cert, self.client_key = _issue(authority, folder / "client", "ada@example.org")

    @property
    def server_flags(self) -> tuple[str, ...]:
        """The flags that have a server speak TLS."""
        return ("--tls_cert", str(self.cert), "--tls_key", str(self.key))

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """What a client needs that trusts the server."""
        context = ssl.create_default_context(cafile=self.ca)
        if with_certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


def _issue(authority: trustme.CA, stem: Path, *names: str) -> tuple[Path, Path]:
    issued = authority.issue_cert(*names)
    cert, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(cert, append=number > 0)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    return cert, key
