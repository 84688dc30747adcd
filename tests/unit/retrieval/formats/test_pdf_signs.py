"""What a PDF's fonts draw is read, whatever letters the file names it by."""

import pytest

from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.pdf_files import (
    content,
    lines,
    number_after,
    pdf_of,
    stream,
    words,
)


def text_in(font: str, *parts: str, more: str = "", others: tuple[bytes, ...] = ()) -> str:
    """The text of a page whose font `F3` has this name."""
    first = f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding {more} >>"
    return reading.read("a.pdf", pdf_of([content(*parts)], more=(first.encode(), *others))).text


@pytest.mark.parametrize(
    ("font", "letter"), [("ABCDEF+Wingdings-Regular", "§"), ("Webdings", "c"), ("SymbolMT", "·")]
)
def test_a_letter_of_a_font_of_signs_is_a_bullet(font, letter):
    items = ("Fire doors", "Exits and lamps", "Stairs")
    marks = "".join(words(72, 700 - 12 * n, letter, font="F3") for n in range(3))
    assert text_in(font, marks, lines(90, 700, *items)) == (
        "- Fire doors\n- Exits and lamps\n- Stairs"
    )


def test_a_mark_of_wingdings_is_what_it_shows():
    page = words(72, 700, "Approved:") + words(130, 700, "ü", font="F3")
    assert text_in("Wingdings", page) == "Approved: ✓"


def test_a_hyphen_that_the_file_names_thrice_is_one():
    page = words(72, 700, "12-14 years, call 719-384", font="F3")
    cmap = f"/ToUnicode {number_after([content(page)]) + 1} 0 R"
    mapping = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /M def"
        b" /CMapType 2 def 1 begincodespacerange <00> <FF> endcodespacerange"
        b" 1 beginbfchar <2D> <002D00AD2010> endbfchar"
        b" 1 beginbfrange <2E> <7A> <002E> endbfrange endcmap end end"
    )
    text = text_in("Helvetica", page, more=cmap, others=(stream(mapping),))
    assert text == "12-14 years, call 719-384"
