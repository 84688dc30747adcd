"""One model: what is wanted of it, what is there, and the steps from the one to the other.

`reconcile` is called whenever either has changed. It compares them and takes what next steps there
are; nothing remembers where in a transition it is.

    wanted and not there    ─▶ load it, one version and one instance at a time
    its engine is not known ─▶ wait; the plan that names it is applied when it is measured
    loading and not wanted  ─▶ end it
    it cannot be loaded     ─▶ what serves goes on; again after a while, each time a longer one
    all that is wanted serves ─▶ labels have moved; drain what is not wanted
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from qa_service.errors import QaError, SetupError, UnavailableError, UnknownModelError, there_are
from qa_service.net.timers import Clock, LazyTimer
from qa_service.scheduling.call import Call
from qa_service.serving.plan import ModelPlan, VersionSpec
from qa_service.serving.version import Version, VersionState

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[1-9][0-9]{0,15}\Z")
"""A version's number, as it is written; what else has digits can only be a label."""

LOADING_RETRY_S = 1.0
"""After how long a request for a version that is being loaded should be sent again."""

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
"""Between attempts to load a version, doubled by each: an attempt reads all of its files, and files
that are put right are to be noticed within a minute."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a version could not be loaded.

    Attributes:
        message: Why.
        count: How often in a row.
        retry_s: When it is tried again, on the loop's clock.
    """

    message: str
    count: int
    retry_s: float


class Surroundings(Protocol):
    """What a model needs of the server around it."""

    def make_server(
        self,
        model: Model,
        spec: VersionSpec,
        on_change: Callable[[], None],
        on_failure: Callable[[Version, str], None],
    ) -> Version:
        """Makes what serves a version, with no instance yet."""

    def check_room(self, spec: VersionSpec, num_instances: int) -> None:
        """Sees that there is memory for so many instances.

        Raises:
            SetupError: There is not.
        """

    def on_model_change(self) -> None:
        """Hears that something has changed."""

    def on_version_lost(self, message: str) -> None:
        """Hears that a version that served has no instance any more."""


class Model:
    """A model with its versions.

    Args:
        name: Its name.
        clock: The loop's.
        around: The server around it.
        choose: A number from 0 to 1, each as probable.

    Attributes:
        name: Its name.
        plan: What is wanted.
        versions: What is there, in the order of its beginning.
        failures: What could not be loaded.
        labels: The version of each label, by now.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        around: Surroundings,
        choose: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.plan = ModelPlan(name, {}, {}, {}, {})
        self.versions: list[Version] = []
        self.failures: dict[VersionSpec, LoadFailure] = {}
        self.labels: dict[str, int] = {}
        self._clock = clock
        self._around = around
        self._choose = choose
        self._choices: list[tuple[float, Version]] = []
        self._is_due = False
        self._retry = LazyTimer(clock, self.reconcile_soon)

    def apply(self, plan: ModelPlan, *, at_once: bool = False) -> None:
        """Wants something else from now on.

        Args:
            plan: What is wanted.
            at_once: Whether everything may be loaded at the same time: nobody is served yet.
        """
        self.plan = plan
        wanted = set(plan.versions.values())
        self.failures = {spec: why for spec, why in self.failures.items() if spec in wanted}
        for spec in self._missing() if at_once else ():
            if spec not in self.failures:
                self._load(spec, spec.instances.num_instances)
        self.reconcile()

    def try_again(self) -> None:
        """Tries at once what has failed."""
        self.failures.clear()
        self.reconcile()

    @property
    def ready_specs(self) -> list[VersionSpec]:
        """What takes requests."""
        return [server.spec for server in self._ready()]

    def versions_in(self, *states: VersionState) -> list[Version]:
        """What is in one of these states."""
        return [server for server in self.versions if server.state in states]

    @property
    def shadow(self) -> Mapping[int, int]:
        """Percent of the requests that are copied to a version."""
        return self.plan.shadow

    def is_idle(self, version: int) -> bool:
        """Whether an instance of that version has nothing to do."""
        server = self._serving(version)
        return server is not None and server.is_idle

    # Where requests go.

    def submit(self, call: Call) -> None:
        """Sends a request to the version that it names, or to one by its share; or fails it."""
        try:
            self.pick(call.request.version).submit(call)
        except QaError as error:
            call.fail(error)

    def pick(self, version: int | str | None) -> Version:
        """What answers a request for that version, or for whichever there is.

        Raises:
            UnknownModelError: There is no such version.
            UnavailableError: There is, but it is not loaded.
        """
        server = self._by_share() if version is None else self._by_name(version)
        if self.plan.is_rolling and server.pool.size < server.full_size:
            return self._among_generations(server)
        return server

    def share(self, server: Version) -> float:
        """The share of the requests that name no version which goes there, 0 to 1."""
        total = sum(weight for weight, _ in self._choices)
        return sum(weight for weight, one in self._choices if one is server) / (total or 1.0)

    def _by_share(self) -> Version:
        if not self._choices:
            raise self._unavailable(f"no version of {self.name} is loaded")
        if len(self._choices) == 1:
            return self._choices[0][1]
        alive = [choice for choice in self._choices if choice[1].pool.alive]
        return self._draw(alive or self._choices)

    def _draw(self, choices: list[tuple[float, Version]]) -> Version:
        mark = self._choose() * sum(weight for weight, _ in choices)
        for weight, server in choices:
            mark -= weight
            if mark < 0:
                return server
        return choices[-1][1]

    def _by_name(self, version: int | str) -> Version:
        is_number = isinstance(version, int) or _NUMBER.match(version)
        number = int(version) if is_number else self.labels.get(str(version), 0)
        if server := self._serving(number):
            return server
        if number in self.plan.versions or version in self.plan.labels:
            raise self._unavailable(f"version {version} of {self.name} is not loaded")
        there = [*map(str, sorted({s.spec.number for s in self._ready()})), *sorted(self.labels)]
        what = f"{self.name} has no version {str(version)[:64]}"
        raise UnknownModelError(f"{what}; {there_are(there)}")

    def _unavailable(self, message: str) -> UnavailableError:
        """Says when to ask again: at the next try if all have failed, else soon."""
        wait_s = LOADING_RETRY_S
        if self.failures and not self.versions_in(VersionState.LOADING):
            next_s = min(failure.retry_s for failure in self.failures.values())
            wait_s = max(wait_s, next_s - self._clock.now_s())
        return UnavailableError(message, retry_after_ms=math.ceil(wait_s * 1e3))

    def _serving(self, number: int) -> Version | None:
        return next((s for s in reversed(self._ready()) if s.spec.number == number), None)

    def _among_generations(self, server: Version) -> Version:
        """Shares its requests with what it takes the place of, by their instances."""
        alive = [(s.pool.alive, s) for s in (server, *self._unwanted()) if s.pool.alive]
        return self._draw([(float(weight), one) for weight, one in alive] or [(1.0, server)])

    # From what is there to what is wanted.

    def reconcile_soon(self) -> None:
        """Reconciles in the next round, once, however much has changed in this one."""
        if not self._is_due:
            self._is_due = True
            self._clock.call_soon(self.reconcile)

    def reconcile(self) -> None:
        """Takes the next steps from what is there to what is wanted."""
        self._is_due = False
        self.versions = [s for s in self.versions if s.state is not VersionState.GONE]
        for server in list(self.versions):
            if server.state is VersionState.LOADING and not self._is_to_load(server):
                server.kill()
        growing = [s for s in self.versions if s.is_growing and self._is_to_load(s)]
        for server in growing:
            self._grow(server)
        self._move()
        if not any(server.is_growing for server in growing):
            is_done = all(spec in self.ready_specs for spec in self.plan.versions.values())
            for server in self._unwanted():
                if is_done or self._serving(server.spec.number) is not server:
                    server.drain()
            self._move()
            self._restore()
            self._load_next()
        self._around.on_model_change()

    def _is_wanted(self, server: Version) -> bool:
        return self.plan.versions.get(server.spec.number) == server.spec

    def _is_to_load(self, server: Version) -> bool:
        """Whether it is wanted, or would be had it not been asked for once more since."""
        wanted = self.plan.versions.get(server.spec.number)
        return wanted is not None and wanted.is_same_as(server.spec)

    def _ready(self) -> list[Version]:
        return self.versions_in(VersionState.READY)

    def _unwanted(self) -> list[Version]:
        return [s for s in self._ready() if not self._is_wanted(s)]

    def _missing(self) -> list[VersionSpec]:
        there = [
            s.spec for s in self.versions if s.state in {VersionState.LOADING, VersionState.READY}
        ]
        wanted = self.plan.versions.values()
        return [spec for spec in wanted if spec.is_loadable and spec not in there]

    def _move(self) -> None:
        """Moves labels and shares to what is ready."""
        ready = {s.spec.number: s for s in self._ready()}
        moved = {label: n for label, n in self.plan.labels.items() if n in ready}
        kept = {label: n for label, n in self.labels.items() if label in self.plan.labels}
        self.labels = {**kept, **moved}
        shares = {n: weight for n, weight in self.plan.traffic.items() if n in ready and weight}
        if not shares and ready:
            wanted = [n for n, s in ready.items() if self._is_wanted(s)]
            shares = {max(wanted or ready): 1}
        self._choices = [(weight, ready[n]) for n, weight in shares.items()]

    def _grow(self, server: Version) -> None:
        """Gives it its next instance, if it has all that it should have by now."""
        if not server.pool.is_complete:
            return
        is_whole = server.pool.size >= server.full_size
        if server.state is VersionState.LOADING and (is_whole or self.plan.is_rolling):
            self._note_ready(server)
        if not is_whole and self._has_made_room(server):
            server.resize(server.pool.size + 1)

    def _has_made_room(self, server: Version) -> bool:
        """Takes instances from what it replaces; whether they have ended, so that one may begin.

        Each keeps one until the end, so that what it has is answered.
        """
        if not self.plan.is_rolling:
            return True
        replaced = self._unwanted()
        most = max(server.full_size, sum(one.full_size for one in replaced))
        room = most - server.pool.size
        for number, one in enumerate(replaced, 1):
            size = max(1, min(one.pool.size, room - (len(replaced) - number)))
            one.resize(size)
            room -= size
        minimum = server.pool.size + len(replaced)
        return sum(s.pool.num_processes for s in (server, *replaced)) <= max(most, minimum)

    def _restore(self) -> None:
        """Gives back what was taken for a version that could not be loaded."""
        for server in self._ready():
            if server.pool.size < server.full_size:
                server.resize(server.full_size)

    def _load_next(self) -> None:
        """Loads the first of what is missing whose time it is, when nothing is ending any more."""
        if any(s.state in {VersionState.DRAINING, VersionState.ENDING} for s in self.versions):
            return
        now_s = self._clock.now_s()
        for spec in self._missing():
            failure = self.failures.get(spec)
            if failure is None or failure.retry_s <= now_s:
                self._load(spec, 1)
                return
            self._retry.arm(failure.retry_s)

    def _load(self, spec: VersionSpec, num_instances: int) -> None:
        if self._ready():
            logger.info("reloading the model: %s", spec)
        else:
            logger.info("loading %s", spec)
        is_rolling = self.plan.is_rolling and self._ready()
        try:
            self._around.check_room(spec, 1 if is_rolling else spec.instances.num_instances)
        except SetupError as error:
            self._note_failure(spec, str(error))
            return
        server = self._around.make_server(self, spec, self.reconcile_soon, self._on_failure)
        self.versions.append(server)
        server.resize(num_instances)

    def _note_ready(self, server: Version) -> None:
        is_first = not self._ready()
        server.make_ready()
        self.failures.pop(server.spec, None)
        logger.info("%s serves" if is_first else "the reloaded model serves: %s", server.spec)

    def _on_failure(self, server: Version, message: str) -> None:
        """Ends it; if it cannot grow but some of it lives, only when it has answered all it has."""
        is_ready = server.state is VersionState.READY
        if is_ready and server.pool.alive:
            server.drain()
        else:
            server.kill()
        self._move()
        if self._is_wanted(server):
            self._note_failure(server.spec, message)
        if is_ready:
            self._around.on_version_lost(message)
        self.reconcile_soon()

    def _note_failure(self, spec: VersionSpec, message: str) -> None:
        before = self.failures.get(spec)
        count = before.count + 1 if before else 1
        wait_s = min(FIRST_RETRY_S * 2 ** (count - 1), MAX_RETRY_S)
        self.failures[spec] = LoadFailure(message, count, self._clock.now_s() + wait_s)
        self._retry.arm(self.failures[spec].retry_s)
        meanwhile = ", the old model serves on" if self._ready() else ""
        logger.error("%s cannot be loaded%s: %s; again in %.0f s", spec, meanwhile, message, wait_s)
