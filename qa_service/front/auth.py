"""Authentication by tokens: whether a client may ask.

Tokens are read when the server starts and again at a reload: a small file, so that a moment
of the loop's time is enough. A reload holds for clients that authenticate from then on.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from qa_service.front.options import AuthOptions
from qa_service.front.tokens import Grant, TokenSet, load_tokens

logger = logging.getLogger(__name__)


class Authenticator:
    """Accepts clients' tokens, or not.

    Attributes:
        timeout_s: How long a client may take to authenticate, from when it connects.

    Raises:
        SetupError: The tokens cannot be read.
    """

    def __init__(self, options: AuthOptions) -> None:
        self._token_file = options.auth_token_file
        self.timeout_s = options.auth_timeout_ms / 1e3
        self._tokens = self.load()

    @property
    def is_required(self) -> bool:
        """Whether a client must show a token."""
        return self._tokens is not None

    def authenticate(self, token: str) -> Grant | None:
        """Accepts a token; any, where none is required, so that a client's settings do for all.

        Returns:
            What the token grants; None where none is required.

        Raises:
            UnauthorizedError: It is unknown or expired.
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
