"""One run of `qa-index`: reads folders and writes a collection."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from qa_service import __version__
from qa_service.errors import DamagedError, SetupError
from qa_service.installation import install_hint, installed_version
from qa_service.retrieval.documents import Document, Fault, ReadLimits
from qa_service.retrieval.encoder_folder import encoder_folder
from qa_service.retrieval.extract_main import MAX_ORDERS, Extractors
from qa_service.retrieval.files import Found, SourceFile, SourceStamp, find_files, format_of
from qa_service.retrieval.manifest import (
    MANIFEST_FILE,
    FileEntry,
    IndexSettings,
    Manifest,
    load_manifest,
)
from qa_service.retrieval.passages import PASSAGE_TOKENS
from qa_service.retrieval.tantivy_index import load_tantivy
from qa_service.retrieval.writing import NextIndex, OpenEmbeddings, locked

if TYPE_CHECKING:
    from qa_service.retrieval.encoder import Encoder

MAX_FIRST_FAULTS = 5  # are named of a file; further ones are counted
MAX_NAMED_OTHERS = 5  # files of other kinds; all are counted
MAX_READERS = 8
"""Processes that read files: beyond these one process cannot write as fast as they read."""
READER_BYTES = 1 << 20
"""Of the files, for each process: to start one for less takes as long as reading it."""
LANGUAGE = "english"
PACKAGES = ("markdown-it-py", "pypdfium2", "python-oxmsg", "python-pptx", "selectolax", "tantivy")
"""What documents are read and indexed with; a manifest names their versions."""
EMBEDDED_LANGUAGES = ("english", "none")
"""The encoder has learned from English texts; others are embedded if one asks for it."""


class IndexArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do: the flags of `qa-index`, and what they are if they are not given.

    Attributes:
        language: Whose stems words are reduced to; None for that of the collection that is updated,
            else English.
        passage_tokens: As in `IndexSettings`; None as for `language`.
        embeddings: Whether passages are embedded too; None as for `language`, else if the language
            is among `EMBEDDED_LANGUAGES`.
        encoder: The encoder's folder; None for `encoder_folder.DEFAULT_ENCODER`.
    """

    sources: tuple[Path, ...]
    output: Path
    language: str | None = None
    passage_tokens: int | None = None
    embeddings: bool | None = None
    encoder: Path | None = None
    num_threads: int = 1
    update: bool = False
    follow_links: bool = False
    limits: ReadLimits = ReadLimits()


Seen = dict[str, tuple[SourceStamp, FileEntry]]
"""Files by name that need not be looked into while they are as they were when they were indexed."""


class Reporter:
    """Receives the events of a run; this one ignores them."""

    def on_note(self, line: str) -> None:
        """The run does something that was not asked for."""

    def on_files(self, size_bytes: int) -> None:
        """The files are listed; so long are all together."""

    def on_fault(self, line: str) -> None:
        """A file, or a part of one, is left out."""

    def on_passages(self, number: int) -> None:
        """Passages were added."""

    def on_file_done(self, size_bytes: int) -> None:
        """A file is done, whether it was read or not."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the collection has now, and what became of the files.

    Attributes:
        kept: Files that have not changed.
        removed: Files that are gone.
        others: Files of a kind that is not read, or JSON without a document.
        first_others: Their first few names.
        empty: Files without a text.
        faulty: Files and folders that were left out, or have parts that were.
        is_new: Whether another index is served now.
    """

    is_new: bool
    documents: int
    passages: int
    read: int
    kept: int
    removed: int
    others: int
    first_others: list[str]
    empty: int
    faulty: int


def list_files(args: IndexArgs) -> Found:
    """The files of the sources; `SetupError` if these cannot be listed."""
    try:
        return find_files(args.sources, args.output, follow_links=args.follow_links)
    except (OSError, RuntimeError) as error:  # the second for links in a circle
        raise SetupError(f"the files cannot be listed: {error}") from None


def build(
    args: IndexArgs, reporter: Reporter, found: Found | None = None, seen: Seen | None = None
) -> Summary:
    """Writes a collection; goes on with what a killed run has written.

    Args:
        found: The files of the sources, if they have been listed.
        seen: What the run before has seen; has what this one has seen when it is done.

    Raises:
        EmptyError: The files have no text; the collection that is served stays.
        SetupError: The collection cannot be written; the one that is served stays.
    """
    _require_packages()
    found = found or list_files(args)
    seen = {} if seen is None else seen
    try:
        with (
            locked(args.output),
            closing(Extractors(args.limits)) as extractors,
            closing(_Run(args, extractors, reporter, seen)) as run,
        ):
            return run.run(found)
    except DamagedError as error:
        raise SetupError(f"{error}: index without --update") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise SetupError(f"cannot write {error.filename or args.output}: {why}") from None


class _Run:
    def __init__(
        self, args: IndexArgs, extractors: Extractors, reporter: Reporter, seen: Seen
    ) -> None:
        self._extractors = extractors
        self._max_readers = min(args.num_threads, MAX_READERS)
        self._reporter = reporter
        self._seen = seen
        is_there = (args.output / MANIFEST_FILE).exists()  # a first run may be an update too
        base = load_manifest(args.output) if args.update and is_there else None
        before = base.settings if base else None
        language = args.language or (before.language if before else LANGUAGE)
        encoder = _open_encoder(args, base, language)
        known_tokens = before.passage_tokens if before else PASSAGE_TOKENS
        settings = IndexSettings(
            language=language,
            passage_tokens=args.passage_tokens or known_tokens,
            tantivy=load_tantivy().__version__,
            encoder=encoder.manifest.identity if encoder else "",
        )
        if base and base.settings != settings:
            reporter.on_note("other settings or versions than before: all files are read again")
            base = None
        self._passage_tokens = settings.passage_tokens
        embedder: OpenEmbeddings | None = None
        if encoder:
            from qa_service.retrieval.embeddings import EmbeddingWriter  # noqa: PLC0415 - NumPy

            embedder = partial(EmbeddingWriter, encoder=encoder, num_threads=args.num_threads)
        self._next = NextIndex(args.output, settings, base, embedder)
        self._read_files = self._removed_files = 0

    def close(self) -> None:
        self._next.close()

    def run(self, found: Found) -> Summary:
        faults = [f"{fault.where}: {fault.why}" for fault in found.faults]
        for line in faults:
            self._reporter.on_fault(line)
        try:
            for name in sorted(self._next.entries.keys() - {file.name for file in found.files}):
                self._remove(name)
            size_bytes = sum(file.size_bytes for file in found.files)
            self._reporter.on_files(size_bytes)
            self._take(found.files, min(self._max_readers, 1 + size_bytes // READER_BYTES))
            versions = {package: installed_version(package) for package in PACKAGES}
            ours = {"qa-server": __version__, "python": platform.python_version()}
            manifest, is_new = self._next.publish(ours | versions)
        except DamagedError:
            self._next.forget()  # so that the next run does not go on with it
            raise
        entries = [(file, self._next.entries.get(file.name)) for file in found.files]
        seen = {f.name: (f.stamp, entry) for f, entry in entries if entry and entry.sha256}
        self._seen.clear()
        self._seen.update(seen)
        textless = [entry for entry in manifest.files if not (entry.passages or entry.faults)]
        return Summary(
            is_new=is_new,
            documents=manifest.documents,
            passages=manifest.passages,
            read=self._read_files,
            kept=len(manifest.files) - self._read_files,
            removed=self._removed_files,
            others=len(found.others) + sum(e.size_bytes > 0 for e in textless if not e.documents),
            first_others=found.others[:MAX_NAMED_OTHERS],
            empty=sum(e.documents > 0 or e.size_bytes == 0 for e in textless),
            faulty=len(faults) + sum(entry.faults > 0 for entry in manifest.files),
        )

    def _remove(self, name: str) -> None:
        self._next.remove(name)
        self._removed_files += 1

    def _take(self, files: Sequence[SourceFile], num_readers: int) -> None:
        """Reads what is new, in the files' order, and a few files ahead."""
        ahead: deque[tuple[SourceFile, str, Iterator[Document | Fault]]] = deque()
        for file in files:
            if (sha256 := self._hash_if_new(file)) is None:
                self._reporter.on_file_done(file.size_bytes)
                continue
            if len(ahead) == MAX_ORDERS * num_readers:
                self._finish(*ahead.popleft())
            messages = self._extractors.read(file, self._passage_tokens, num_readers)
            ahead.append((file, sha256, messages))
        while ahead:
            self._finish(*ahead.popleft())

    def _hash_if_new(self, file: SourceFile) -> str | None:
        """The hash of a file that is to be read; "" if that is not possible, None if it is not."""
        known = self._next.entries.get(file.name)
        if known and self._seen.get(file.name) == (file.stamp, known):
            return None
        sha256 = file.sha256()
        is_same = known and known.sha256 == sha256 != ""
        if known and is_same and (known.documents or not known.faults):  # else it is tried again
            for line in known.first_faults:
                self._reporter.on_fault(line)
            return None
        if not (sha256 or file.path.exists()):  # removed since it was listed
            if known:
                self._remove(file.name)
            return None
        return sha256

    def _finish(self, file: SourceFile, sha256: str, messages: Iterator[Document | Fault]) -> None:
        """Puts a file's documents, as they are read, in place of those that it had."""
        if file.name in self._next.entries:
            self._next.remove(file.name)
        self._read_files += 1
        documents = passages = faults = 0
        first_faults: list[str] = []
        line = ""
        for message in messages:
            if isinstance(message, Document):
                documents += 1
                added = self._next.add(file.name, message)
                passages += added
                self._reporter.on_passages(added)
                continue
            faults += 1
            line = f"{message.where}: {message.why}"
            if faults <= MAX_FIRST_FAULTS:
                first_faults.append(line)
        if faults > MAX_FIRST_FAULTS:
            others = faults - MAX_FIRST_FAULTS
            first_faults.append(f"{file.name}: {others} more; the last is {line}")
        for line in first_faults:
            self._reporter.on_fault(line)
        entry = FileEntry(
            name=file.name,
            size_bytes=file.size_bytes,
            sha256=sha256 if file.is_as_found() else "",  # it was written while it was read
            documents=documents,
            passages=passages,
            faults=faults,
            first_faults=tuple(first_faults),
        )
        self._next.finish_file(entry)
        self._reporter.on_file_done(file.size_bytes)


def read_documents(args: IndexArgs) -> Iterator[Document | Fault]:
    """Yields the documents of the sources, and what is left out of them; writes nothing.

    Raises:
        SetupError: A source is not there, or a package is missing.
    """
    _require_packages()
    found = list_files(args)
    yield from found.faults
    for source in args.sources:
        if source.is_file() and not format_of(source.name):
            yield Fault(source.name, "a file of another kind, which is not read")
    with closing(Extractors(args.limits)) as extractors:
        for file in found.files:
            yield from extractors.read(file, args.passage_tokens or PASSAGE_TOKENS)


def _require_packages() -> None:
    load_tantivy()
    missing = [package for package in PACKAGES if not installed_version(package)]
    if missing:
        names = ", ".join(missing)
        raise SetupError(f"qa-index needs {names}: {install_hint('collections')}")


def _open_encoder(args: IndexArgs, base: Manifest | None, language: str) -> Encoder | None:
    """What passages are embedded with; None if they are found by words alone."""
    wanted = args.embeddings
    if wanted is None:
        wanted = bool(base.settings.encoder) if base else language in EMBEDDED_LANGUAGES
    if not wanted:
        return None
    from qa_service.retrieval.encoder import Encoder  # noqa: PLC0415 - it loads NumPy

    try:
        return Encoder(encoder_folder(args.encoder))
    except SetupError as error:
        raise SetupError(
            f"{error}; with --no-embeddings passages are found by words alone"
        ) from None
