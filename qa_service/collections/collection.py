"""The searching side of a collection: opens what `qa-index` wrote."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from qa_service.collections.manifest import MANIFEST_FILE, ManifestHead, load_head
from qa_service.collections.retriever import FoundPassage
from qa_service.collections.tantivy_index import (
    STORED_WORDS,
    any_of,
    index_files,
    make_analyzer,
    open_index,
)
from qa_service.errors import SetupError

if TYPE_CHECKING:
    import tantivy

MAX_QUESTION_CHARS = 4000
MAX_QUESTION_WORDS = 64
"""A question's first so many characters, and different words of these, are searched for."""

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

        A passage matches by any word of the question but stop words; if none does, by these.
        """
        return self._opened.search(question, max_passages)

    def refresh(self) -> bool:
        """Opens what has been indexed since; returns whether there was something.

        If there was nothing, it costs a look at the manifest's inode.

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
    """An index that does not change; its files stay mapped also when a later run removes them."""

    def __init__(self, folder: Path, head: ManifestHead) -> None:
        language = head.settings.language
        self.head = head
        links = _links(folder / head.index)
        # Not sooner: a thread of tantivy's may look at them while the index is open.
        weakref.finalize(self, shutil.rmtree, links, ignore_errors=True)
        index = open_index(links, language)
        self._schema = index.schema
        self._searcher = index.searcher()
        self._analyzers = (make_analyzer(language, drops_stop_words=True), make_analyzer(language))

    def search(self, question: str, max_passages: int) -> list[FoundPassage]:
        for analyzer in self._analyzers:
            words = dict.fromkeys(analyzer.analyze(question[:MAX_QUESTION_CHARS]))
            query = any_of(self._schema, islice(words, MAX_QUESTION_WORDS))
            hits = self._searcher.search(query, max_passages, count=False).hits
            if hits:
                return [_passage(score, self._searcher.doc(address)) for score, address in hits]
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


def _links(path: Path) -> Path:
    """A folder of links to an index's files: tantivy makes lock files beside what it opens."""
    links = Path(tempfile.mkdtemp(prefix="qa-collection-"))
    try:
        for file in index_files(path.resolve()):
            (links / file.name).symlink_to(file)
    except OSError as error:
        shutil.rmtree(links)
        raise SetupError(f"{path} cannot be opened: {error.strerror}") from None
    return links


def _stamp(folder: Path) -> tuple[int, int, int]:
    """What changes when the manifest is replaced."""
    try:
        status = (folder / MANIFEST_FILE).stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _passage(score: float, stored: tantivy.Document) -> FoundPassage:
    values = {name: found[0] for name, found in stored.to_dict().items()}
    words = {name: values[name].decode() for name in STORED_WORDS}
    return FoundPassage(score=score, start=values["start"], end=values["end"], **words)
