"""Documents as a person reads them, from their markup.

markup ─▶ a format's reader ─▶ blocks ─▶ `layout`: text, headings, places
"""

from __future__ import annotations

import textwrap

from qa_service.retrieval.documents import Document
from qa_service.retrieval.formats.markups import parse
from qa_service.retrieval.layout import lay_out


def render_document(markup: str, format: str, name: str = "") -> Document:
    """A file's markup as a document.

    Args:
        format: A key of `MARKUPS` ("markdown", "rst", "html", "text"), or a file's name or ending.
        name: What the document is called; its title, where the markup has none.
    """
    return lay_out(parse(markup, format), name)


def render_fragment(markup: str, format: str, whole: str = "") -> str:
    """A part of a file, as it stands in the whole document's text.

    Args:
        format: As for `render_document`.
        whole: The file that it is from, for the definitions of links and substitutions.
    """
    return lay_out(parse(textwrap.dedent(markup), format, whole), "").text
