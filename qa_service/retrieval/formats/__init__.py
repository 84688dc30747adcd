"""How each kind of file becomes documents.

A reader is a function of a stream, the file's name and a bound in bytes. It yields documents, and
faults for parts that it leaves out; it raises `UnreadableError` if the rest cannot be read. Readers
of markup and of plain text make blocks of a text, which `layout` writes as a person reads them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO

import msgspec

from qa_service.retrieval.documents import Block, Document, Fault, Kind, Parsed, without_invisible
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.formats.front_matter import front_fields, split_front_matter
from qa_service.retrieval.layout import lay_out

_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def parse_plain(text: str, whole: str | None) -> Parsed:
    """Cuts a text at its empty lines; lines stay lines."""
    title, body, line = split_front_matter(text)
    blocks, start = list[Block](), 0
    for gap in (*_EMPTY_LINES.finditer(body), None):
        end = gap.start() if gap else len(body)
        words = without_invisible(body[start:end]).strip("\n").rstrip()
        if words.strip():
            first = line + body.startswith("\n", start)
            blocks.append(Block(Kind.PARAGRAPH, words, first))
        if gap:
            line += body.count("\n", start, gap.end())
            start = gap.end()
    return Parsed(blocks, title)


MarkupReader = Callable[[str, str | None], Parsed]
"""Takes the markup, and the file that it is a part of; None if it is all of a file."""


def _imported(module: str, name: str) -> Callable[..., Any]:
    """A function of a module, imported with the first text or file of its kind: it takes memory."""

    def call(*arguments: object) -> object:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*arguments)

    return call


MARKUPS: dict[str, MarkupReader] = {
    "text": parse_plain,
    "markdown": _imported("markdown", "parse_markdown"),
    "rst": _imported("rst", "parse_rst"),
    "html": _imported("html", "parse_html"),
}

ENDINGS = {
    ".txt": "text",
    ".text": "text",
    ".adoc": "text",
    ".md": "markdown",
    ".mdx": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
}
"""The markup of files, by the end of their names."""

TEMPLATES = (".j2", ".jinja")
"""May stand behind another ending."""


def markup_of(name: str) -> str:
    """The markup of a file by its name, a key of `MARKUPS`; "" if it has none of them."""
    path = PurePath(name.lower() if PurePath(name).suffix else f"x{name.lower()}")
    if path.suffix in TEMPLATES:
        path = path.with_suffix("")
    return ENDINGS.get(path.suffix, "")


def parse(markup: str, format: str, whole: str | None = None) -> Parsed:
    """Makes blocks of a text.

    Args:
        format: A key of `MARKUPS`, or a file's name or ending.
        whole: The file that the text is a part of; None if it is all of it.
    """
    text = markup.removeprefix("\ufeff").replace("\0", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return MARKUPS[format if format in MARKUPS else markup_of(format)](text, whole)


FileReader = Callable[[BinaryIO, str, int], Iterator[Document | Fault]]


def read_markup(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    text = read_text(stream, max_bytes)
    document = lay_out(parse(text, name), name)
    yield msgspec.structs.replace(document, fields=front_fields(text))


FORMATS: dict[str, FileReader] = dict.fromkeys(ENDINGS, read_markup) | {
    ".csv": _imported("csv", "read_csv"),
    ".tsv": _imported("csv", "read_csv"),
    ".doc": _imported("older_office", "read_older"),
    ".docm": _imported("docx", "read_docx"),
    ".docx": _imported("docx", "read_docx"),
    ".eml": _imported("eml", "read_eml"),
    ".epub": _imported("epub", "read_epub"),
    ".ipynb": _imported("json_files", "read_notebook"),
    ".msg": _imported("eml", "read_msg"),
    ".odp": _imported("odf", "read_odf"),
    ".ods": _imported("odf", "read_odf"),
    ".odt": _imported("odf", "read_odf"),
    ".pdf": _imported("pdf", "read_pdf"),
    ".ppt": _imported("older_office", "read_older"),
    ".pptm": _imported("pptx", "read_pptx"),
    ".pptx": _imported("pptx", "read_pptx"),
    ".rtf": _imported("older_office", "read_older"),
    ".xls": _imported("older_office", "read_older"),
    ".xlsm": _imported("xlsx", "read_xlsx"),
    ".xlsx": _imported("xlsx", "read_xlsx"),
    ".jsonl": _imported("json_files", "read_json_lines"),
    ".json": _imported("json_files", "read_squad"),
}
"""Each reader by the end of a file's name; of some kinds `files.format_of` takes longer ones."""
