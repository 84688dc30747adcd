"""Rich Text and what Office wrote before 2007, each written by LibreOffice and read by it."""

import shutil
import socket
import subprocess

import openpyxl
import pptx
import pytest

from qa_service.retrieval.documents import UnreadableError
from tests.unit.retrieval.formats.reading import read, saved
from tests.unit.retrieval.formats.word_files import cell, paragraph, row, table, word_file

needs_libreoffice = pytest.mark.skipif(
    not shutil.which("soffice"), reason="there is no LibreOffice"
)


def wide(text):
    return cell(text, '<w:tcW w:w="2000" w:type="dxa"/>')


TIMES = (("Day", "Closes"), ("Monday", "17:00"), ("Friday", "21:30"))
PROSE = word_file(
    paragraph("Opening hours", '<w:outlineLvl w:val="0"/>')
    + paragraph("The hall opens at nine.")
    + table(*(row(*map(wide, cells)) for cells in TIMES))
    + paragraph("Ring the bell.")
)


def workbook():
    book = openpyxl.Workbook()
    for cells in (["Plan", "Cost"], ["Solo", 5], ["Team", 18]):
        book.active.append(cells)
    book.active["B2"].number_format = '"$"#,##0.00'
    return saved(book)


def presentation():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Steps"
    slide.placeholders[1].text_frame.text = "Dig a hole"
    return saved(deck)


def written(tmp_path, present, data, ending):
    """A file as LibreOffice writes it in another format."""
    (tmp_path / f"a.{present}").write_bytes(data)
    settings = f"-env:UserInstallation={(tmp_path / 'settings').as_uri()}"
    command = ["soffice", settings, "--headless", "--convert-to", ending, f"a.{present}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return (tmp_path / f"a.{ending}").read_bytes()


@needs_libreoffice
@pytest.mark.parametrize(
    ("present", "make", "ending"),
    [("docx", lambda: PROSE, "doc"), ("docx", lambda: PROSE, "rtf"), ("xlsx", workbook, "xls"),
     ("pptx", presentation, "ppt")],
)  # fmt: skip
def test_a_file_of_an_older_format_reads_as_one_of_the_present_format(
    tmp_path, present, make, ending
):
    data = make()
    document = read(f"A.{ending.upper()}", written(tmp_path, present, data, ending))
    assert document.text == read(f"a.{present}", data).text
    assert document.name == f"A.{ending.upper()}"


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.xls", "\ufeff<table><tr><th>Plan<th>Cost<tr><td>Solo<td>5", "Plan: Solo; Cost: 5"),
        ("a.xls", "Plan\tCost\nSolo\t5\n", "Plan: Solo; Cost: 5"),
        ("a.doc", "<html><h1>Hours</h1><p>Nine to five.", "Hours\n\nNine to five."),
        ("a.doc", "Nine to five.", "Nine to five."),
        ("a.doc", word_file(paragraph("Nine to five.")), "Nine to five."),
    ],
)  # fmt: skip
def test_what_only_has_such_a_name_is_read_as_what_it_is(name, data, text):
    assert read(name, data).text == text


@needs_libreoffice
@pytest.mark.parametrize("ending", ["doc", "xls", "ppt"])
def test_a_broken_file_is_named(ending):
    broken = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(range(256)) * 9
    with pytest.raises(UnreadableError, match="cannot load it: it is broken or encrypted"):
        read(f"a.{ending}", broken)


def test_without_libreoffice_the_reason_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnreadableError, match="needed to read it, is not installed"):
        read("a.rtf", r"{\rtf1 Hello}")


@needs_libreoffice
def test_no_link_of_a_file_is_followed(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        web = f"http://127.0.0.1:{server.getsockname()[1]}"
        fields = [f'INCLUDEPICTURE "{web}/a.png" \\\\d', f'INCLUDETEXT "{web}/a.txt"',
                  f'INCLUDETEXT "{tmp_path}/secret.txt"']  # fmt: skip
        linked = "".join(rf"{{\field{{\*\fldinst {field}}}{{\fldrslt kept}}}} " for field in fields)
        assert read("a.rtf", rf"{{\rtf1\ansi Hello {linked}world.\par}}").text == (
            "Hello kept kept kept world."
        )
        with pytest.raises(TimeoutError):
            server.accept()


@needs_libreoffice
def test_what_becomes_too_long_is_named():
    with pytest.raises(UnreadableError, match=r"LibreOffice|--max_file_bytes"):
        read("a.rtf", r"{\rtf1\ansi " + "A word. " * 900 + "}", bound=8_000)
