"""Blocks written as the one text that passages, answers and offsets are of.

A paragraph is one line, with an empty line around it. A list's items are a line each, indented by
two for each list around them, directly below the sentence that introduces them; so are a table's
rows, below its caption. Code is kept as it is. A heading is a line, and listed.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from qa_service.retrieval.documents import Block, Document, Kind, Parsed, shortened

_LINES = frozenset({Kind.ITEM, Kind.ROW})
_NO_TITLE = re.compile(
    r"microsoft (?:word|excel|powerpoint|publisher) - .*"
    r"|.*\.(?:docx?|odt|rtf|xlsx?|ods|csv|pptx?|odp|pdf|pages|key|indd|qxd|pub|fm|tex|dvi|e?ps|txt)"
    r"|(?:\(?anonymous\)?|untitled|unbenannt|sans titre|sin título|senza titolo|no title|title"
    r"|titel|titre|título"
    r"|(?:word |microsoft )?(?:document|dokument|documento)|(?:power ?point[- ])?(?:presentation|"
    r"präsentation|présentation|presentación)|slide|folie|diapositive|スライド|"
    r"(?:work)?sheet|tabelle|feuil|hoja|foglio|(?:work)?book|mappe|classeur)"
    r"(?:[ -]?(?:document|presentation|slide|sheet))?"
    r"[ _#(-]*\d{0,4}\)?",
    re.IGNORECASE,
)
"""What programs call a document, a presentation or a sheet that nobody named, in some languages."""
_OFFICE = frozenset({".docm", ".docx", ".odp", ".ods", ".odt", ".pdf", ".pptm", ".pptx"})
"""Their titles are what somebody once called them; others' are what their readers see."""
_WORD = re.compile(r"[^\W\d_]{4,}")
_FIRST, _MAX_TITLE_CHARS = 20, 100
"""Blocks among which a title is."""
_MAX_SUBTITLE_CHARS = 200
"""Of a title slide; one with more below its title is about something."""
_JOINS = _LINES | {Kind.PARAGRAPH, Kind.CAPTION}


def lay_out(parsed: Parsed, name: str) -> Document:
    """Writes a document.

    Args:
        name: What it is called; without a title, its file's name is that.
    """
    parts: list[str] = []
    blocks: list[Block] = []
    length = 0
    before: Block | None = None
    for block in parsed.blocks:
        lead = (_gap(before, block) if before else "") + _indent(block)
        words = f"{block.mark} {block.text}" if block.mark else block.text
        start = length + len(lead)
        length = start + len(words)
        parts += (lead, words)
        blocks.append(block._replace(start=start, end=length))
        before = block
    text = "".join(parts)
    highest = [block for block in blocks if block.kind is Kind.HEADING and block.level == 1]
    late = next((block.start for block in blocks if block.page > 1), length)
    is_office = PurePath(name).suffix.lower() in _OFFICE
    titles = (
        shortened(parsed.title) if not is_office or _is_said(parsed.title, text) else "",
        shortened(highest[0].text)
        if len(highest) == 1 and highest[0].start < late
        else _deck_title(parsed),
        _named_line(parsed, name) if is_office else "",
    )
    title = next(filter(says_something, titles), title_of(name))
    return Document(name, title, text, tuple(blocks))


def _is_said(title: str, text: str) -> bool:
    """Whether a text has most words of its title, which may be of what the file was made from."""
    words = set(_WORD.findall(title.lower()))
    known = text.lower() if words else ""
    return not words or 2 * sum(word in known for word in words) > len(words)


def _named_line(parsed: Parsed, name: str) -> str:
    """The first short line at a file's beginning that has all words of the file's name."""
    known = set(_WORD.findall(title_of(name).lower()))
    for block in parsed.blocks[:_FIRST] if known else ():
        is_line = block.kind not in {Kind.ROW, Kind.CODE} and len(block.text) <= _MAX_TITLE_CHARS
        if is_line and known.issubset(_WORD.findall(block.text.lower())):
            return block.text.strip(" .:")
    return ""


def _deck_title(parsed: Parsed) -> str:
    """What a presentation's title slide calls it; "" without one."""
    first = parsed.blocks[0] if parsed.blocks else None
    if first is None or first.kind is not Kind.HEADING or not first.part.startswith("slide"):
        return ""
    length = sum(len(block.text) for block in parsed.blocks if block.page == first.page)
    return shortened(first.text) if length - len(first.text) <= _MAX_SUBTITLE_CHARS else ""


def says_something(title: str) -> bool:
    """Whether a title is one: no file's name, nor what programs write where nobody wrote any.

    What ends in a colon leads to something else.
    """
    words = title.strip()
    is_written = bool(words.strip(" -_.")) and not _NO_TITLE.fullmatch(words)
    return is_written and not words.endswith(":")


def title_of(name: str) -> str:
    """A title for a document that has none: its file's name, without what says the kind."""
    return shortened(PurePath(name).stem.replace("_", " "))


def _gap(before: Block, block: Block) -> str:
    is_line = block.kind in _LINES or (block.level > 0 and block.kind is not Kind.HEADING)
    if not is_line or before.kind not in _JOINS:
        return "\n\n"
    is_other_table = block.is_first and block.kind is Kind.ROW and before.kind is Kind.ROW
    is_other_list = block.is_first and block.level == before.level and before.kind is Kind.ITEM
    return "\n\n" if is_other_table or is_other_list else "\n"


def _indent(block: Block) -> str:
    if block.kind in {Kind.HEADING, Kind.CODE}:
        return ""
    return "  " * (block.level - (block.kind is Kind.ITEM))
