"""Authenticates clients by their tokens.

Tokens are read when the server starts, and again at a reload, which holds for clients that
authenticate later.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from qa_service.server.front.connection_options import AuthOptions
from qa_service.server.front.tokens import Grant, TokenSet, load_tokens

logger = logging.getLogger(__name__)


class Authenticator:
    """Checks clients' tokens.

    Raises:
        SetupError: The tokens cannot be read.
    """

    def __init__(self, options: AuthOptions) -> None:
        self._token_file = options.auth_token_file
        self._tokens = self.load()

    @property
    def is_required(self) -> bool:
        """Whether a client must send a token."""
        return self._tokens is not None

    def authenticate(self, token: str) -> Grant | None:
        """Returns what a token grants; None if no token is required, whatever the client sent.

        Raises:
            UnauthorizedError: The token is unknown or expired.
        """
        return self._tokens.check(token, datetime.now(UTC)) if self._tokens is not None else None

    def load(self) -> TokenSet | None:
        """Reads the tokens; None if none is required.

        Raises:
            SetupError: The file cannot be used.
        """
        return load_tokens(self._token_file) if self._token_file else None

    def use(self, tokens: TokenSet | None) -> None:
        """Accepts these tokens from now on."""
        self._tokens = tokens
        if tokens:
            logger.info("%d tokens are accepted from now on", len(tokens))
