"""Reads the file of tokens, and authenticates clients by theirs.

    # who it is for: a comment
    3bQ1…                                    a token that never expires
    Zt0x…  2027-01-31T00:00:00Z              a token that expires then
    9fKd…  name=gateway weight=8 max_priority=2    a token of many users
    Kd2v…  admin                             a token that may load and unload models

Only their SHA-256 is kept. A client's token is compared with every entry, in constant time, so that
the time reveals nothing about the entries; so their number is bounded. Tokens are random, so a fast
hash does not make them easier to guess.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from qa_service.errors import SetupError, UnauthorizedError
from qa_service.files import decode, read_file
from qa_service.server.front.connection_options import AuthOptions
from qa_service.wire.messages import MAX_PRIORITY

logger = logging.getLogger(__name__)

MAX_TOKENS = 1000
"""The loop compares each client's token with all of them."""
MAX_TOKEN_BYTES = 1024
"""A token fits a client's first frame and an HTTP head."""
SHORT_TOKEN_CHARS = 16
"""Shorter ones hold less than 64 bits in hexadecimal and are warned of."""
ADMIN = "admin"


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights and the share of a client: by its token, or by default.

    Attributes:
        name: Requests of one name share one flow. By default made of the token's digest.
        max_priority: Higher priorities are lowered to it.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = ""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    max_priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = MAX_PRIORITY
    admin: bool = False

    def share(self, priority: int) -> tuple[str, float]:
        """A request's flow, one for all its client's, and weight: a share a step of priority."""
        return self.name, self.weight * (1 + min(priority, self.max_priority))


class TokenEntry(msgspec.Struct, frozen=True):
    """An accepted token.

    Attributes:
        expires: With a time zone; None for never.
    """

    digest: bytes
    grant: Grant
    expires: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


Tokens = tuple[TokenEntry, ...]


def grant_of(tokens: Tokens, token: str, now: datetime) -> Grant:
    """What a token grants; raises `UnauthorizedError` if it is unknown or expired."""
    digest = _digest(token)
    found = [entry for entry in tokens if hmac.compare_digest(entry.digest, digest)]
    if not found:
        raise UnauthorizedError("the token is not accepted" if token else "no token was sent")
    good = [entry.grant for entry in found if not entry.has_expired(now)]
    if not good:
        raise UnauthorizedError("the token has expired")
    return good[0]


def load_tokens(path: Path) -> Tokens:
    """Reads a file of tokens, or raises `SetupError`; warns if others can read it, one is short."""
    try:
        mode = path.stat().st_mode
        lines = decode(read_file(path)).splitlines()
    except OSError as error:
        raise SetupError(f"cannot read --auth_token_file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise SetupError(f"--auth_token_file {path} is not a text in {encoding}") from None
    words = ((number, line.split()) for number, line in enumerate(lines, 1))
    listed = [(number, parts) for number, parts in words if parts and parts[0][0] != "#"]
    entries = [
        _parse_line(f"--auth_token_file {path}, line {number}", parts) for number, parts in listed
    ]
    if not 1 <= len(entries) <= MAX_TOKENS:
        raise SetupError(
            f"--auth_token_file {path} holds {len(entries)} tokens; 1 to {MAX_TOKENS} can be used"
        )
    if mode & stat.S_IROTH:
        logger.warning("every user can read the tokens in %s; chmod 600 it", path)
    if any(len(parts[0]) < SHORT_TOKEN_CHARS for _, parts in listed):
        logger.warning("a token in %s is so short that it can be guessed", path)
    return tuple(entries)


def _parse_line(place: str, parts: Sequence[str]) -> TokenEntry:
    """Parses a line; no error message repeats its token."""
    token, *rest = parts
    if len(token.encode()) > MAX_TOKEN_BYTES:
        raise SetupError(f"{place}: longer than {MAX_TOKEN_BYTES} bytes")
    rest = [f"{word}=true" if word == ADMIN else word for word in rest]
    times = [word for word in rest if "=" not in word]
    if len(times) > 1:
        raise SetupError(f"{place}: more than a token, the time it expires, and name=value words")
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    try:
        grant = msgspec.convert(fields, Grant, strict=False)
    except msgspec.ValidationError as error:
        raise SetupError(f"{place}: {error}") from None
    digest, expires = _digest(token), None
    if not grant.name:
        grant = msgspec.structs.replace(grant, name=digest.hex()[:8])
    for word in times:
        with contextlib.suppress(ValueError):
            expires = datetime.fromisoformat(word)
        if expires is None or expires.tzinfo is None:
            raise SetupError(f"{place}: its expiry is not a time like 2027-01-31T00:00:00Z")
    return TokenEntry(digest, grant, expires)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Authenticator:
    """Checks clients' tokens, as they were read at the start or at the last reload."""

    def __init__(self, options: AuthOptions) -> None:
        self._token_file = options.auth_token_file
        self._tokens = self.load()

    @property
    def is_required(self) -> bool:
        return self._tokens is not None

    def authenticate(self, token: str) -> Grant | None:
        """What a token grants, as `grant_of`; None if none is required, whatever was sent."""
        if self._tokens is None:
            return None
        return grant_of(self._tokens, token, datetime.now(UTC))

    def load(self) -> Tokens | None:
        """Reads the tokens, or raises `SetupError`; None if none is required."""
        return load_tokens(self._token_file) if self._token_file else None

    def use(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        if tokens:
            logger.info("%d tokens are accepted from now on", len(tokens))
