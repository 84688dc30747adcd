"""Time and the order in which things happen: the event loop's selector is the simulated world.

The real event loop runs. Where it would wait in `select`, time moves on to the next happening of
the world (bytes of a client, results of a worker) or to the loop's own next timer, whichever is
first. So a minute of the server takes milliseconds, and nothing depends on the machine's speed.
"""

import heapq
import itertools
import math
import random
import selectors
from collections.abc import Callable
from typing import Any

START_S = 1000.0
TICK_S = 1e-6
"""What each look at the clock takes, so that time passes between two of them."""
MAX_ROUNDS_AT_ONCE = 5000
"""Rounds of the loop while time stands still; past it, the loop spins."""


class Violation(BaseException):
    """A promise of the server does not hold. Not an `Exception`, which the loop would log.

    Attributes:
        check: Names the check, so that shrinking keeps to one fault.
    """

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


class OrderedSet(dict):
    """A set in the order of its making: that of a `set` of objects differs from run to run."""

    def add(self, item):
        self[item] = None

    def discard(self, item):
        self.pop(item, None)


class World:
    """The clock, what is to happen, and which sockets are ready.

    Attributes:
        may_pause: Whether the server may stand still.
        steps: How often time has moved on.
        rounds: How many rounds the loop has run.
        random: Draws what is left to chance.
        signals: What the server does at a signal, by its number.
        at_rest: Called each time the loop has nothing left to do at this moment.
    """

    def __init__(self, seed: int, *, may_pause: bool = False) -> None:
        self.time_s = START_S
        self.may_pause = may_pause
        self.steps = self.rounds = 0
        self.random = random.Random(seed)
        self.signals: dict[int, Callable[[], None]] = {}
        self.at_rest: Callable[[], None] = lambda: None
        self.selector = Selector(self)
        self._happenings: list[tuple[float, int, Callable[[], None]]] = []
        self._work: set[int] = set()
        """The numbers of happenings that a pause of the machine puts off."""
        self._pause: tuple[float, bool] | None = None
        self._is_paused = False
        self._put_off: list[Callable[[], None]] = []
        self._numbers = itertools.count()
        self._dirty: dict[Callable[[], None], None] = {}
        self._rounds_at_once = 0

    def now_s(self) -> float:
        self.time_s = now_s = self.time_s + TICK_S
        return now_s

    def after(self, seconds: float, happening: Callable[[], None]) -> int:
        """Has something happen; returns its number."""
        number = next(self._numbers)
        heapq.heappush(self._happenings, (self.time_s + seconds, number, happening))
        return number

    def work(self, seconds: float, happening: Callable[[], None]) -> None:
        """Has something happen that a process of the server's machine is at until then."""
        self._work.add(self.after(seconds, happening))

    def call(self, callback: Callable[[], None]) -> None:
        """Calls the server, at once or when it has stood still."""
        if self._is_paused:
            self._put_off.append(callback)
        else:
            callback()

    def pause(self, seconds: float, *, whole_machine: bool) -> None:
        """Has the server stand still in its next round, and perhaps its machine with it."""
        self._pause = (seconds, whole_machine)

    def stand_still(self) -> bool:
        """Lets happen what does while the server stands still; whether it was to."""
        if self._pause is None:
            return False
        (seconds, whole_machine), self._pause = self._pause, None
        if whole_machine:
            self._happenings = [
                (at_s + seconds * (number in self._work), number, happening)
                for at_s, number, happening in self._happenings
            ]
            heapq.heapify(self._happenings)
        end_s, self._is_paused = self.time_s + seconds, True
        while self._happenings and self._happenings[0][0] <= end_s:
            self._happen()
        self.time_s, self._is_paused = end_s, False
        self._dirty |= dict.fromkeys(self._put_off)
        self._put_off.clear()
        return True

    def soon(self, happening: Callable[[], None]) -> None:
        """Has something happen at once, outside of the server's own code; once however often."""
        self._dirty[happening] = None

    def settle(self) -> None:
        """Lets happen what is to happen at once."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for happening in dirty:
                happening()

    def wait(self, timeout_s: float | None) -> bool:
        """Moves time on to the next happening, or by the timeout if that is shorter.

        Returns:
            Whether something has happened.
        """
        if timeout_s == 0.0:
            self._rounds_at_once += 1
            if self._rounds_at_once > MAX_ROUNDS_AT_ONCE:
                raise Violation("spin", f"{MAX_ROUNDS_AT_ONCE} rounds while time stood still")
            return False
        self._rounds_at_once = 0
        self.at_rest()
        self.steps += 1
        limit_s = math.inf if timeout_s is None else self.time_s + timeout_s
        if not self._happenings and limit_s == math.inf:
            raise Violation("wait", "the loop waits for ever: no timer, and nothing is to happen")
        if self._happenings and self._happenings[0][0] <= limit_s:
            self._happen()
            return True
        if limit_s < math.inf:
            self.time_s = limit_s
        return False

    def _happen(self) -> None:
        at_s, number, happening = heapq.heappop(self._happenings)
        self._work.discard(number)
        self.time_s = max(self.time_s, at_s)
        happening()
        self.settle()


class Selector:
    """What the event loop takes for its selector.

    What is registered has an attribute `ready`, the events that it is ready for; the loop's own
    wakeup socket has none, and is never looked at.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self._looked_at: dict[Any, tuple[int, selectors.SelectorKey]] = {}

    def register(self, sock, events, data=None):
        self._keys[sock] = key = selectors.SelectorKey(sock, 0, events, data)
        if hasattr(sock, "ready"):
            self._looked_at[sock] = events, key

    modify = register

    def unregister(self, sock):
        del self._keys[sock], self._looked_at[sock]

    def get_map(self):
        return self._keys

    def close(self):
        self._keys.clear()
        self._looked_at.clear()

    def select(self, timeout=None):
        self._world.rounds += 1
        self._world.settle()
        if self._world.stand_still():
            return []  # as epoll does when its process goes on
        ready = self._ready()
        if not ready and self._world.wait(timeout):
            ready = self._ready()
        if len(ready) > 1:
            self._world.random.shuffle(ready)
        return ready

    def _ready(self):
        looked_at = self._looked_at.items()
        return [(key, now) for sock, (events, key) in looked_at if (now := sock.ready & events)]
