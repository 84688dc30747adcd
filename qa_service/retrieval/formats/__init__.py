"""How each kind of file becomes documents.

A reader is a function of a stream, the file's name and a bound in bytes. It yields documents, and
faults for parts that it leaves out; it raises `UnreadableError` if the rest cannot be read. Readers
of markup (`markups`) make blocks of a text, which `layout` writes as a person reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from qa_service.retrieval.documents import Document, Fault
from qa_service.retrieval.formats.bounded import read_text
from qa_service.retrieval.formats.csv import read_csv
from qa_service.retrieval.formats.docx import read_docx
from qa_service.retrieval.formats.eml import read_eml
from qa_service.retrieval.formats.epub import read_epub
from qa_service.retrieval.formats.json_lines import read_json_lines
from qa_service.retrieval.formats.markups import ENDINGS, parse
from qa_service.retrieval.formats.notebook import read_notebook
from qa_service.retrieval.formats.odf import read_odf
from qa_service.retrieval.formats.pdf import read_pdf
from qa_service.retrieval.formats.pptx import read_pptx
from qa_service.retrieval.formats.squad import read_squad
from qa_service.retrieval.formats.xlsx import read_xlsx
from qa_service.retrieval.layout import lay_out

FileReader = Callable[[BinaryIO, str, int], Iterator[Document | Fault]]


def read_markup(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    """Reads a file of markup or plain text."""
    yield lay_out(parse(read_text(stream, max_bytes), name), name)


FORMATS: dict[str, FileReader] = dict.fromkeys(ENDINGS, read_markup) | {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".docm": read_docx,
    ".docx": read_docx,
    ".eml": read_eml,
    ".epub": read_epub,
    ".ipynb": read_notebook,
    ".odp": read_odf,
    ".ods": read_odf,
    ".odt": read_odf,
    ".pdf": read_pdf,
    ".pptm": read_pptx,
    ".pptx": read_pptx,
    ".xlsm": read_xlsx,
    ".xlsx": read_xlsx,
    ".jsonl": read_json_lines,
    ".json": read_squad,
}
"""Each reader by the end of a file's name; of some kinds `files.format_of` takes longer ones."""
