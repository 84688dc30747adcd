"""The states of a connection, and what its client can be late with."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """Where a connection is in its life; a probing one has asked only what takes no token."""

    UNAUTHENTICATED = auto()
    PROBING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Timeout(Enum):
    """What a client is late with; leaving is what an old connection is to do."""

    AUTHENTICATING = auto()
    SENDING = auto()
    READING = auto()
    ASKING = auto()
    LEAVING = auto()
