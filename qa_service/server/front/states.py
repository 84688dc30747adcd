"""The states and the timeouts of a connection."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """A connection's state; a probing one has sent only queries that need no token."""

    UNAUTHENTICATED = auto()
    PROBING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()

    __hash__ = object.__hash__  # a state is looked up for each message, and Enum's own is slow


class Timeout(Enum):
    """What a client is late with; LEAVING closes an old connection."""

    AUTHENTICATING = auto()
    SENDING = auto()
    READING = auto()
    ASKING = auto()
    LEAVING = auto()
