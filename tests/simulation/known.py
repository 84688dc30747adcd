"""Faults that are known and not mended yet: checks that would find them look away."""

from __future__ import annotations

KNOWN = {
    "25.1": "weights do nothing while batches are made",
    "25.2": "a tiny weight, or many priorities, halve others' shares",
    "25.4": "an innocent request whose retry meets a second kill is failed",
    "25.5": "an empty queue is full",
    "25.8": "an exception in a handler closes the connection",
    "25.9": "a draining server keeps connections alive; SIGHUP during the start is lost",
    "25.10": "the port is closed until every model is ready",
    "25.11": "CacheStore.put counts a key twice",
}
"""By the item of the issue. Remove an entry with its fix; `--known none` runs without any."""
