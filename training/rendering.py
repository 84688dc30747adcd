"""Documents as a person reads them, from their markup.

markup ─▶ a format's reader ─▶ blocks ─▶ `layout`: text, headings, places
"""

from __future__ import annotations

import re
import textwrap

from qa_service.retrieval.documents import Document
from qa_service.retrieval.formats.markups import parse
from qa_service.retrieval.layout import lay_out

_BEGIN, _END = "\ue001", "\ue002"


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


def render_span(
    markup: str, start: int, end: int, format: str, whole: str = ""
) -> tuple[str, int, int] | None:
    """A fragment's text, and where in it a part of its markup stands: `markup[start:end]`.

    The part may begin or end within markup, such as between two `*`. None if nothing of it is
    shown, or if its ends cannot be followed.

    Args:
        format: As for `render_document`.
        whole: As for `render_fragment`.
    """
    text = render_fragment(markup, format, whole)
    part = markup[start:end]
    start += len(part) - len(part.lstrip())
    end -= len(part) - len(part.rstrip())
    marked = f"{markup[:start]}{_BEGIN}{markup[start:end]}{_END}{markup[end:]}"
    shown = render_fragment(marked, format, whole)
    if shown.replace(_BEGIN, "").replace(_END, "") == text and _BEGIN in shown and _END in shown:
        first = shown.index(_BEGIN)
        last = shown.index(_END) - 1
        return _trimmed(text, first, last)
    words = " ".join(render_fragment(markup[start:end], format, whole).split())
    pattern = r"\s+".join(map(re.escape, words.split()))
    found = re.search(pattern, text) if words else None
    return (text, *found.span()) if found else None


def _trimmed(text: str, start: int, end: int) -> tuple[str, int, int] | None:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    end -= len(part) - len(part.rstrip())
    return (text, start, end) if start < end else None
