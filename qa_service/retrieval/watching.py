"""`qa-index --watch`: follows the sources, and has what changes indexed.

The files are listed again and again: that finds changes on every file system, in a folder that was
deleted and made again, and however many there are. They are indexed once two listings are the same,
since programs write files in steps, and a copy or a checkout writes thousands. What was changed
while it was read differs from the listing, and so is read again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NoReturn

from qa_service.errors import SetupError
from qa_service.logs import complain
from qa_service.retrieval.build import IndexArgs, Seen, list_files
from qa_service.retrieval.documents import Fault
from qa_service.retrieval.files import Found, SourceFile
from qa_service.retrieval.manifest import MANIFEST_FILE
from qa_service.retrieval.writing import EmptyError

INTERVAL_S = 1.0
"""Between two listings."""
MAX_LOAD = 0.05
"""Of a core, that listing may take: many files are listed less often."""
MAX_CHANGE_S = 30.0
"""After so long files are indexed even if some are still being written."""
MAX_RETRY_S = 60.0
"""What failed is tried again after 1 s, 2 s, … this, or when files change."""

Index = Callable[[Found, Seen], None]


def watch(args: IndexArgs, index: Index) -> NoReturn:
    """Indexes the sources, and then whatever has changed.

    Raises:
        SetupError: The collection could not be made when this began.
    """
    watcher = Watcher(args, index)
    watcher.index(list_files(args))
    while True:
        time.sleep(watcher.pause_s)
        watcher.look()


class Watcher:
    """Compares listings.

    Args:
        index: Has files indexed, given what the run before has seen.

    Attributes:
        pause_s: How long to wait before the next look.
    """

    def __init__(
        self, args: IndexArgs, index: Index, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._args = args
        self._index = index
        self._now_s = now_s
        self._seen: Seen = {}
        self._tried: _Listing | None = None
        self._before: _Listing | None = None
        self._changed_s = math.inf
        self._again_s = math.inf
        self._retry_s = INTERVAL_S
        self._has_index = False
        self._said = ""
        self.pause_s = INTERVAL_S

    def look(self) -> None:
        """Lists the files, and has them indexed if that is due."""
        now_s, started_s = self._now_s(), time.thread_time()
        try:
            found = list_files(self._args)
        except SetupError as error:
            self._say(f"{error}: the collection stays as it is")
            return
        finally:
            self.pause_s = max(INTERVAL_S, (time.thread_time() - started_s) / MAX_LOAD)
        listing = _listing(found)
        is_still, self._before = listing == self._before, listing
        is_lost = self._has_index and not (self._args.output / MANIFEST_FILE).exists()
        if listing == self._tried and now_s < self._again_s and not is_lost:
            self._changed_s = math.inf
            if self._again_s == math.inf:
                self._said = ""
            return
        self._changed_s = min(self._changed_s, now_s)
        if is_still or now_s - self._changed_s >= MAX_CHANGE_S:
            try:
                self.index(found)
            except SetupError as error:
                self._say(str(error))

    def index(self, found: Found) -> None:
        """Has files indexed now.

        Raises:
            SetupError: They cannot be; it is tried again later.
        """
        listing = _listing(found)
        if listing != self._tried:
            self._retry_s = INTERVAL_S
        self._tried = listing
        self._changed_s, self._has_index = math.inf, False
        is_done = False
        try:
            self._index(found, self._seen)
            # Others could not be read, or were changed meanwhile.
            is_done = len(self._seen) == len(found.files)
            self._has_index, self._said = True, ""
        except EmptyError as error:
            is_done = True
            self._say(str(error))
        finally:
            self._again_s = math.inf if is_done else self._now_s() + self._retry_s
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _say(self, words: str) -> None:
        if words != self._said:
            complain(words)
        self._said = words


_Listing = tuple[list[SourceFile], list[Fault]]


def _listing(found: Found) -> _Listing:
    """What is compared: files of other kinds do not matter."""
    return found.files, found.faults
