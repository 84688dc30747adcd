"""SQuAD's JSON: each paragraph is a document, with its article's title.

So offsets are those of SQuAD's `answer_start`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from qa_service.retrieval.documents import Document, UnreadableError, shortened
from qa_service.retrieval.formats.bounded import read_bytes
from qa_service.retrieval.layout import title_of


class _Paragraph(msgspec.Struct, frozen=True):
    context: str


class _Article(msgspec.Struct, frozen=True):
    paragraphs: list[_Paragraph]
    title: str = ""


class _Squad(msgspec.Struct, frozen=True):
    data: msgspec.Raw = msgspec.Raw()


_outer_decoder = msgspec.json.Decoder(_Squad)
_decoder = msgspec.json.Decoder(list[_Article])


def read_squad(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads the paragraphs; each is known by its number in the file, from 1.

    Other JSON, which has no `data`, holds no document.
    """
    try:
        articles = _articles(read_bytes(stream, max_bytes).removeprefix(codecs.BOM_UTF8))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableError(f"not in SQuAD's format: {error}") from None
    number = 0
    for article in articles:
        title = shortened(article.title.replace("_", " ")) or title_of(name)
        for paragraph in article.paragraphs:
            number += 1
            yield Document(f"{name}#{number}", title, paragraph.context)


def _articles(file: bytes) -> list[_Article]:
    try:
        data = _outer_decoder.decode(file).data
    except msgspec.ValidationError:  # JSON, but no object
        return []
    return _decoder.decode(data) if bytes(data) else []
