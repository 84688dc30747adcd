"""What the tests of services share: a clock that is set by hand, and a service that remembers."""

import math
from functools import partial

from qa_service.net.timers import TimerQueue
from qa_service.server.scheduling.call import Call, Scope
from qa_service.wire.messages import Answer, Answered, Request, Timings

TEXT = "Ada wrote the notes in London."
ANSWER = Answer("Ada", 0.9, 0, 3)
NO_ANSWER = Answer("", 0.8, None, None)
TIMINGS = Timings(1.0, 20.0)


class ManualClock:
    """Time stands still until it is moved on; then the timers that are due run in their order."""

    def __init__(self):
        self.time_s, self.timers, self.marks = 100.0, TimerQueue(), 0
        self.last_pause_s = -math.inf

    def mark(self):
        self.marks += 1

    def now_s(self):
        return self.time_s

    def call_at(self, when_s, callback):
        return self.timers.add(when_s, callback)

    def call_soon(self, callback):
        raise AssertionError

    def watch(self, *_):
        """No socket of a test is ever ready."""

    def advance(self, seconds):
        self.time_s += seconds
        while callback := self.timers.pop_due(self.time_s):
            callback()

    def pause(self, seconds):
        """Time passes in which nothing ran."""
        self.last_pause_s = self.time_s + seconds
        self.advance(seconds)


class LoopClock(ManualClock):
    """One whose rounds are run by hand too."""

    def __init__(self):
        super().__init__()
        self.soon = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def run_soon(self):
        while self.soon:
            self.soon.pop(0)()


class ThreadClock(ManualClock):
    """One whose threads run when the test says.

    Attributes:
        threads: Those that have not run yet.
    """

    def __init__(self):
        super().__init__()
        self.threads = []

    def run_in_thread(self, work, on_end):
        self.threads.append((work, on_end))

    def run_thread(self, number=0):
        work, on_end = self.threads.pop(number)
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        on_end(outcome)


class FakeService:
    """Remembers what is submitted and cancelled; fails new calls if the test says so."""

    def __init__(self):
        self.submitted, self.cancelled, self.refuse = [], [], None

    def submit(self, call):
        self.submitted.append(call)
        call.on_end(self._note)
        if self.refuse:
            call.fail(self.refuse)

    def _note(self, call):
        if call.is_cancelled:
            self.cancelled.append(call)

    def resolve(self, answer=ANSWER, number=-1):
        self.submitted[number].resolve([answer], TIMINGS)


class FakeDispatcher:
    """Remembers what is submitted, cancelled and reserved; refuses when the test says.

    A ticket costs as much as it has tokens.
    """

    alive, cost_limit = 2, math.inf

    def __init__(self, model):
        self.pool, self.model, self.refuse = self, model, None
        self.submitted, self.cancelled, self.reserved = [], [], 0.0

    def admit(self, ticket, *, is_long):
        assert is_long
        ticket.cost = self.cost_of(ticket.tokens)
        if self.refuse:
            raise self.refuse

    def submit(self, call):
        self.submitted.append(call)

    def submit_segment(self, ticket):
        assert ticket.finish == (7.0, 7)
        ticket.cost = self.cost_of(ticket.tokens)
        self.submitted.append(ticket)
        ticket.call.on_end(partial(self._note, ticket))

    def _note(self, ticket, call):
        if call.is_cancelled:
            self.cancelled.append(ticket)

    def begin(self, ticket):
        ticket.finish = (7.0, 7)
        self.reserve(ticket, ticket.cost)

    def reserve(self, _, cost):
        self.reserved += cost

    def cost_of(self, tokens):
        return float(tokens)

    def can_finish(self, _, cost):
        return cost <= self.cost_limit


class Client:
    """Submits requests to a service, and keeps what each came to."""

    def __init__(self, service):
        self.service = service
        self.outcomes = {}

    def ask(self, question="Who?", text=TEXT, *, deadline_s=math.inf, **fields):
        names = {"flow", "weight", "name"}
        given = {name: fields.pop(name) for name in names & fields.keys()}
        call = Call(Request(question, text, **fields), Scope(100.0, deadline_s, **given))
        call.then(partial(self._on_settled, call))
        self.service.submit(call)
        return call

    def _on_settled(self, call, outcome):
        assert call not in self.outcomes
        self.outcomes[call] = outcome

    def of(self, call):
        """What a request came to: its best answer, or its error's code; None if it waits."""
        outcome = self.outcomes.get(call)
        if outcome is None:
            return None
        return outcome.answers[0] if isinstance(outcome, Answered) else outcome.code
