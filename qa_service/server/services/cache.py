"""A service that keeps answers, and runs equal requests once.

    submit ──kept──▶ resolved at once, `cached`
       ├──equal to one in flight──▶ waits with it ──┐
       └──else──▶ a separate run ───────────────────┴──answers──▶ kept; all who wait are resolved

Requests are equal if they ask the same model the same question of the same text for as many
answers; ids, timeouts and priorities may differ. The first leads: the run has its flow, weight and
deadline. If the leader's client goes, the run continues for the others, which wait until their own
deadlines. If the leader times out, the waiter with most time left leads the next run.

Only successes are kept. An error ends all requests that wait for the run, so that a request that
kills instances does not run once for each client that sends it.

What is kept, in `CacheStore`, is bounded in bytes; the least recently used is dropped first.

    key     BLAKE2b-128 over: model, question, text, each preceded by its length; top_k
    entry   for each answer its fields, but its words; and the source of all (msgpack)

A text itself is not kept: a client that asks again sends it, and an answer is `text[start:end]`. An
entry is one string of bytes, which the garbage collector never visits.

The entries are in many small ordered dictionaries rather than in one: a dictionary that grows moves
all its entries at once, which stops the loop for long if they are many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from qa_service.errors import DeadlineExceededError, ExecutionTimeoutError
from qa_service.net.timers import Clock, LazyTimer
from qa_service.server.scheduling.call import Call, Outcome, fail_expired
from qa_service.server.services.service import Service
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.wire.messages import Answer, Answered, AnswerSource, Question, Request, Timings

NO_TIME = Timings(0.0, 0.0)


class _Flight(msgspec.Struct, eq=False):
    """Equal requests that wait for one run.

    Attributes:
        model: The model, engine and precision, by which the key was made.
        run: No child of the leader, since it continues without it.
        leader: The member whose deadline the run has; None if its client has disconnected.
        timer: Fails joined members at their deadlines; None until one has joined.
    """

    key: bytes
    model: str
    members: dict[Call, None] = msgspec.field(default_factory=dict)
    run: Call | None = None
    leader: Call | None = None
    timer: LazyTimer | None = None


@dataclass(eq=False)
class Cached:
    """Keeps the answers of one version of a model.

    Args:
        model: Names what answers a request now; part of the key.
        max_queue_size: How many requests may wait for other requests' runs; further ones run
            themselves, so that the queue's bounds apply to them.
    """

    service: Service
    store: CacheStore
    model: Callable[[Request], str]
    clock: Clock
    counts: ModelMetrics
    max_queue_size: int

    def __post_init__(self) -> None:
        self._flights: dict[bytes, _Flight] = {}
        self._num_members = 0

    def submit(self, call: Call) -> None:
        """Answers a call from the store, lets it join an equal one, or runs it."""
        model = self.model(call.request)
        key = cache_key(model, call.request)
        if kept := self.store.get(key, call.request.text):
            self.counts.cache_hits_total += 1
            call.settle(kept)
        elif not (flight := self._flights.get(key)):
            self.counts.cache_misses_total += 1
            flight = self._flights[key] = _Flight(key, model)
            self._add(flight, call)
            self._lead(flight, call)
        elif self._num_members - len(self._flights) < self.max_queue_size:
            self.counts.cache_joined_total += 1
            self._add(flight, call)
            flight.timer = flight.timer or LazyTimer(self.clock, partial(self._expire, flight))
            flight.timer.arm(call.scope.deadline_s)
        else:
            self.counts.cache_misses_total += 1
            self.service.submit(call)

    def _add(self, flight: _Flight, call: Call) -> None:
        flight.members[call] = None
        self._num_members += 1
        call.on_end(partial(self._remove, flight))

    def _remove(self, flight: _Flight, call: Call) -> None:
        """Removes a member that has ended; a flight without members ends, and so does its run."""
        del flight.members[call]
        self._num_members -= 1
        if call is flight.leader:
            flight.leader = None
        if flight.members:
            return
        del self._flights[flight.key]
        if flight.timer:
            flight.timer.cancel()
            flight.timer = None
        if flight.run:
            flight.run.cancel()

    def _lead(self, flight: _Flight, leader: Call) -> None:
        flight.leader = leader
        flight.run = Call(leader.request, leader.scope)
        flight.run.then(partial(self._on_settled, flight, leader.scope.deadline_s))
        self.service.submit(flight.run)

    def _on_settled(self, flight: _Flight, deadline_s: float, outcome: Outcome) -> None:
        """Settles all members; if the run timed out, only those whose deadline has passed too."""
        assert flight.run
        if isinstance(outcome, Answered) and flight.model == self.model(flight.run.request):
            self.counts.cache_evictions_total += self.store.put(flight.key, outcome)
        is_late = isinstance(outcome, DeadlineExceededError | ExecutionTimeoutError)
        for call in list(flight.members):
            if not is_late or call.scope.deadline_s <= deadline_s:
                call.settle(outcome)
        if flight.members:
            self._lead(flight, max(flight.members, key=lambda call: call.scope.deadline_s))

    def _expire(self, flight: _Flight) -> None:
        """Fails joined members at their deadlines: only the leader's holds for its run."""
        joined = [one for one in flight.members if one is not flight.leader]
        next_s = fail_expired(joined, self.clock.now_s())
        if flight.timer:
            flight.timer.arm(next_s)


KEY_BYTES = 16  # 128 bits: equal keys of different questions need not be expected
ENTRY_BYTES = 320
"""An entry's memory besides its value: its key, its place in the dictionary, and room to grow."""

SHARD_BYTES = 1 << 20

_KEPT = [its for its in msgspec.structs.fields(Answer) if its.name != "answer"]
_Kept: Any = msgspec.defstruct("_Kept", [(its.name, its.type) for its in _KEPT], array_like=True)
_fields_of = attrgetter(*[its.name for its in _KEPT])


class _Entry(msgspec.Struct, array_like=True):
    answers: list[_Kept]
    source: AnswerSource


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


def cache_key(model: str, question: Question) -> bytes:
    """A question's key: equal for the same model, question, text and `top_k`."""
    a, b, c = model.encode(), question.question.encode(), question.text.encode()
    message = b"%d:%b%d:%b%d:%b%d" % (len(a), a, len(b), b, len(c), c, question.top_k)
    return blake2b(message, digest_size=KEY_BYTES).digest()


class CacheStore:
    """Answers by key, in `max_bytes` of memory, overhead included; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._shards = [_Shard() for _ in range(max(1, max_bytes // SHARD_BYTES))]
        self._max_shard_bytes = max_bytes // len(self._shards)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self._shards)

    def __len__(self) -> int:
        return sum(len(shard.entries) for shard in self._shards)

    def get(self, key: bytes, text: str) -> Answered | None:
        """The answers to a question, now the most recently used; None if there are none."""
        entries = self._shard(key).entries
        entry = entries.get(key)
        if entry is None:
            return None
        entries.move_to_end(key)
        kept, answers = _decode(entry), []
        for its in kept.answers:  # an answer's words are in its passage or else in the text
            words, at, part = "", 0, text
            if its.passage:
                part, at = its.passage.text, its.passage.start
            if its.start is not None:
                words = part[its.start - at : its.end - at]
            answers.append(Answer(answer=words, **msgspec.structs.asdict(its)))
        source = msgspec.structs.replace(kept.source, is_cached=True)
        return Answered(answers, NO_TIME, source)

    def put(self, key: bytes, answered: Answered) -> int:
        """Keeps or replaces a question's answers; returns how many entries it dropped for room."""
        entry = _encode(([_fields_of(answer) for answer in answered.answers], answered.source))
        shard = self._shard(key)
        if (old := shard.entries.pop(key, None)) is not None:
            shard.num_bytes -= ENTRY_BYTES + len(old)
        shard.entries[key] = entry
        shard.num_bytes += ENTRY_BYTES + len(entry)
        num_dropped = 0
        while shard.num_bytes > self._max_shard_bytes:
            _, dropped = shard.entries.popitem(last=False)
            shard.num_bytes -= ENTRY_BYTES + len(dropped)
            num_dropped += 1
        return num_dropped

    def _shard(self, key: bytes) -> _Shard:
        return self._shards[int.from_bytes(key[:4]) % len(self._shards)]


class _Shard:
    """Some of the entries, the least recently used first."""

    __slots__ = ("entries", "num_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0
