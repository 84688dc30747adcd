"""How a client program connects and authenticates: TLS and a token, from flags or the environment.

A token is a secret, and every user of a machine sees a program's arguments. So it comes from a file
or from the environment, and no flag takes it.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from qa_service.client import (
    MAX_RESPONSE_BYTES,
    REFUSALS,
    QaClient,
    QaClientError,
    QaServerError,
    Terms,
    tls_context,
)
from qa_service.files import read_text

TOKEN_VARIABLE = "QA_SERVER_TOKEN"

FLAG_REFUSALS = REFUSALS | {"unknown_collection", "unknown_model"}
"""Errors of what a program's flags name: every further question would get them too."""
_HINTS = {
    "unauthorized": f"; --token_file or {TOKEN_VARIABLE} gives the token",
    "tls_required": "; use --tls or --ca_file",
}
"""The flag that helps, by the error's code."""


def with_hint(error: Exception) -> str:
    """An error in one line, with the flag that helps."""
    hint = _HINTS.get(error.code, "") if isinstance(error, QaServerError) else ""
    return f"{error}{hint}"


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect and authenticate; it can be sent to another process.

    Attributes:
        ca_file: This and the next two are as in `tls_context`.
        token: None sends none.
    """

    tls: bool = False
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    token: str | None = field(default=None, repr=False)

    @staticmethod
    def add_flags(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--tls", action="store_true", help="use TLS; so do the next three flags")
        add("--ca_file", type=Path, help="the authority of the server's certificate, in PEM")
        add("--client_cert", type=Path, help="a certificate of your own, in PEM")
        add("--client_key", type=Path, help="its private key, if that is in another file")
        token = f"a file with the token to send; without it, {TOKEN_VARIABLE} is sent if it is set"
        add("--token_file", type=Path, help=token)

    @classmethod
    def from_flags(cls, flags: dict[str, object]) -> Self:
        """Removes its flags from a program's.

        Raises:
            OSError: The token's file cannot be read.
            QaClientError: The token's file is not a text, or holds no token.
        """
        files = {name: flags.pop(name) for name in ("ca_file", "client_cert", "client_key")}
        token, token_file = os.environ.get(TOKEN_VARIABLE) or None, flags.pop("token_file")
        if isinstance(token_file, Path):  # it may have the format of a server's
            try:
                lines = [line.split() for line in read_text(token_file).splitlines()]
            except UnicodeDecodeError as error:
                raise QaClientError(f"{token_file} is not a text: {error}") from None
            tokens = [words[0] for words in lines if words and not words[0].startswith("#")]
            if not tokens:
                raise QaClientError(f"{token_file} holds no token")
            token = tokens[0]
        tls = bool(flags.pop("tls")) or any(files.values())
        return cls(tls=tls, token=token, **files)  # type: ignore[arg-type]

    def terms(self, timeout_s: float) -> Terms:
        """Those of a connection. Raises `TlsError` for an unusable file."""
        files = self.ca_file, self.client_cert, self.client_key
        tls = tls_context(*files) if self.tls else None
        return Terms(timeout_s, MAX_RESPONSE_BYTES, tls, self.token)

    def client(self, host: str, port: int, timeout_s: float) -> QaClient:
        """A client that connects so. Raises `TlsError` for an unusable file."""
        terms = self.terms(timeout_s)
        return QaClient(host, port, timeout_s, tls=terms.tls, token=self.token)
