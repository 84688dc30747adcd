"""The collections that are served, and their search processes: how they come and go.

Each is searched by a separate process, up to `MAX_SEARCH_PROCESSES`; further ones share these. A
search engine elsewhere always has a separate process. The loop opens no file of a collection: a
damaged, slow or hanging one holds only the process that reads it.

A collection that cannot be opened keeps no other from being served; it is tried again until it can.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qa_service.errors import SetupError, UnknownCollectionError, error_context, list_choices
from qa_service.net.event_loop import EventLoop
from qa_service.net.timers import LazyTimer, Timer
from qa_service.retrieval.search_messages import (
    Close,
    Count,
    List,
    Listed,
    Refused,
    Result,
    Search,
    Work,
)
from qa_service.server.children.child import Launch
from qa_service.server.services.searches import HUNG, Searches
from qa_service.server.services.served_collection import ServedCollection
from qa_service.server.services.service_options import CollectionOptions, check_name
from qa_service.server.telemetry.health import CollectionState
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import ALL_COLLECTIONS

logger = logging.getLogger(__name__)

REMOTE_SEARCHES = 4
"""How many searches one cluster is asked at a time."""
LIST_AGAIN_S = 10.0
"""When a folder of collections that could not be listed is tried again."""
LOOK_INTERVAL_S = 2.0
"""Between two looks for newer indexes: a look is a `stat` or two in the search processes."""
SEARCH_TIMEOUT_S = 10.0
"""How long a search may take, and a third of the time for opening a collection, before its process
is replaced: it takes milliseconds unless a disk or a cluster hangs."""
MAX_SEARCH_PROCESSES = 16
"""The processes for collections on disk, of about 16 MB each; further collections share them."""

LaunchSearches = Callable[[int], Launch]
"""What starts a process that makes a number of searches at a time."""


@dataclass(eq=False)
class CollectionSet:
    """The collections by name.

    Args:
        max_queue_size: Requests that may wait for each search process.
        look_interval_s: Between two looks for newer indexes on disk; with 0 only `use` looks.
    """

    loop: EventLoop
    launch: LaunchSearches
    counts: ServiceCounts
    max_queue_size: int
    max_processes: int = MAX_SEARCH_PROCESSES
    look_interval_s: float = 0.0

    def __post_init__(self) -> None:
        self._next_look = LazyTimer(self.loop, self._look)
        self._served: dict[str, ServedCollection] = {}
        self._editions = itertools.count(1)
        self._named: Mapping[str, CollectionOptions] = {}
        self._listed: Mapping[str, CollectionOptions] = {}
        self._folder: Path | None = None
        self._lister: Searches | None = None
        self._is_listing = False
        self._list_fault = ""
        self._said: set[str] = set()
        """What the last listing had to say, which is logged once."""
        self._list_retry: Timer | None = None
        self._ending: list[Searches] = []

    def use(self, named: Mapping[str, CollectionOptions], folder: Path | None = None) -> None:
        """Serves these and a folder's; looks for newer indexes; a `SetupError` changes nothing."""
        for name, options in named.items():
            with error_context(f"[collections.{name}]"):
                check_name(name)
                if bool(options.path) == bool(options.url):
                    raise SetupError("needs either path or url")
                if options.path:
                    _check_path("path", options.path)
        if folder:
            _check_path("--collections_dir", folder)
        if folder != self._folder:
            self._listed = {}
        self._named, self._folder = named, folder
        self._follow()
        self._list()
        self._look_later()

    def _look_later(self) -> None:
        if self.look_interval_s:
            self._next_look.arm(self.loop.now_s() + self.look_interval_s)

    def _look(self) -> None:
        """Looks for newer indexes on disk; what has failed is tried again at times of its own."""
        if not self._list_retry:
            self._list()
        for served in self._served.values():
            if not (served.is_remote or served.retry):
                served.open()
        self._look_later()

    @property
    def has_started(self) -> bool:
        """Whether each collection has been opened, or could not be."""
        return not self._is_listing and all(its.was_tried for its in self._served.values())

    @property
    def failure(self) -> str:
        """What a person has to change before all can be served; empty for nothing."""
        for its in self._served.values():
            if its.needs_setup:
                return f"[collections.{its.name}]: {its.open_fault}"
        return self._list_fault

    def states(self, token: str | None = None) -> dict[str, CollectionState]:
        """The state of each collection, or of those that a client with this token may ask."""
        return {its.name: its.state for its in self._seen_by(token)}

    def faults(self, token: str | None = None) -> dict[str, str]:
        """What is wrong with them, by their names; nothing of those that are well."""
        return {its.name: its.fault for its in self._seen_by(token) if its.fault}

    def _seen_by(self, token: str | None) -> list[ServedCollection]:
        return [its for its in self._served.values() if its.options.is_for(token)]

    def get(self, name: str) -> ServedCollection | None:
        return self._served.get(name)

    def choose(self, names: tuple[str, ...], token: str) -> tuple[str, ...]:
        """The names of the collections that are asked.

        Args:
            names: Those that a request has; `*` stands for all that can be asked now.

        Raises:
            UnknownCollectionError: No collection has one of the names, or not for this token.
        """
        allowed = self.states(token)
        if names == (ALL_COLLECTIONS,):
            open_ones = [name for name, state in allowed.items() if state != "UNAVAILABLE"]
            if not allowed:
                raise UnknownCollectionError("there is no collection that this client may ask")
            return tuple(sorted(open_ones or allowed))
        for name in names:
            if name not in allowed:
                choices = list_choices(allowed)
                raise UnknownCollectionError(f"there is no collection {name}; {choices}")
        return names

    def _make_searches(self, name: str, concurrency: int) -> Searches:
        """A new search process, by what is searched and how many at a time."""
        return Searches(
            self.loop,
            name,
            self.launch(concurrency),
            concurrency=concurrency,
            max_waiting=self.max_queue_size,
            timeout_s=SEARCH_TIMEOUT_S,
            on_start=self._on_process_start,
            on_death=self._on_process_death,
            on_fault=self._on_fault,
        )

    def kill(self) -> None:
        for searches in self.processes():
            searches.child.kill()

    def reap(self) -> bool:
        """Whether all processes have ended."""
        ended = [searches.child.reap() for searches in self.processes()]
        return all(ended)

    def processes(self) -> list[Searches]:
        """All searches, those that end included."""
        self._ending = [searches for searches in self._ending if not searches.child.reap()]
        served = {its.searches: None for its in self._served.values()}
        return [*served, *([self._lister] if self._lister else []), *self._ending]

    def _on_process_start(self, searches: Searches) -> None:
        """Has a new process open what the one before had open."""
        for served in self._served.values():
            if served.searches is searches and served.state != "UNAVAILABLE":
                served.open()

    def _on_process_death(self, searches: Searches) -> None:
        """What the process had open is not open any more."""
        self.counts.search_process_deaths_total += 1
        for served in self._served.values():
            if served.searches is searches and served.state == "READY":
                served.state = "LOADING"

    def _on_fault(self, work: Work, reason: str) -> None:
        """Blames the collection whose search has ended its process, or held it for too long."""
        if isinstance(work, Search | Count) and (served := self._served.get(work.collection)):
            served.note_fault(reason, ends_with_success=reason == HUNG)

    # How they come and go.

    def _list(self) -> None:
        if self._list_retry:
            self._list_retry.cancel()
            self._list_retry = None
        if self._folder and not self._is_listing:
            self._is_listing = True
            self._lister = self._lister or self._make_searches(f"{self._folder}", 1)
            self._lister.run(List(str(self._folder)), partial(self._on_listed, self._folder))

    def _on_listed(self, folder: Path, result: Result) -> None:
        self._is_listing = False
        if folder != self._folder:
            self._list()
            return
        said = {}
        if isinstance(result, Listed):
            self._list_fault = ""
            if not result.paths:
                words = f"there is no collection in {folder}: qa-index makes them"
                said[words] = logging.WARNING
            listed = {}
            for name, path in result.paths.items():
                try:
                    check_name(name)
                    listed[name] = CollectionOptions(path=Path(path))
                except SetupError as error:
                    words = f"the collection in the folder {name!r} is not served: {error}"
                    said[words] = logging.WARNING
            if listed != self._listed:
                self._listed = listed
                self._follow()
        elif isinstance(result, Refused):
            said[f"the collections are unchanged: {result.reason}"] = logging.ERROR
            self._list_fault = result.reason if result.kind == "setup" else ""
            again_s = self.loop.now_s() + LIST_AGAIN_S
            self._list_retry = self.loop.call_at(again_s, self._list)
        for words, level in said.items():
            if words not in self._said:
                logger.log(level, "%s", words)
        self._said = set(said)
        self.loop.mark()

    def _follow(self) -> None:
        """Opens what is new, looks for newer indexes, and closes what is not served any more."""
        wanted = {**self._listed, **self._named}
        before, self._served = self._served, {}
        for name, options in wanted.items():
            known = before.get(name)
            if known and known.is_remote == bool(options.url):
                known.options = options
                self._served[name] = before.pop(name)
        for served in before.values():
            served.close()
            if any(its.searches is served.searches for its in self._served.values()):
                served.searches.run(Close(served.name), lambda _: None)
            else:
                served.searches.end()
                self._ending.append(served.searches)
        self.counts.keep_collections(wanted)
        for name, options in wanted.items():
            if name not in self._served:
                self._served[name] = ServedCollection(
                    self.loop, name, options, self._place(name, options), self._editions,
                    self.counts.collections[name],
                )  # fmt: skip
        for served in self._served.values():
            served.open()
        self.loop.mark()

    def _place(self, name: str, options: CollectionOptions) -> Searches:
        """The searches of a new collection: new ones, or the local ones with fewest collections."""
        if options.url:
            return self._make_searches(name, REMOTE_SEARCHES)
        local = [its.searches for its in self._served.values() if not its.is_remote]
        if len(set(local)) < self.max_processes:
            return self._make_searches(name, 1)
        return min(dict.fromkeys(local), key=local.count)


def _check_path(what: str, path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise SetupError(f"{what}: {str(path)!a} is no UTF-8") from None
