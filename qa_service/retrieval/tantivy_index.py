"""The index on disk: tantivy's, with one searched field, `words`.

The words are those of the title, the file's name, the headings and the passage.
`file` finds the passages of a file, `row` that of an embedding, and `facts` those that a filter is
for; the others are only stored.
What a word is, `analysis` says; all are indexed, and a question's stop words are left out when it
is asked.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from qa_service.errors import DamagedError, SetupError
from qa_service.files import open_regular, read_file
from qa_service.installation import load
from qa_service.retrieval.analysis import words_of
from qa_service.retrieval.documents import Document, Passage
from qa_service.retrieval.filters import FACTS
from qa_service.retrieval.layout import title_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import tantivy

LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian"),
    *("italian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil"),
    *("turkish", "none"),
)
"""Those that tantivy has stems for, and `none`."""

MAX_QUESTION_CHARS = 4000
MAX_QUESTION_WORDS = 64
"""The bounds on a question's searched characters and different words: each word
costs a walk through the passages that have it."""

_WITHOUT_STOP_WORDS = ("arabic", "greek", "none", "romanian", "tamil", "turkish")
STORED_WORDS = ("document", "title", "heading", "text")
"""Stored fields, as UTF-8."""
STORED_NUMBERS = ("start", "end", "line")
MARKS = "marks"
"""The field with a passage's marks, in MessagePack, if it has any."""

_ANALYZER = "words"
_MAX_WORD_BYTES = 64  # longer ones are codes, which nobody asks for
_WRITER_HEAP_BYTES = 64_000_000  # a segment is written when it is full: fewer, larger ones
_ROOM_BYTES = 1 << 20  # what a disk that is not full still takes
META_FILE, _MANAGED_FILE = "meta.json", ".managed.json"
_FOOTER = re.compile(rb'\{"version":\{[^{}]*\},"crc":(\d+)\}....\x39\x05\0\0\Z', re.DOTALL)
"""JSON, its length, and 1337, as tantivy's `directory/footer.rs` writes them."""
_MAX_FOOTER_BYTES = 1000
_READ_BYTES = 1 << 20
_Kind = TypeVar("_Kind")


def load_tantivy() -> ModuleType:
    return load("tantivy", "collections need", "tantivy", "collections")


class Part(NamedTuple):
    """The passages that a filter is for.

    Attributes:
        clauses: Of a query, each of which they match; they score nothing.
        rows: Of their embeddings; None where there are none.
    """

    clauses: Sequence[tuple[tantivy.Occur, tantivy.Query]]
    rows: npt.NDArray[np.int64] | None

    def within(self, query: tantivy.Query) -> tantivy.Query:
        """What a query finds of them."""
        package = load_tantivy()
        both: tantivy.Query = package.Query.boolean_query(
            [(package.Occur.Must, query), *self.clauses]
        )
        return both


def make_analyzer(language: str, *, drops_stop_words: bool = False) -> tantivy.TextAnalyzer:
    """Makes the analyzer of what `words_of` has cut into words."""
    package = load_tantivy()
    filters = package.Filter
    builder = package.TextAnalyzerBuilder(package.Tokenizer.whitespace())
    builder = builder.filter(filters.remove_long(_MAX_WORD_BYTES)).filter(filters.lowercase())
    if drops_stop_words and language not in _WITHOUT_STOP_WORDS:
        builder = builder.filter(filters.stopword(language))
    builder = builder.filter(filters.ascii_fold())
    if language != "none":
        builder = builder.filter(filters.stemmer(language))
    analyzer: tantivy.TextAnalyzer = builder.build()
    return analyzer


def make_schema() -> tantivy.Schema:
    builder = load_tantivy().SchemaBuilder()
    builder.add_text_field("words", tokenizer_name=_ANALYZER, index_option="freq")
    for name in ("file", FACTS):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    for name in (*STORED_WORDS, MARKS):
        builder.add_bytes_field(name, stored=True)
    for name in STORED_NUMBERS:
        builder.add_unsigned_field(name, stored=True)
    builder.add_unsigned_field("row", indexed=True, fast=True)
    schema: tantivy.Schema = builder.build()
    return schema


def open_index(path: Path, language: str) -> tantivy.Index:
    """Opens an index that is there.

    Raises:
        DamagedError: It is not there, or damaged.
    """
    try:
        index: tantivy.Index = load_tantivy().Index.open(str(path))
    except (ValueError, OSError) as error:
        why = " ".join(str(error).split())
        raise DamagedError(f"{path} cannot be opened: {why}") from None
    index.register_tokenizer(_ANALYZER, make_analyzer(language))
    return index


def question_words(question: str, analyzer: tantivy.TextAnalyzer) -> list[str]:
    """The different words of a question, as they are indexed."""
    asked = words_of(question[:MAX_QUESTION_CHARS], is_question=True)
    return [*islice(dict.fromkeys(analyzer.analyze(asked)), MAX_QUESTION_WORDS)]


def words_to_find(
    question: str,
    analyzer: tantivy.TextAnalyzer,
    schema: tantivy.Schema,
    weight_of: Callable[[str], float] | None = None,
) -> list[tuple[tantivy.Occur, tantivy.Query]]:
    """The clauses of a query for texts with any word of a question.

    Args:
        weight_of: By what a word's score is multiplied.
    """
    package = load_tantivy()
    clauses = []
    for word in question_words(question, analyzer):
        query = package.Query.term_query(schema, "words", word)
        if weight_of:
            query = package.Query.boost_query(query, weight_of(word))
        clauses.append((package.Occur.Should, query))
    return clauses


def rarity(passages: int, with_word: int) -> float:
    """How much a word counts that a number of an index's passages have: the `idf` of BM25."""
    return math.log(1 + (passages - with_word + 0.5) / (with_word + 0.5))


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Makes of tantivy's errors, which are those of the disk, a `SetupError` of one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = _disk_fault(path) or " ".join(str(error).split())
        raise SetupError(f"cannot write {path}: {why}") from None


def _disk_fault(path: Path) -> str:
    """Why the disk takes no more, which a thread of tantivy's does not say; "" if it takes more."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


class IndexWriter:
    """Adds and removes files' passages; nothing counts before `commit`.

    Each method raises `SetupError` if the index cannot be written.
    """

    def __init__(self, path: Path, language: str, *, is_new: bool) -> None:
        """Opens an index.

        Args:
            is_new: Whether it may not be there yet.

        Raises:
            DamagedError: Its files are not those that were written.
        """
        with _written(path):
            if is_new and not (path / META_FILE).exists():
                load_tantivy().Index(make_schema(), path=str(path))
            check_files(path)
            self._path = path
            self._index = open_index(path, language)
            self._writer = self._index.writer(_WRITER_HEAP_BYTES, num_threads=1)

    def add(
        self,
        file: str,
        document: Document,
        passage: Passage,
        row: int | None,
        facts: Sequence[str] = (),
    ) -> None:
        """Adds a passage of a document of a file, whose embedding is in a row, or nowhere.

        Args:
            facts: The terms by which filters find it.
        """
        text = document.text[passage.start : passage.end]
        entry = load_tantivy().Document()
        names = dict.fromkeys([document.title, title_of(document.name)])
        entry.add_text("words", words_of("\n".join([*names, passage.heading, text])))
        entry.add_text("file", file)
        for fact in facts:
            entry.add_text(FACTS, fact)
        stored = (document.name, document.title, passage.heading, text)
        for name, value in zip(STORED_WORDS, stored, strict=True):
            entry.add_bytes(name, value.encode())
        if passage.marks:
            entry.add_bytes(MARKS, msgspec.msgpack.encode(passage.marks))
        for name in STORED_NUMBERS:
            entry.add_unsigned(name, getattr(passage, name))
        if row is not None:
            entry.add_unsigned("row", row)
        with _written(self._path):
            self._writer.add_document(entry)

    def files(self) -> set[str]:
        """The files with passages in the committed index, and perhaps some that were removed."""
        with _written(self._path):
            return {name for name, _ in self._index.searcher().terms_with_prefix("file", "")}

    def rows(self) -> list[int]:
        """The rows that the passages of the committed index have."""
        with _written(self._path):
            self._index.reload()
            searcher = self._index.searcher()
            if not searcher.num_docs:
                return []
            hits = searcher.search(load_tantivy().Query.all_query(), searcher.num_docs).hits
            values = searcher.fast_field_values("row", [at for _, at in hits])
            return [int(row or 0) for row in values]

    def remove(self, file: str) -> None:
        with _written(self._path):
            self._writer.delete_documents_by_term("file", file)

    def commit(self) -> None:
        with _written(self._path):
            self._writer.commit()

    def close(self) -> None:
        """Waits until segments are merged, and lets others read: tantivy's files are private."""
        with _written(self._path):
            self._writer.wait_merging_threads()
            for path in index_files(self._path):
                path.chmod(0o644)


def index_files(path: Path) -> Iterator[Path]:
    """An index's files without its locks, which a copy must not have."""
    return (file for file in path.iterdir() if file.suffix != ".lock")


class _Deletes(msgspec.Struct):
    opstamp: int


class _Segment(msgspec.Struct):
    segment_id: str
    deletes: _Deletes | None


class _Meta(msgspec.Struct):
    segments: list[_Segment]


def check_files(path: Path) -> None:
    """Compares a committed index with its checksums: damage ends a process that writes to it.

    Raises:
        DamagedError: It differs, or is not there.
    """
    try:
        meta = _read_json(path / META_FILE, _Meta)
        ids = {segment.segment_id.replace("-", ""): segment.deletes for segment in meta.segments}
        stems = {*ids, *(f"{id_}.{its.opstamp}" for id_, its in ids.items() if its)}
        for file in map(path.joinpath, _read_json(path / _MANAGED_FILE, list[str])):
            if file.stem in stems and not _is_intact(file):
                raise DamagedError(f"{file} is damaged")
    except OSError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def _read_json(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from None


def _is_intact(path: Path) -> bool:
    """Whether a file has the CRC-32 that stands in its footer."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_FOOTER_BYTES))
        footer = _FOOTER.search(file.read())
        if footer is None:
            return False
        left, crc = size - len(footer[0]), 0
        file.seek(0)
        while data := file.read(min(left, _READ_BYTES)):
            crc, left = zlib.crc32(data, crc), left - len(data)
    return crc == int(footer[1])
