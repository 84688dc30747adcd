"""The folder of a collection while a run writes it: see `manifest` for what is in it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from qa_service.collections.documents import Document
from qa_service.collections.manifest import (
    INDEX,
    LOCK_FILE,
    MANIFEST_FILE,
    PROGRESS_FILE,
    FileEntry,
    IndexSettings,
    Manifest,
    save_manifest,
)
from qa_service.collections.passages import cut
from qa_service.collections.progress import Progress
from qa_service.collections.tantivy_index import IndexWriter, index_files
from qa_service.errors import SetupError

COMMIT_PASSAGES = 5000
"""How many passages a run that is killed does again, and those of the file it was at."""


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
            raise SetupError(f"{folder} is there and is no collection")
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


class NextIndex:
    """The index that a run writes; made when the first change is.

    Attributes:
        is_begun: Whether there was a change.
        entries: The files that are in the index, by name.
    """

    def __init__(
        self, folder: Path, settings: IndexSettings, base: Manifest | None
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._base = base
        self._writer: IndexWriter | None = None
        self._pending: list[FileEntry] = []
        self._uncommitted = 0
        self._progress = Progress.load(folder, settings)
        self._clear_up()
        if self._progress:
            self._remove_unfinished()
        entries = base.files if base else ()
        self.entries = dict(
            self._progress.entries if self._progress else {entry.name: entry for entry in entries}
        )

    @property
    def is_begun(self) -> bool:
        return self._progress is not None

    def remove(self, name: str) -> None:
        """Removes a file."""
        entry = self.entries.pop(name)
        if entry.passages or self.is_begun:
            self._opened().remove(name)

    def add(self, name: str, document: Document) -> int:
        """Adds a document of a file; returns the number of its passages."""
        number = 0
        for number, passage in enumerate(cut(document, self._settings.passage_tokens), 1):
            self._opened().add(name, document, passage)
        self._uncommitted += number
        return number

    def finish_file(self, entry: FileEntry) -> None:
        """Notes that all of a file is added."""
        self.entries[entry.name] = entry
        self._pending.append(entry)
        if self._uncommitted >= COMMIT_PASSAGES:
            self._commit()

    def publish(self, versions: dict[str, str]) -> None:
        """Makes this the index that is served, and removes the one before.

        Raises:
            SetupError: There is nothing in it; what was served stays.
        """
        files = tuple(self.entries[name] for name in sorted(self.entries))
        passages = sum(entry.passages for entry in files)
        if not passages:
            raise SetupError("no passage was found in these files: nothing is changed")
        if self._progress:
            self._commit()
            self._opened().close()
        index = self._progress.index if self._progress else self._base.index if self._base else ""
        manifest = Manifest(
            index=index,
            settings=self._settings,
            documents=sum(entry.documents for entry in files),
            passages=passages,
            versions=versions,
            files=files,
        )
        save_manifest(self._folder, manifest)
        self._base, self._progress = manifest, None
        self._clear_up()

    def _opened(self) -> IndexWriter:
        if self._writer is None:
            self._progress = self._progress or self._begun()
            path = self._folder / self._progress.index
            self._writer = IndexWriter(path, self._settings.language)
        return self._writer

    def _begun(self) -> Progress:
        """A new index, or a copy of the one that is served, which does not change."""
        index = f"{INDEX}{secrets.token_hex(4)}"
        path = self._folder / index
        if self._base is None:
            IndexWriter(path, self._settings.language)
            return Progress(self._folder, index, self._settings, ())
        path.mkdir()
        try:
            for file in index_files(self._folder / self._base.index):
                shutil.copyfile(file, path / file.name)
        except FileNotFoundError as error:
            raise SetupError(f"{error.filename} is missing: index without --update") from None
        return Progress(self._folder, index, self._settings, self._base.files)

    def _remove_unfinished(self) -> None:
        """Removes what the killed run committed and did not note."""
        assert self._progress is not None
        writer = self._opened()
        for name in writer.files() - self._progress.entries.keys():
            writer.remove(name)

    def _commit(self) -> None:
        writer = self._opened()
        writer.commit()
        assert self._progress is not None
        self._progress.add(self._pending)
        self._pending, self._uncommitted = [], 0

    def _clear_up(self) -> None:
        """Removes all but what is served and what a run goes on with."""
        kept = {self._progress.index} if self._progress else set()
        if self._progress is None:
            (self._folder / PROGRESS_FILE).unlink(missing_ok=True)
        kept |= {_served(self._folder)}
        for path in self._folder.glob(f"{INDEX}*"):
            if path.name not in kept:
                shutil.rmtree(path)
