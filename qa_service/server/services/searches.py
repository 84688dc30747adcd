"""What one search process has to do, in each client's share. Sans-IO.

    submit ──▶ Scheduler ──▶ running ──result──▶ on_result
                  ▲             ├──the process dies──▶ once more, then failed as `unavailable`
                  └─────────────┤
                                └──over `search_timeout_ms`──▶ failed; the process is replaced

A call's deadline is kept while it waits and while it is searched for, even if the process hangs. A
call that has ended is not searched for. Searches wait until indexes that are to be opened are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qa_service.errors import DeadlineExceededError, UnavailableError
from qa_service.instance.batch_cost import BatchRule
from qa_service.net.timers import Clock, LazyTimer, overdue_s
from qa_service.retrieval.messages import Open, Refused, Result, Work
from qa_service.server.scheduling.call import Call
from qa_service.server.scheduling.options import QueueOptions
from qa_service.server.scheduling.scheduler import Scheduler
from qa_service.server.scheduling.ticket import Ticket

MAX_ATTEMPTS = 2
"""A search fails with its second process: one death may be a coincidence."""
MAX_DEATHS_IN_ROW = 3
"""Deaths without a result after which searches are refused while no process runs."""
FIRST_TIMES = 3
"""To open an index or to read a folder may take this many times as long as a search: the process
may have to start first, and to load a search engine's client."""
ALONE = BatchRule(max_batch_size=1)
DIED, HUNG = "its search process died", "a search took too long"

Done = Callable[[Result], None]


class Process(Protocol):
    """A search process, as `SearchProcess` is one."""

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""

    def start(self) -> None:
        """Starts it, now or as soon as it can be."""

    def ask(self, work: Work) -> int:
        """Has it do a piece of work; returns the number that the result will have."""

    def replace(self) -> None:
        """Kills it, as it hangs: it has died, and another starts."""

    def kill(self) -> None:
        """Ends it for good."""

    def reap(self) -> bool:
        """Whether it has ended."""


class SearchesListener(Protocol):
    """Hears what all searches of a process depend on."""

    def on_search_process_start(self, searches: Searches) -> None:
        """A new process is there: it has nothing open."""

    def on_search_process_death(self, searches: Searches) -> None:
        """The process has died."""

    def on_search_fault(self, work: Work, reason: str) -> None:
        """A search has ended its process, or held it for too long."""


class SearchTicket(Ticket):
    """A call that is to be searched for."""

    __slots__ = ("on_result", "work")

    def __init__(self, call: Call, work: Work, cost: float, on_result: Done) -> None:
        super().__init__(call, tokens=1)
        self.cost = self.turn_cost = cost
        self.work = work
        self.on_result = on_result


@dataclass(slots=True, eq=False)
class _Running:
    """What the process is at; without a ticket it is not for a call."""

    work: Work
    on_result: Done
    ticket: SearchTicket | None
    since_s: float


class Searches:
    """The queue before a search process, and what that is at.

    Args:
        make_process: Makes the process, which reports here.
        concurrency: How much the process does at a time.
        max_waiting: How many calls may wait.
        timeout_s: How long a search may take.
    """

    def __init__(
        self,
        clock: Clock,
        make_process: Callable[[Searches], Process],
        listener: SearchesListener,
        *,
        concurrency: int,
        max_waiting: int,
        timeout_s: float,
    ) -> None:
        self._clock = clock
        self._process = make_process(self)
        self._listener = listener
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._queue = Scheduler(QueueOptions(max_queue_size=max_waiting))
        self._first: deque[tuple[Work, Done]] = deque()
        self._running: dict[int, _Running] = {}
        self._expiry = LazyTimer(clock, self._fail_expired)
        self._overdue = LazyTimer(clock, self._give_up)
        self._has_started = False
        self._deaths_in_row = 0

    @property
    def num_waiting(self) -> int:
        """How many calls wait."""
        return len(self._queue)

    def submit(self, call: Call, work: Work, on_result: Done, cost: float = 1.0) -> None:
        """Queues a call's search, whose result comes unless the call ends before.

        Args:
            cost: What it takes of its client's share.

        Raises:
            QueueFullError: As many calls wait as may.
            UnavailableError: The process dies again and again.
        """
        if self._is_failing:
            raise UnavailableError("this cannot be searched now")
        ticket = SearchTicket(call, work, cost, on_result)
        self._queue.add(ticket)
        call.on_end(lambda _: self._queue.remove(ticket))
        self._expiry.arm(ticket.deadline_s)
        self._run_next()

    def run(self, work: Work, on_result: Done) -> None:
        """Has work done that is not for a call, before all calls."""
        self._first.append((work, on_result))
        self._run_next()

    def kill(self) -> None:
        """Ends the process at once; its work is lost."""
        self._process.kill()

    def reap(self) -> bool:
        """Whether the process has ended."""
        return self._process.reap()

    @property
    def _is_failing(self) -> bool:
        return self._deaths_in_row >= MAX_DEATHS_IN_ROW and not self._process.is_running

    def _run_next(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._process.start()
        while self._process.is_running and self._has_room():
            if self._first:
                work, on_result = self._first.popleft()
                self._run(work, on_result, None)
            elif batch := self._queue.next_batch(self._clock.now_s(), ALONE):
                (ticket,) = batch
                assert isinstance(ticket, SearchTicket)
                self._run(ticket.work, ticket.on_result, ticket)
            else:
                return

    def _has_room(self) -> bool:
        is_opening = any(isinstance(running.work, Open) for running in self._running.values())
        return len(self._running) < self._concurrency and not is_opening

    def _run(self, work: Work, on_result: Done, ticket: SearchTicket | None) -> None:
        running = _Running(work, on_result, ticket, self._clock.now_s())
        self._running[self._process.ask(work)] = running
        self._overdue.arm(self._deadline_s(running))
        if ticket:
            self._expiry.arm(ticket.deadline_s)

    # Reports of the process.

    def on_process_start(self) -> None:
        """A new process is there: the indexes are opened again, then searches go on."""
        self._listener.on_search_process_start(self)
        self._run_next()

    def on_result(self, number: int, result: Result) -> None:
        """Passes a result on; one that nobody waits for any more is dropped."""
        running = self._running.pop(number, None)
        if running is None:
            return
        self._deaths_in_row = 0
        if running.ticket is None or not running.ticket.call.is_settled:
            running.on_result(result)
        self._run_next()

    def on_process_death(self) -> None:
        """Searches that it had are made once more, in the next process."""
        lost, self._running = self._running, {}
        self._deaths_in_row += 1
        for running in lost.values():
            self._lose(running, DIED)
        self._listener.on_search_process_death(self)
        if self._is_failing:
            self._fail_waiting()

    def _lose(self, running: _Running, reason: str) -> None:
        ticket = running.ticket
        if ticket is None:
            running.on_result(Refused(reason, "damaged"))
            return
        self._listener.on_search_fault(running.work, reason)
        if ticket.call.is_settled:
            return
        ticket.attempts += 1
        if reason == HUNG or ticket.attempts == MAX_ATTEMPTS:
            ticket.call.fail(UnavailableError(f"the search failed: {reason}"))
        else:
            self._queue.retry(ticket)

    def _fail_waiting(self) -> None:
        while batch := self._queue.next_batch(self._clock.now_s(), ALONE):
            batch[0].call.fail(UnavailableError(f"the search failed: {DIED}"))

    # Time.

    def _give_up(self) -> None:
        """Replaces a process in which work has taken too long."""
        now_s = self._clock.now_s()
        overdue = [n for n, running in self._running.items() if self._deadline_s(running) <= now_s]
        for number in overdue:
            self._lose(self._running.pop(number), HUNG)
        if overdue:
            self._process.replace()
        elif self._running:
            self._overdue.arm(min(map(self._deadline_s, self._running.values())))

    def _deadline_s(self, running: _Running) -> float:
        """When work takes too long."""
        times = 1 if running.ticket else FIRST_TIMES
        return overdue_s(self._clock, running.since_s, times * self._timeout_s)

    def _fail_expired(self) -> None:
        now_s = self._clock.now_s()
        late: list[Ticket] = self._queue.expired(now_s)
        tickets = [running.ticket for running in self._running.values() if running.ticket]
        late += [ticket for ticket in tickets if ticket.deadline_s <= now_s]
        for ticket in late:
            ticket.call.fail(DeadlineExceededError())
        rest = [ticket.deadline_s for ticket in tickets if not ticket.call.is_settled]
        self._expiry.arm(min([self._queue.next_deadline_s(), *rest]))
