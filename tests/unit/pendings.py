"""Pending requests for the tests of what carries them."""

from __future__ import annotations

import math

from qa_service.scheduling.pending import PendingRequest
from qa_service.wire.messages import Request


def make_pending(
    arrived_s=0.0, *, tokens=100, text="t", deadline_s=math.inf, on_settled=None, **fields
):
    """A request of so many tokens, that cost as much; its outcome goes to `on_settled`."""
    listener = on_settled or (lambda pending, outcome: None)
    fields = {"cost": float(tokens), **fields}
    request = Request("q?", text)
    return PendingRequest(request, arrived_s, deadline_s, listener, tokens=tokens, **fields)
