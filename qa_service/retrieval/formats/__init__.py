"""How each kind of file becomes documents.

A reader is a function of a stream, the file's name and a bound in bytes. It yields documents, and
faults for parts that it leaves out; it raises `UnreadableError` if the rest cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from qa_service.retrieval.documents import Document, Fault
from qa_service.retrieval.formats.html import read_html
from qa_service.retrieval.formats.json_lines import read_json_lines
from qa_service.retrieval.formats.pdf import read_pdf
from qa_service.retrieval.formats.plain import read_markdown, read_plain, read_rst
from qa_service.retrieval.formats.squad import read_squad

FileReader = Callable[[BinaryIO, str, int], Iterator[Document | Fault]]

FORMATS: dict[str, FileReader] = {
    ".txt": read_plain,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".rst": read_rst,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
    ".jsonl": read_json_lines,
    ".json": read_squad,
}
"""Each reader by the end of a file's name, which may have `.gz` behind it."""
