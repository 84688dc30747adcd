"""The searching side of a collection: opens what `qa-index` wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.errors import DamagedError, SetupError
from qa_service.retrieval.manifest import MANIFEST_FILE, ManifestHead, load_head
from qa_service.retrieval.retriever import FoundPassage
from qa_service.retrieval.tantivy_index import (
    STORED_NUMBERS,
    STORED_WORDS,
    any_word_of,
    index_files,
    make_analyzer,
    open_index,
)
from qa_service.wire.messages import Passage

if TYPE_CHECKING:
    import tantivy

_OPEN_ATTEMPTS = 5
"""Each fails only if a run has replaced the index between the reads of its name and its files."""


class Collection:
    """The passages in a folder; reads it and never writes there.

    `search` may be called by any number of threads at once, and beside `refresh`: a search uses the
    index that is open when it begins. `refresh` is for one thread at a time.
    """

    def __init__(self, folder: Path) -> None:
        """Opens what the folder serves.

        Raises:
            SetupError: It is no collection, or cannot be opened.
        """
        self._folder = folder
        self._stamp = _stamp(folder)
        self._opened = _open(folder)

    @property
    def head(self) -> ManifestHead:
        """What the open index's manifest says: language, numbers of documents and passages."""
        return self._opened.head

    def search(self, question: str, max_passages: int) -> list[FoundPassage]:
        """The passages that match a question best, the best first.

        A passage matches by any word of the question. Stop words count only if no other word does.
        """
        return self._opened.search(question, max_passages)

    def refresh(self) -> bool:
        """Opens the newest index; returns whether it is another than before.

        Costs one `stat` of the manifest if it is not.

        Raises:
            SetupError: It cannot be opened; what was open stays so.
        """
        stamp = _stamp(self._folder)
        if stamp == self._stamp:
            return False
        is_other = load_head(self._folder) != self._opened.head
        if is_other:
            self._opened = _open(self._folder)
        self._stamp = stamp
        return is_other


class _OpenIndex:
    """An index that does not change; its files stay mapped after they are removed."""

    def __init__(self, folder: Path, head: ManifestHead) -> None:
        language = head.settings.language
        self.head = head
        with _linked(folder / head.index) as links:
            index = open_index(links, language)
            self._schema = index.schema
            self._searcher = index.searcher()
        self._analyzers = (make_analyzer(language, drops_stop_words=True), make_analyzer(language))

    def search(self, question: str, max_passages: int) -> list[FoundPassage]:
        for analyzer in self._analyzers:
            query = any_word_of(question, analyzer, self._schema)
            hits = self._searcher.search(query, max_passages, count=False).hits
            if hits:
                return [FoundPassage(score, _passage(self._searcher.doc(at))) for score, at in hits]
        return []


def _open(folder: Path) -> _OpenIndex:
    for _ in range(_OPEN_ATTEMPTS):
        head = load_head(folder)
        try:
            return _OpenIndex(folder, head)
        except SetupError:
            if load_head(folder) == head:
                raise
    raise SetupError(f"{folder} is replaced faster than it can be opened")


@contextmanager
def _linked(path: Path) -> Iterator[Path]:
    """Links to an index's files, while it is opened: tantivy makes lock files beside what it opens.

    They go as soon as it is open, so that a process that is killed leaves nothing behind.
    """
    try:
        with tempfile.TemporaryDirectory(
            prefix="qa-collection-", ignore_cleanup_errors=True
        ) as folder:
            links = Path(folder, "opening")
            links.mkdir()
            for file in index_files(path.resolve()):
                (links / file.name).symlink_to(file)
            yield links
            # A thread of tantivy's opens the index again, and would make a lock during the removal.
            links.rename(Path(folder, "opened"))
    except OSError as error:
        raise DamagedError(f"{path} cannot be opened: {error.strerror}") from None


def _stamp(folder: Path) -> tuple[int, int, int]:
    """What changes when the manifest is replaced."""
    try:
        status = (folder / MANIFEST_FILE).stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _passage(stored: tantivy.Document) -> Passage:
    values = {name: found[0] for name, found in stored.to_dict().items()}
    words = {name: values[name].decode() for name in STORED_WORDS}
    numbers = {name: values[name] for name in STORED_NUMBERS}
    return Passage(**numbers, **words)
