"""The service at the end of the chain: one version's queue, scheduler and instances.

    submit ──▶ Scheduler ──dispatch──▶ Instances
                                           │
    resolve, fail ◀──on_results, on_lost───┘

The ticket of every call is in exactly one place, the scheduler or an instance, until the call ends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from qa_service.errors import (
    ERROR_KINDS,
    DeadlineExceededError,
    QaError,
    UnavailableError,
    WorkerCrashedError,
)
from qa_service.instance.batch_cost import MIN_TURN_TOKENS, BatchRule
from qa_service.instance.worker_messages import Answers, Results
from qa_service.net.timers import Clock, LazyTimer
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.scheduling.admission import admit, admit_long
from qa_service.server.scheduling.call import Call, SegmentRead
from qa_service.server.scheduling.request_cost import Pace, estimate_cost, estimate_tokens
from qa_service.server.scheduling.scheduler import Scheduler
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.tracing import record_run
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answered, Timings
from qa_service.wire.spans import SegmentResult

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""A request fails with its third instance's death: two deaths may be a coincidence."""
MAX_MOVES = 10
"""How often a request may be put back because its instance ended before it ran it, as with a lost
node. A bound is needed because the request may have no deadline."""


class Dispatcher:
    """Queues requests, and gives them to instances in batches."""

    def __init__(
        self, clock: Clock, scheduler: Scheduler, pool: WorkerPool, metrics: ModelMetrics
    ) -> None:
        self._pace = Pace()
        self._turn_rule: BatchRule | None = None
        self._min_turn_cost = estimate_cost(MIN_TURN_TOKENS, None)
        self._clock = clock
        self._scheduler = scheduler
        self._metrics = metrics
        self._wake = LazyTimer(clock, self.dispatch)
        self._expiry = LazyTimer(clock, self._fail_expired)
        self.pool = pool

    @property
    def queue_length(self) -> int:
        return len(self._scheduler)

    @property
    def waiting_s(self) -> float:
        """How long one instance would need for the queue."""
        return self._scheduler.flows.cost * self._pace.value / 1e3

    def submit(self, call: Call) -> None:
        """Queues a call; fails it if there is no room or no time for it."""
        ticket = Ticket(call, estimate_tokens(call.request))
        try:
            self.admit(ticket)
            self._add(ticket)
        except QaError as error:
            call.fail(error)

    def submit_segment(self, segment: Ticket) -> None:
        rule = self._rule()
        segment.cost = segment.turn_cost = estimate_cost(segment.tokens, rule)
        segment.min_turn_cost = self._turn_cost(rule)
        self._add(segment)

    def admit(self, ticket: Ticket, *, is_long: bool = False) -> None:
        """Estimates a request's cost, and checks that it can be done in time.

        Raises:
            DeadlineExceededError: The deadline has passed, or is too soon even if nothing waits.
            TextTooLongError: The text has too many tokens, or takes longer than any request may.
            QueueFullError: The queue is full, or too long for the request's deadline.
        """
        if self._scheduler.is_full():
            self.dispatch()  # instances may be idle for calls that came in this round
        rule = self._rule()
        ticket.cost = estimate_cost(ticket.tokens, rule)
        ticket.min_turn_cost = self._turn_cost(rule)
        ticket.turn_cost = max(ticket.cost, ticket.min_turn_cost)
        # With an empty queue, a slow pace from earlier load does not count.
        pace = self._pace.value
        if pace > 1.0 and not self._scheduler:
            pace = 1.0
        ms_per_cost = pace / self._num_instances()
        check = admit_long if is_long else admit
        check(ticket, self._scheduler, ms_per_cost=ms_per_cost, time_ms=self._time_ms(ticket))

    def _num_instances(self) -> int:
        """Those that are alive; estimates take one for granted."""
        return self.pool.alive or 1

    def begin(self, text: Ticket) -> None:
        self._scheduler.begin(text)

    def reserve(self, text: Ticket, cost: float) -> None:
        self._scheduler.flows.reserve(text, cost)

    def can_finish(self, text: Ticket, cost: float) -> bool:
        """Whether the text's rest, of that cost, can be done in time if nothing else runs."""
        return cost * self._pace.value / self._num_instances() <= self._time_ms(text)

    def cost_of(self, tokens: int) -> float:
        """Estimates what tokens cost, in milliseconds of an instance."""
        return estimate_cost(tokens, self._rule())

    def _turn_cost(self, rule: BatchRule | None) -> float:
        """A turn's minimum cost; computed again only if the rule is another."""
        if rule is not self._turn_rule:
            self._turn_rule = rule
            self._min_turn_cost = estimate_cost(MIN_TURN_TOKENS, rule)
        return self._min_turn_cost

    def _time_ms(self, ticket: Ticket) -> float:
        return (ticket.deadline_s - self._clock.now_s()) * 1e3

    def _rule(self) -> BatchRule | None:
        for worker in self.pool.workers:
            return worker.rule
        return None

    def dispatch(self) -> None:
        """Gives batches to the instances that can take one now, the idle ones first.

        The loop calls this at the end of each round, when all of the round's calls are queued.
        """
        if not self._scheduler:
            return
        now_s = self._clock.now_s()
        if self._scheduler.next_deadline_s() <= now_s:
            self._fail_expired()
        while self._scheduler and self._dispatch_one(now_s):
            pass
        if self._scheduler:  # later, unless an instance sends results before
            departure_s = self._scheduler.next_departure_s() or 0.0
            turns_s = [max(worker.takes_from_s(), departure_s) for worker in self.pool.workers]
            self._wake.arm(min([turn_s for turn_s in turns_s if turn_s > now_s], default=math.inf))

    def on_results(self, batch: Sequence[Ticket], results: Results) -> None:
        now_s = self._clock.now_s()
        metrics, started_s = self._metrics, results.started_s
        metrics.count_batch(len(batch), results.inference_ms, results.stages_ms)
        took_ms = max(results.inference_ms, (now_s - started_s) * 1e3)
        if started_s >= self._clock.last_pause_s:
            self._pace.observe(sum([ticket.cost for ticket in batch]), took_ms)
        for ticket, outcome in zip(batch, results.outcomes, strict=True):
            call = ticket.call
            queue_ms = round((started_s - ticket.arrived_s) * 1e3, 3)
            metrics.queue_ms.observe(queue_ms)
            metrics.request_ms.observe((now_s - ticket.arrived_s) * 1e3)
            timings = Timings(queue_ms, results.inference_ms)
            if call.scope.span:
                record_run(ticket, call.scope.span, results, len(batch))
            if isinstance(outcome, Answers):
                call.settle(Answered(outcome.answers, timings))
            elif isinstance(outcome, SegmentResult):
                call.settle(SegmentRead((), timings, segment=outcome))
            else:
                call.settle(ERROR_KINDS[outcome.code](outcome.message))

    def on_lost(self, batch: Sequence[Ticket], *, were_running: bool) -> None:
        """Takes back an instance's batch when it dies.

        Requests that ran are tried again, each alone, on up to three instances: one of them may
        have killed the instance.
        """
        for ticket in batch:
            if ticket.call.is_settled:
                continue
            ticket.attempts += were_running
            if ticket.attempts == MAX_ATTEMPTS:
                ticket.call.fail(WorkerCrashedError())
                continue
            if were_running:
                logger.debug(
                    "request %s: its instance died; it is queued again",
                    ticket.call.scope.name,
                    extra=ticket.call.scope.log_extra,
                )
                self._metrics.request_retries_total += 1
                self._scheduler.retry(ticket)
            else:
                ticket.moves += 1
                if ticket.moves > MAX_MOVES:
                    ticket.call.fail(UnavailableError())
                    continue
                self._scheduler.put_back(ticket)
            self._expiry.arm(ticket.deadline_s)

    def _add(self, ticket: Ticket) -> None:
        self._scheduler.add(ticket)
        self._expiry.arm(ticket.deadline_s)
        ticket.call.on_end(lambda _: self._scheduler.remove(ticket))

    def _dispatch_one(self, now_s: float) -> bool:
        """Gives an instance a batch; returns whether there was one."""
        workers = [(w.takes_from_s(), w.number, w) for w in self.pool.workers]
        for _, _, worker in sorted([item for item in workers if item[0] <= now_s]):
            batch = self._scheduler.next_batch(
                now_s, worker.rule, is_idle=worker.is_idle, num_instances=self._num_instances()
            )
            if not batch:
                continue
            for ticket in batch if logger.isEnabledFor(logging.DEBUG) else ():
                scope = ticket.call.scope
                words = "request %s: given to instance %d"
                logger.debug(words, scope.name, worker.number, extra=scope.log_extra)
            worker.run(batch)
            return True
        return False

    def _fail_expired(self) -> None:
        for ticket in self._scheduler.expired(self._clock.now_s()):
            ticket.call.fail(DeadlineExceededError())
        self._expiry.arm(self._scheduler.next_deadline_s())
