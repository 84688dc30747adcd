"""One model: its plan, its versions, and the steps from the versions to the plan.

`reconcile` runs at the end of each round that set the loop's mark: an instance is ready, cannot
start or has ended, a version is drained, the plan is new. It compares versions and plan and takes
the next steps; no state records how far a transition has come.

    planned, not there          ─▶ load it, one version and one instance at a time
    planned, engine not known   ─▶ wait; the plan that names the engine is applied once measured
    loading, not planned        ─▶ end it
    cannot be loaded            ─▶ ready versions serve on; try again after a growing delay
    all planned versions serve  ─▶ move the labels; drain versions that are not planned
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from qa_service.errors import QaError, SetupError, UnavailableError, UnknownModelError, list_choices
from qa_service.net.timers import Clock, LazyTimer
from qa_service.server.models.on_disk import NUMBER
from qa_service.server.models.plan import ModelPlan, VersionSpec
from qa_service.server.models.version import Version, VersionState
from qa_service.server.scheduling.call import Call

logger = logging.getLogger(__name__)

LOADING_RETRY_S = 1.0
"""When a client should send a request again for a version that is loading."""

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
"""Bounds on the delay between attempts to load a version, which doubles: an attempt reads all files
of the version, and mended files should be noticed within a minute."""


class LoadFailure(msgspec.Struct, frozen=True):
    """Why a version could not be loaded.

    Attributes:
        retry_s: When the next attempt is due, on the loop's clock.
    """

    message: str
    count: int
    retry_s: float


@dataclass(eq=False)
class Model:
    """A model with its versions.

    Args:
        make_version: Makes a version that has no instance yet; raises `SetupError` if there is no
            memory for that many instances.

    Attributes:
        versions: Those that are there, the oldest first.
        loss: Why a version that served does no more, if the last `reconcile` found one.
    """

    name: str
    clock: Clock
    make_version: Callable[[VersionSpec, int], Version]
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self.plan = ModelPlan(self.name)
        self.versions: list[Version] = []
        self.failures: dict[VersionSpec, LoadFailure] = {}
        self.labels: dict[str, int] = {}
        self.loss = ""
        self._choices: list[tuple[float, Version]] = []
        self._retry = LazyTimer(self.clock, self.clock.mark)

    def apply(self, plan: ModelPlan) -> None:
        self.plan = plan
        wanted = set(plan.versions.values())
        self.failures = {spec: why for spec, why in self.failures.items() if spec in wanted}
        self.clock.mark()

    def try_again(self) -> None:
        self.failures.clear()
        self.clock.mark()

    @property
    def ready_specs(self) -> list[VersionSpec]:
        return [version.spec for version in self._ready()]

    def versions_in(self, *states: VersionState) -> list[Version]:
        return [version for version in self.versions if version.state in states]

    @property
    def shadow(self) -> Mapping[int, int]:
        return self.plan.shadow

    def is_idle(self, number: int) -> bool:
        version = self._serving(number)
        return version is not None and version.is_idle

    def submit(self, call: Call) -> None:
        """Sends a call to the version that it names, else to one by its share; or fails it."""
        try:
            self.pick(call.request.version).submit(call)
        except QaError as error:
            call.fail(error)

    def pick(self, named: int | str | None) -> Version:
        """The version for a number or a label; for None, one by its share.

        Raises:
            UnknownModelError: There is no such version.
            UnavailableError: The version is not loaded.
        """
        if named is not None:
            version = self._by_name(named)
        elif not self._choices:
            raise self._unavailable(f"no version of {self.name} is loaded")
        elif len(self._choices) == 1:
            version = self._choices[0][1]
        else:
            alive = [choice for choice in self._choices if choice[1].pool.alive]
            version = self._pick(alive or self._choices)
        if self.plan.is_rolling and version.pool.size < version.full_size:
            # A growing version shares with those that it replaces, by their live instances.
            both = [(v.pool.alive, v) for v in (version, *self._unwanted()) if v.pool.alive]
            return self._pick(both or [(1.0, version)])
        return version

    def share(self, version: Version) -> float:
        """A version's share, 0 to 1, of the requests that name no version."""
        total = sum(weight for weight, _ in self._choices)
        return sum(weight for weight, one in self._choices if one is version) / (total or 1.0)

    def _pick(self, choices: Sequence[tuple[float, Version]]) -> Version:
        mark = self.draw() * sum(weight for weight, _ in choices)
        for weight, version in choices:
            mark -= weight
            if mark < 0:
                return version
        return choices[-1][1]

    def _by_name(self, named: int | str) -> Version:
        is_number = isinstance(named, int) or re.match(NUMBER, named)
        number = int(named) if is_number else self.labels.get(str(named), 0)
        if version := self._serving(number):
            return version
        if number in self.plan.versions or named in self.plan.labels:
            raise self._unavailable(f"version {named} of {self.name} is not loaded")
        there = [*map(str, sorted({v.spec.number for v in self._ready()})), *sorted(self.labels)]
        what = f"{self.name} has no version {str(named)[:64]}"
        raise UnknownModelError(f"{what}; {list_choices(there)}")

    def _unavailable(self, message: str) -> UnavailableError:
        """The error, with when to ask again: at the next attempt if all have failed, else soon."""
        wait_s = LOADING_RETRY_S
        if self.failures and not self.versions_in(VersionState.LOADING):
            next_s = min(failure.retry_s for failure in self.failures.values())
            wait_s = max(wait_s, next_s - self.clock.now_s())
        return UnavailableError(message, retry_after_ms=math.ceil(wait_s * 1e3))

    def _serving(self, number: int) -> Version | None:
        return next((v for v in reversed(self._ready()) if v.spec.number == number), None)

    def reconcile(self, *, at_once: bool = False) -> None:
        """Takes the next steps from the versions to the plan.

        When an instance becomes ready, its version takes requests or gets its next instance
        (`_grow`), and the replaced version drains. An instance that cannot start ends its version.

        Args:
            at_once: Whether to load everything at the same time, since the server serves none yet.
        """
        self.loss = ""
        for version in self.versions:
            if message := version.pool.take_failure():
                self._end_failed(version, message)
            elif version.state is VersionState.LOADING and not self._is_to_load(version):
                version.kill()
            version.end_if_done()
        self.versions = [v for v in self.versions if v.state is not VersionState.GONE]
        for spec in self._missing() if at_once else ():
            if spec not in self.failures:
                self._load(spec, spec.instances.num_instances)
        growing = [v for v in self.versions if v.is_growing and self._is_to_load(v)]
        for version in growing:
            self._grow(version)
        self._move()
        if any(version.is_growing for version in growing):
            return
        ready = self.ready_specs
        is_done = all(spec in ready for spec in self.plan.versions.values())
        for version in self._unwanted():
            if is_done or self._serving(version.spec.number) is not version:
                version.drain()
        self._move()
        for version in self._ready():  # what was taken for a version that could not be loaded
            if version.pool.size < version.full_size:
                version.pool.resize(version.full_size)
        self._load_next()

    def _is_wanted(self, version: Version) -> bool:
        return self.plan.versions.get(version.spec.number) == version.spec

    def _is_to_load(self, version: Version) -> bool:
        """Whether the plan has this version, ignoring `generation`."""
        wanted = self.plan.versions.get(version.spec.number)
        return wanted is not None and wanted == replace(version.spec, generation=wanted.generation)

    def _ready(self) -> list[Version]:
        return self.versions_in(VersionState.READY)

    def _unwanted(self) -> list[Version]:
        return [v for v in self._ready() if not self._is_wanted(v)]

    def _missing(self) -> list[VersionSpec]:
        there = [v.spec for v in self.versions_in(VersionState.LOADING, VersionState.READY)]
        wanted = self.plan.versions.values()
        return [spec for spec in wanted if spec.is_loadable and spec not in there]

    def _move(self) -> None:
        ready = {v.spec.number: v for v in self._ready()}
        moved = {label: n for label, n in self.plan.labels.items() if n in ready}
        kept = {label: n for label, n in self.labels.items() if label in self.plan.labels}
        self.labels = {**kept, **moved}
        shares = {n: weight for n, weight in self.plan.traffic.items() if n in ready and weight}
        if not shares and ready:
            wanted = [n for n, v in ready.items() if self._is_wanted(v)]
            shares = {max(wanted or ready): 1}
        self._choices = [(weight, ready[n]) for n, weight in shares.items()]

    def _grow(self, version: Version) -> None:
        """Gives a version its next instance, once those it has are ready."""
        if not version.pool.is_complete:
            return
        is_full = version.pool.size >= version.full_size
        if version.state is VersionState.LOADING and (is_full or self.plan.is_rolling):
            words = "the reloaded model serves: %s" if self._ready() else "%s serves"
            version.make_ready()
            self.failures.pop(version.spec, None)
            logger.info(words, version.spec)
        if not is_full and self._has_made_room(version):
            version.pool.resize(version.pool.size + 1)

    def _has_made_room(self, version: Version) -> bool:
        """Takes instances from the versions it replaces; returns whether another can start now.

        Each replaced version keeps one instance until it drains, to answer its requests.
        """
        if not self.plan.is_rolling:
            return True
        replaced = self._unwanted()
        most = max(version.full_size, sum(one.full_size for one in replaced))
        room = most - version.pool.size
        for number, one in enumerate(replaced, 1):
            size = max(1, min(one.pool.size, room - (len(replaced) - number)))
            one.pool.resize(size)
            room -= size
        minimum = version.pool.size + len(replaced)
        return sum(v.pool.num_processes for v in (version, *replaced)) <= max(most, minimum)

    def _load_next(self) -> None:
        """Loads the first missing version that is due, once no version is ending."""
        if self.versions_in(VersionState.DRAINING, VersionState.ENDING):
            return
        now_s = self.clock.now_s()
        for spec in self._missing():
            failure = self.failures.get(spec)
            if failure is None or failure.retry_s <= now_s:
                self._load(spec, 1)
                return
            self._retry.arm(failure.retry_s)

    def _load(self, spec: VersionSpec, num_instances: int) -> None:
        logger.info("reloading the model: %s" if self._ready() else "loading %s", spec)
        is_rolling = self.plan.is_rolling and self._ready()
        try:
            version = self.make_version(spec, 1 if is_rolling else spec.instances.num_instances)
        except SetupError as error:
            self._note_failure(spec, str(error))
            return
        self.versions.append(version)
        version.pool.resize(num_instances)

    def _end_failed(self, version: Version, message: str) -> None:
        """Ends a version; a ready one with live instances answers its requests first.

        One that computes wrongly is not ready, and is tried again; the server stays, and says so.
        """
        if version.state is VersionState.READY and not version.pool.is_wrong:
            self.loss = message
        if version.state is VersionState.READY and version.pool.alive:
            version.drain()
        else:
            version.kill()
        if self._is_wanted(version):
            self._note_failure(version.spec, message)

    def _note_failure(self, spec: VersionSpec, message: str) -> None:
        before = self.failures.get(spec)
        count = before.count + 1 if before else 1
        wait_s = min(FIRST_RETRY_S * 2 ** (count - 1), MAX_RETRY_S)
        self.failures[spec] = LoadFailure(message, count, self.clock.now_s() + wait_s)
        self._retry.arm(self.failures[spec].retry_s)
        meanwhile = ", the old model serves on" if self._ready() else ""
        logger.error("%s cannot be loaded%s: %s; again in %.0f s", spec, meanwhile, message, wait_s)
