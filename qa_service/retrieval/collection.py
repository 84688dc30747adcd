"""The searching side of a collection: opens what `qa-index` wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from qa_service.errors import DamagedError, SetupError
from qa_service.files import Stamp, stamp_of
from qa_service.locked_folder import LockedFolder
from qa_service.retrieval.documents import Mark
from qa_service.retrieval.encoder_folder import SharedEncoder
from qa_service.retrieval.filters import FACTS, wanted_terms
from qa_service.retrieval.manifest import MANIFEST_FILE, ManifestHead, load_head
from qa_service.retrieval.search_messages import FoundPassage, WordCounts, distinct
from qa_service.retrieval.tantivy_index import (
    MARKS,
    STORED_NUMBERS,
    STORED_WORDS,
    Part,
    check_files,
    index_files,
    load_tantivy,
    make_analyzer,
    open_index,
    question_words,
    rarity,
    words_to_find,
)
from qa_service.wire.messages import Filter, Passage

if TYPE_CHECKING:
    import tantivy

    from qa_service.retrieval.embeddings import MergedSearch
    from qa_service.retrieval.encoder import Encoder

MAX_COPIES = 2
"""So many times the passages that are wanted are found, since copies are left out."""
_decode_filter = msgspec.json.Decoder(Filter).decode
_T = TypeVar("_T")
KEPT_PARTS = 32
"""Parts of an index that are remembered, by the filters that were asked for last."""
_decode_marks = msgspec.msgpack.Decoder(tuple[Mark, ...]).decode
_BY_WORDS_ALONE = "passages are found by words alone"
_OPEN_ATTEMPTS = 5
"""Each fails only if a run has replaced the index between the reads of its name and its files."""


class Collection:
    """The passages of the index that a folder serves; reads the folder and never writes there.

    Any number of threads may search at once. The index does not change, and its files stay mapped
    after they are removed.

    Attributes:
        head: What the index's manifest says: language, numbers of documents and passages.
        fault: Why passages are found by words alone, or with an encoder of before, though they have
            embeddings; "" if they are not.
        encoder: What embeds questions; None if passages are found by words alone.
    """

    def __init__(
        self, folder: Path, shared: SharedEncoder | None = None, former: Encoder | None = None
    ) -> None:
        """Opens what the folder serves.

        Args:
            shared: Embeds questions; without it, passages are found by words alone.
            former: Embeds questions where `shared` cannot.

        Raises:
            SetupError: It is no collection, or cannot be opened.
        """
        self._folder, self._shared = folder, shared or SharedEncoder(None)
        self._stamps = self._newest_stamps()
        _of_newest(folder, partial(self._open, former))
        self._part = lru_cache(KEPT_PARTS)(self._find_part)

    @property
    def identity(self) -> str:
        """Differs between indexes in which a search may find something else."""
        return f"{self.head!r} {self.fault}"

    def refreshed(self) -> Collection:
        """The newest index with the newest encoder, which may be this one.

        Costs one `stat` of each manifest if nothing is new, and nothing was wrong.

        Raises:
            SetupError: It cannot be opened.
        """
        stamps = self._newest_stamps()
        if stamps == self._stamps and not self.fault:
            return self
        if load_head(self._folder) != self.head or self.head.settings.encoder:
            return Collection(self._folder, self._shared, self.encoder)
        self._stamps = stamps
        return self

    def _newest_stamps(self) -> tuple[Stamp, Stamp]:
        return stamp_of(self._folder / MANIFEST_FILE), self._shared.stamp

    def _open(self, former: Encoder | None, head: ManifestHead) -> None:
        language = head.settings.language
        self.head = head
        self.fault = ""
        with _linked(self._folder / head.index) as links:
            index = open_index(links, language)
            self._schema = index.schema
            self._searcher = index.searcher()
        self._analyzers = (make_analyzer(language, drops_stop_words=True), make_analyzer(language))
        self.encoder = self._find_encoder(former) if head.settings.encoder else None
        self._merged: MergedSearch | None = None
        if self.encoder:
            from qa_service.retrieval.embeddings import (  # noqa: PLC0415 - it loads NumPy
                Embeddings,
                MergedSearch,
            )

            embeddings = Embeddings(self._folder / head.index, self.encoder.manifest.dimensions)
            self._merged = MergedSearch(self._searcher, self._schema, embeddings, self.encoder)

    def _find_encoder(self, former: Encoder | None) -> Encoder | None:
        """What embeds questions: the encoder in its folder, else the one that did before."""
        wanted = self.head.settings.encoder
        try:
            return self._shared.get(wanted)
        except SetupError as error:
            if former and former.manifest.identity == wanted:
                self.fault = f"the encoder that was loaded before is used: {error}"
                return former
            self.fault = f"{_BY_WORDS_ALONE}: {error}"
            return None

    def search(
        self,
        question: str,
        max_passages: int,
        wanted: Filter | None = None,
        counts: WordCounts | None = None,
    ) -> list[FoundPassage]:
        """The passages that match a question best, the best first, copies left out.

        A passage matches by any word of the question, and by its embedding if it has one. Stop
        words count only if no other word does.

        Args:
            wanted: The documents that they may be of; None for all.
            counts: Those of all collections that are searched for this question, so that scores
                are comparable; None for this one alone.

        Raises:
            InvalidRequestError: No document has a field of the filter.
        """
        weight_of = partial(self._weight_of, counts) if counts else None
        part = self._part(msgspec.json.encode(wanted, order="sorted")) if wanted else None
        clauses = (
            words_to_find(question, analyzer, self._schema, weight_of)
            for analyzer in self._analyzers
        )
        if self._merged:
            words = next(filter(None, clauses), [])
            merged = self._merged.search(question, words, MAX_COPIES * max_passages, part)
            return distinct((self._found(*hit) for hit in merged), max_passages)
        for words in clauses:
            query = load_tantivy().Query.boolean_query(words)
            query = part.within(query) if part else query
            hits = self._searcher.search(query, MAX_COPIES * max_passages, count=False).hits
            if hits:
                return distinct((self._found(score, at) for score, at in hits), max_passages)
        return []

    def count_words(self, question: str) -> WordCounts:
        """How many passages have each of the question's words."""
        words = {word for one in self._analyzers for word in question_words(question, one)}
        by_word = {word: self._searcher.doc_freq("words", word) for word in words}
        return WordCounts(self._searcher.num_docs, by_word)

    def _weight_of(self, counts: WordCounts, word: str) -> float:
        """By how much a word is rarer in all collections together than it is here."""
        here = rarity(self._searcher.num_docs, self._searcher.doc_freq("words", word))
        return rarity(counts.passages, counts.by_word.get(word, 0)) / here

    def _find_part(self, filter_json: bytes) -> Part:
        package = load_tantivy()
        wanted = wanted_terms(_decode_filter(filter_json), self._searcher)
        queries = [package.Query.term_set_query(self._schema, FACTS, terms) for terms in wanted]
        clauses = [
            (package.Occur.Must, package.Query.const_score_query(query, 0.0)) for query in queries
        ]
        query = package.Query.boolean_query(clauses)
        rows = self._merged.rows(query) if self._merged else None
        return Part(clauses, rows)

    def _found(
        self, score: float, at: tantivy.DocAddress, cosine: float | None = None
    ) -> FoundPassage:
        """What stands at an address, with the place of its start."""
        values = {name: its[0] for name, its in self._searcher.doc(at).to_dict().items()}
        words = {name: values[name].decode() for name in STORED_WORDS}
        numbers = {name: values[name] for name in STORED_NUMBERS}
        marks = _decode_marks(values[MARKS]) if MARKS in values else ()
        found = FoundPassage(score, Passage(**numbers, **words), cosine, marks)
        return msgspec.structs.replace(found, passage=found.passage_at(found.passage.start))


def find_fault(folder: Path, shared: SharedEncoder) -> str:
    """What an open collection's `fault` would be, without opening its index: that writes files.

    Raises:
        SetupError: It is no collection, or could not be opened.
    """

    def look(head: ManifestHead) -> str:
        check_files(folder / head.index)
        make_analyzer(head.settings.language)
        if not head.settings.encoder:
            return ""
        try:
            encoder = shared.get(head.settings.encoder)
        except SetupError as error:
            return f"{_BY_WORDS_ALONE}: {error}"
        from qa_service.retrieval.embeddings import Embeddings  # noqa: PLC0415 - it loads NumPy

        Embeddings(folder / head.index, encoder.manifest.dimensions)
        return ""

    return _of_newest(folder, look)


def _of_newest(folder: Path, look: Callable[[ManifestHead], _T]) -> _T:
    """What is found at the newest index, which may be replaced meanwhile."""
    for _ in range(_OPEN_ATTEMPTS):
        head = load_head(folder)
        try:
            return look(head)
        except SetupError:
            if load_head(folder) == head:
                raise
    raise SetupError(f"{folder} is replaced faster than it can be opened")


@contextmanager
def _linked(path: Path) -> Iterator[Path]:
    """Links to an index's files while it is opened: tantivy makes lock files where it opens it.

    They are removed as soon as it is open; those of a process that was killed before, by the next.
    """
    try:
        with closing(LockedFolder("qa-collection-")) as folder:
            links = folder.path / "opening"
            links.mkdir()
            for file in index_files(path.resolve()):
                (links / file.name).symlink_to(file)
            yield links
            # A thread of tantivy's opens the index again, and would make a lock during the removal.
            links.rename(folder.path / "opened")
    except OSError as error:
        raise DamagedError(f"{path} cannot be opened: {error.strerror}") from None
