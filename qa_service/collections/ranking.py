"""Ranks a few texts by a question, as a collection ranks its passages, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from qa_service.collections.collection import MAX_QUESTION_CHARS, MAX_QUESTION_WORDS
from qa_service.collections.tantivy_index import load_tantivy, make_analyzer

_LANGUAGE = "english"
_HEAP_BYTES = 15_000_000


def rank(question: str, texts: Iterable[str], count: int) -> list[int]:
    """The numbers of the texts that match a question best, the best first, filled up by the first.

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
    number = 0
    for number, text in enumerate(texts, 1):
        document = tantivy.Document()
        document.add_text("words", text)
        document.add_unsigned("number", number - 1)
        writer.add_document(document)
    writer.commit()
    index.reload()
    analyzed = make_analyzer(_LANGUAGE, drops_stop_words=True).analyze(
        question[:MAX_QUESTION_CHARS]
    )
    words = islice(dict.fromkeys(analyzed), MAX_QUESTION_WORDS)
    terms = [
        (tantivy.Occur.Should, tantivy.Query.term_query(index.schema, "words", word))
        for word in words
    ]
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.boolean_query(terms), count).hits if terms else []
    best = [int(searcher.doc(address).get_first("number")) for _, address in hits]
    others = (other for other in range(number) if other not in best)
    return [*best, *islice(others, max(0, count - len(best)))]
