"""A search process, and what waits for it.

    submit ──▶ clients in turn ──▶ running ──result──▶ on_result
                  ▲                   ├──the process dies──▶ once more, then failed as `unavailable`
                  └───────────────────┤
                                      └──over its time──▶ failed; the process is replaced

Clients have turns, a search each, so that none waits for another's many. How many calls may wait is
bounded. A call's deadline is kept while it waits and while it is searched for, even if the process
hangs. A call that has ended is not searched for. Searches wait until indexes that are to be opened
are open.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from qa_service.child_program import start_program
from qa_service.errors import QueueFullError, UnavailableError
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import LazyTimer
from qa_service.retrieval.search_messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Open,
    Refused,
    Result,
    Work,
    encode,
    reply_decoder,
)
from qa_service.server.children.child import Child, Launch
from qa_service.server.scheduling.call import Call, fail_expired

SEARCH_PROGRAM = "qa_service.retrieval.search_main"
MAX_BACKOFF_S = 1.0
"""Searches wait for a restart, which takes a fifth of a second of a core."""
MAX_ATTEMPTS = 2
"""A search fails with its second process: one death may be a coincidence."""
MAX_DEATHS_IN_ROW = 3
"""Deaths without a result after which searches are refused while no process runs."""
FIRST_TIMES = 3
"""To open an index or to read a folder may take this many times as long as a search: the process
may have to start first, and to load a search engine's client."""
DIED, HUNG = "its search process died", "a search took too long"

Done = Callable[[Result], None]


def search_program(
    logs: LogOptions, encoder: Path, num_threads: int, *, only_checks: bool = False
) -> Launch:
    """What starts a search process.

    Args:
        only_checks: Whether it writes nothing, and opens no index on disk.
    """
    options = [str(num_threads), str(encoder), logs.log_level, logs.log_format]
    return partial(start_program, SEARCH_PROGRAM, *options, *(["check"] if only_checks else []))


class _Search(msgspec.Struct, eq=False):
    """A piece of work that waits or runs; it may be for no call."""

    work: Work
    on_result: Done
    call: Call | None = None
    attempts: int = 0


@dataclass(eq=False)
class Searches:
    """A search process and its queue.

    Args:
        name: Of what is searched, for the log.
        on_start: A new process is there: it has nothing open.
        on_fault: A search has ended its process, or held it for too long.
    """

    loop: EventLoop
    name: str
    launch: Launch
    concurrency: int
    max_waiting: int
    timeout_s: float
    on_start: Callable[[Searches], None]
    on_death: Callable[[Searches], None]
    on_fault: Callable[[Work, str], None]

    def __post_init__(self) -> None:
        self.child = Child(
            self.loop,
            f"the search process of {self.name}",
            self.launch,
            on_data=self._on_reply,
            max_frame_bytes=MAX_MESSAGE_BYTES,
            on_start=self._on_start,
            on_end=self._on_death,
            on_late=self._on_late,
            max_backoff_s=MAX_BACKOFF_S,
        )
        self._numbers = itertools.count()
        self._first: deque[_Search] = deque()
        """What is for no call."""
        self._waiting: dict[str, deque[_Search]] = {}
        """The line of each client; the first has the next turn."""
        self._running: dict[int, _Search] = {}
        self._expiry = LazyTimer(self.loop, self._fail_expired)
        self._has_started = False
        self._deaths_in_row = 0

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def submit(self, call: Call, work: Work, on_result: Done) -> None:
        """Queues a call's search, whose result comes unless the call ends before.

        Raises:
            QueueFullError: As many calls wait as may.
            UnavailableError: The process dies again and again.
        """
        if self._is_failing:
            raise UnavailableError("this cannot be searched now")
        if self.num_waiting >= self.max_waiting:
            raise QueueFullError
        search = _Search(work, on_result, call)
        self._waiting.setdefault(call.scope.flow, deque()).append(search)
        call.on_end(lambda _: self._drop(call.scope.flow, search))
        self._expiry.arm(call.scope.deadline_s)
        self._run_next()

    def run(self, work: Work, on_result: Done) -> None:
        """Has work done that is not for a call, before all calls."""
        self._first.append(_Search(work, on_result))
        self._run_next()

    def end(self) -> None:
        """Ends the process for good; calls that wait or are searched for are refused."""
        self.child.kill()
        for call in self._calls():
            call.fail(UnavailableError("this is not served any more"))

    @property
    def _is_failing(self) -> bool:
        return self._deaths_in_row >= MAX_DEATHS_IN_ROW and not self.child.is_running

    def _run_next(self) -> None:
        if not self._has_started:
            self._has_started = True
            self.child.try_start()
        while self.child.is_running and len(self._running) < self.concurrency:
            if any(isinstance(search.work, Open) for search in self._running.values()):
                break
            if self._first:
                search = self._first.popleft()
            elif self._waiting:  # a client's next turn comes after the others'
                flow, line = next(iter(self._waiting.items()))
                search = line.popleft()
                del self._waiting[flow]
                if line:
                    self._waiting[flow] = line
            else:
                break
            number = next(self._numbers)
            self._running[number] = search
            times = 1 if search.call else FIRST_TIMES
            self.child.expect(number, times * self.timeout_s)
            self.child.write(encode(Ask(number, search.work)))

    def _drop(self, flow: str, search: _Search) -> None:
        """Takes out a search whose call has ended, if it waits."""
        line = self._waiting.get(flow)
        if line and search in line:
            line.remove(search)
            if not line:
                del self._waiting[flow]

    def _on_start(self) -> None:
        """A new process is there: the indexes are opened again, then searches go on."""
        self.on_start(self)
        self._run_next()

    def _on_reply(self, data: bytes) -> None:
        """Passes a result on; one that nobody waits for any more is dropped."""
        reply = reply_decoder.decode(data)
        search = self._running.pop(reply.number, None)
        self.child.done(reply.number)
        if search is None:
            return
        self._deaths_in_row = 0
        if search.call is None or not search.call.is_settled:
            search.on_result(reply.result)
        self._run_next()

    def _on_death(self) -> None:
        """Searches that it had are made once more, in the next process."""
        self.child.start_later()
        lost, self._running = list(self._running.values()), {}
        self._deaths_in_row += 1
        for search in reversed(lost):  # each goes before the others
            self._lose(search, DIED)
        self.on_death(self)
        if self._is_failing:
            for call in self._calls():
                call.fail(UnavailableError(f"the search failed: {DIED}"))

    def _on_late(self, numbers: Sequence[object]) -> None:
        """Gives up what has taken too long; the process is killed."""
        for number in numbers:
            assert isinstance(number, int)
            self._lose(self._running.pop(number), HUNG)

    def _lose(self, search: _Search, reason: str) -> None:
        if search.call is None:
            search.on_result(Refused(reason, "damaged"))
            return
        self.on_fault(search.work, reason)
        search.attempts += 1
        if reason == HUNG or search.attempts == MAX_ATTEMPTS:
            search.call.fail(UnavailableError(f"the search failed: {reason}"))
        elif not search.call.is_settled:
            flow = search.call.scope.flow
            line = self._waiting.pop(flow, deque())
            line.appendleft(search)
            self._waiting = {flow: line, **self._waiting}

    def _calls(self) -> list[Call]:
        """The calls that wait or are searched for."""
        searches = itertools.chain(*self._waiting.values(), self._running.values())
        return [one.call for one in searches if one.call and not one.call.is_settled]

    def _fail_expired(self) -> None:
        self._expiry.arm(fail_expired(self._calls(), self.loop.now_s()))
