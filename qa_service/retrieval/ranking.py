"""Ranks a few texts by a question, as a collection ranks its passages, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from qa_service.retrieval.analysis import words_of
from qa_service.retrieval.tantivy_index import any_word_of, load_tantivy, make_analyzer

_LANGUAGE = "english"
_HEAP_BYTES = 15_000_000
"""The least that tantivy takes."""


def rank(question: str, texts: Iterable[str], count: int) -> list[int]:
    """The numbers of the `count` texts that match a question best, the best first.

    If fewer match, the first of the others follow.

    Raises:
        SetupError: tantivy is not installed.
    """
    tantivy = load_tantivy()
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("words", tokenizer_name=_LANGUAGE, index_option="freq")
    schema.add_unsigned_field("number", stored=True)
    index = tantivy.Index(schema.build())
    index.register_tokenizer(_LANGUAGE, make_analyzer(_LANGUAGE))
    writer = index.writer(_HEAP_BYTES, num_threads=1)
    for number, text in enumerate(texts):
        document = tantivy.Document()
        document.add_text("words", words_of(text))
        document.add_unsigned("number", number)
        writer.add_document(document)
    writer.commit()
    index.reload()
    searcher = index.searcher()
    analyzer = make_analyzer(_LANGUAGE, drops_stop_words=True)
    hits = searcher.search(any_word_of(question, analyzer, index.schema), count).hits
    best = [int(searcher.doc(address).get_first("number")) for _, address in hits]
    others = (other for other in range(searcher.num_docs) if other not in best)
    return [*best, *islice(others, count - len(best))]
