"""Calls, and tickets of calls, for the tests of what carries them."""

import math

from qa_service.server.scheduling.call import Call, Scope
from qa_service.server.scheduling.ticket import Ticket
from qa_service.wire.messages import Request


def make_call(
    arrived_s=0.0, *, question="q?", text="t", deadline_s=math.inf, on_settled=None, flow="",
    weight=1.0, trace_id="", max_timeout_s=math.inf, **fields
):  # fmt: skip
    """A request; its outcome goes to `on_settled`."""
    scope = Scope(arrived_s, deadline_s, flow, weight, trace_id, max_timeout_s=max_timeout_s)
    call = Call(Request(question, text, **fields), scope)
    if on_settled:
        call.then(on_settled)
    return call


def make_ticket(
    arrived_s=0.0, *, tokens=100, core=None, finish=(0.0, 0), cost=None, turn_cost=0.0,
    min_turn_cost=0.0, number=-1, attempts=0, **fields
):  # fmt: skip
    """A ticket of a request of this many tokens, that cost as much."""
    ticket = Ticket(make_call(arrived_s, **fields), tokens, core, finish)
    ticket.cost = float(tokens if cost is None else cost)
    ticket.turn_cost = max(ticket.cost, turn_cost)
    ticket.min_turn_cost = min_turn_cost
    ticket.number, ticket.attempts = number, attempts
    return ticket
