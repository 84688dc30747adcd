"""The folder of a collection while a run writes it: see `manifest` for what is in it."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from qa_service.errors import DamagedError, SetupError
from qa_service.files import link_or_copy
from qa_service.retrieval.documents import Document
from qa_service.retrieval.filters import facts_of
from qa_service.retrieval.manifest import (
    EMBEDDINGS_FILE,
    INDEX,
    LOCK_FILE,
    MANIFEST_FILE,
    PROGRESS_FILE,
    FileEntry,
    IndexSettings,
    Manifest,
    Progress,
    save_manifest,
    served_indexes,
)
from qa_service.retrieval.search_messages import read_text
from qa_service.retrieval.tantivy_index import IndexWriter, check_files, index_files

if TYPE_CHECKING:
    from qa_service.retrieval.embeddings import EmbeddingWriter

COMMIT_PASSAGES = 5000
COMMIT_S = 20
"""The most that a killed run repeats, in passages and in seconds, or else one file."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes this run the only one that writes the collection.

    Raises:
        SetupError: The folder is something else, cannot be written, or another run writes it.
    """
    ours = {MANIFEST_FILE, PROGRESS_FILE, LOCK_FILE}
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if names and not names & ours:
            raise SetupError(f"{folder} exists and is no collection")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        raise SetupError(f"another run writes {folder}") from None
    except OSError as error:
        raise SetupError(f"cannot write in {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


class EmptyError(SetupError):
    """No file has a text to be indexed."""


OpenEmbeddings = Callable[[Path, Iterable[int]], "EmbeddingWriter"]
"""Opens the embeddings of an index, whose passages have these rows."""


class NextIndex:
    """The index that a run writes; made when the first change is.

    Attributes:
        entries: Its files, by name; until the first change, those of the index before.
    """

    def __init__(
        self,
        folder: Path,
        settings: IndexSettings,
        base: Manifest | None,
        embedder: OpenEmbeddings | None = None,
    ) -> None:
        """Goes on with what a killed run has written; otherwise begins with `base`, or nothing."""
        self._folder = folder
        self._embedder = embedder
        self._settings = settings
        self._base = base
        self._writer: IndexWriter | None = None
        self._embeddings: EmbeddingWriter | None = None
        self._removed: list[str] = []
        self._added: list[FileEntry] = []
        self._uncommitted = 0
        self._committed_s = time.monotonic()
        self._progress = Progress.load(folder, settings)
        self.entries = {entry.name: entry for entry in base.files} if base else {}
        if self._progress:
            self.entries = dict(self._progress.entries)
        self._clear_up()

    def remove(self, name: str) -> None:
        entry = self.entries.pop(name)
        if entry.passages or self._progress:
            self._opened().remove(name)
            self._removed.append(name)

    def add(self, name: str, document: Document) -> int:
        """Adds a document of a file; returns the number of its passages."""
        facts = facts_of(name, document)
        for passage in document.passages:
            writer, row = self._opened(), None
            if self._embeddings:
                text = document.text[passage.start : passage.end]
                row = self._embeddings.add(read_text(document.title, passage.heading, text).text)
            writer.add(name, document, passage, row, facts)
        self._uncommitted += len(document.passages)
        return len(document.passages)

    def finish_file(self, entry: FileEntry) -> None:
        self.entries[entry.name] = entry
        self._added.append(entry)
        is_late = time.monotonic() - self._committed_s >= COMMIT_S
        if self._uncommitted >= COMMIT_PASSAGES or (self._progress and is_late):
            self._commit()

    def publish(self, versions: dict[str, str]) -> tuple[Manifest, bool]:
        """Makes this the index that is served, and removes all but the one before.

        Returns:
            What the collection has now, and whether that is another index.

        Raises:
            EmptyError: There is nothing in it; what was served stays.
            DamagedError: Nothing has changed, and what is served differs from its checksums.
        """
        files = tuple(self.entries[name] for name in sorted(self.entries))
        if not any(entry.passages for entry in files):
            raise EmptyError("no passage was found in these files: the index is unchanged")
        if self._progress:
            self._commit()
            writer = self._opened()
            if self._embeddings:
                self._embeddings.finish(writer.rows())
            writer.close()
        elif self._base and self._base.files == files:
            check_files(self._folder / self._base.index)
            return self._base, False
        manifest = self._manifest(files, versions)
        save_manifest(self._folder, manifest)
        self._progress = None
        self._clear_up()
        return manifest, True

    def forget(self) -> None:
        """Has the next run begin anew."""
        (self._folder / PROGRESS_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Ends a run's threads; what it has not committed is lost."""
        if self._embeddings:
            self._embeddings.close()

    def _manifest(self, files: tuple[FileEntry, ...], versions: dict[str, str]) -> Manifest:
        indexes = served_indexes(self._folder)
        if self._progress:
            indexes = [self._progress.index, *indexes[:1]]
        return Manifest(
            index=indexes[0],
            index_before="".join(indexes[1:]),
            settings=self._settings,
            documents=sum(entry.documents for entry in files),
            passages=sum(entry.passages for entry in files),
            versions=versions,
            files=files,
        )

    def _opened(self) -> IndexWriter:
        if self._writer is None:
            is_resumed = self._progress is not None
            self._progress = self._progress or self._begun()
            path = self._folder / self._progress.index
            is_new = not self._progress.entries
            self._writer = IndexWriter(path, self._settings.language, is_new=is_new)
            if is_resumed:  # what the killed run committed and did not note
                for name in self._writer.files() - self._progress.entries.keys():
                    self._writer.remove(name)
            if self._embedder:
                self._embeddings = self._embedder(path, self._writer.rows())
        return self._writer

    def _begun(self) -> Progress:
        """A new index, or one of the same files as the one that is served."""
        index = f"{INDEX}{secrets.token_hex(4)}"
        path = self._folder / index
        path.mkdir()
        if self._base is None:
            return Progress(self._folder, index, self._settings, ())
        try:
            for file in index_files(self._folder / self._base.index):
                if file.name == EMBEDDINGS_FILE:  # which is written into
                    shutil.copyfile(file, path / file.name)
                else:
                    link_or_copy(file, path / file.name)  # tantivy writes only new files
        except FileNotFoundError as error:
            raise DamagedError(f"{error.filename} is missing") from None
        return Progress(self._folder, index, self._settings, self._base.files)

    def _commit(self) -> None:
        """Commits; a kill at any point leaves every file whole, or without a hash, or unknown."""
        writer = self._opened()
        assert self._progress is not None
        self._progress.add(FileEntry(name=name, size_bytes=0) for name in self._removed)
        if self._embeddings:  # a passage that is committed has its embedding
            self._embeddings.flush()
        writer.commit()
        self._progress.add(self._added)
        self._removed, self._added, self._uncommitted = [], [], 0
        self._committed_s = time.monotonic()

    def _clear_up(self) -> None:
        """Removes all but the served index, the one before it, and the one that a run continues."""
        kept = set(served_indexes(self._folder))
        if self._progress:
            kept.add(self._progress.index)
        else:
            self.forget()
        for path in self._folder.glob(f"{INDEX}*"):
            if path.name not in kept:
                shutil.rmtree(path)
