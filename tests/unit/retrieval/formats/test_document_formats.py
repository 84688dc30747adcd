"""Each kind of file becomes documents."""

import datetime
import io
import json
import re
import zipfile

import docx
import openpyxl
import pytest

from harness.server import ROOT
from qa_service.retrieval.documents import (
    MAX_NAME_CHARS,
    Document,
    Fault,
    UnreadableError,
    shortened,
)
from qa_service.retrieval.files import format_of
from qa_service.retrieval.formats import FORMATS
from tests.support import all_of
from tests.unit.retrieval.formats.pdf_files import pdf_file
from tests.unit.retrieval.formats.reading import read, read_all, read_parts, saved

BOUND = 1 << 20


def test_the_page_has_the_ending_of_each_format():
    page = (ROOT / "docs" / "COLLECTIONS.md").read_text()
    table = page.partition("### File formats")[2].partition("### ")[0]
    assert set(re.findall(r"`(\.\w+)`", table)) == set(FORMATS)


def headings(document: Document) -> list[tuple[int, str, str]]:
    """Each heading's level, words, and the line of the text where it starts."""
    return [(h.level, h.text, document.text[h.start :].splitlines()[0]) for h in document.headings]


def test_a_plain_text_is_as_the_file_has_it():
    text = "Première ligne.\r\n\r\n\tSecond 🦊.\n"
    document = read("a/some_notes.txt", text)
    assert document.title == "some notes"
    assert document.text == "Première ligne.\n\n\tSecond 🦊."
    assert [block.line for block in document.blocks] == [1, 3]


def test_markdown_has_headings():
    text = (
        "\ufeff# Top #\nwords\n\nLow\n---\n```\n# a comment\n```\n~~~~\n~~~\n# no\n~~~~\n"
        "- item\n---\n### Deep\n#nospace\n| a\n---\n"
    )
    document = read("a.md", text)
    assert document.title == "Top"
    assert headings(document) == [(1, "Top", "Top"), (2, "Low", "Low"), (3, "Deep", "Deep")]


def test_restructured_text_has_headings():
    text = "=====\nTop\n=====\n\nLow\n---\nwords\n\nNext\n----\n\nwords\n\n----\n\nDeep\n~~~~\n"
    document = read("a.rst", text)
    assert document.text == "Top\n\nLow\n\nwords\n\nNext\n\nwords\n\nDeep"
    assert headings(document) == [
        (1, "Top", "Top"),
        (2, "Low", "Low"),
        (2, "Next", "Next"),
        (3, "Deep", "Deep"),
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (
            "<Note>\n    It is **new**.\n\n    - See [there](/b).\n    - `Ask`.\n</Note>\nOn.\n",
            "It is new.\n- See there.\n- Ask.\n\nOn.",
        ),
        (
            "1. Do it.\n   <Note>\n     So.\n   </Note>\n\n   Then this.\n",
            "1. Do it.\n  So.\n  Then this.",
        ),
        (
            '<Tabs\n  values={[\n    {label: "A", run: () => {}},\n  ]}\n>\n'
            '  <Tab title="Linux">\n    Run:\n\n    ```\n    make all\n    ```\n  </Tab>\n'
            "</Tabs>\n",
            "- A\n\nLinux\n\nRun:\n\nmake all",
        ),
        (
            '<Tiles\n  title="More"\n  items={[\n    { name: "A", description: "Of it." },\n'
            "    { href: '/b', name: 'B' },\n  ]}\n/>\nOn.\n",
            "More\n- A: Of it.\n- B\n\nOn.",
        ),
        (
            '<Property name="port" type="number">\n  The port.\n</Property>\n<Icon name="a" />\n',
            "port (number): The port.",
        ),
        ("<Cards are\n\ntext.\n", "<Cards are\n\ntext."),
        ("Two<sup style={{color: 'red'}}>th</sup>.\n", "Twoth."),
    ],
)
def test_what_is_within_jsx_is_text(markup, text):
    assert read("a.mdx", markup).text == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Text:\n\n    some code\n", "Text:\n\nsome code"),
        (
            'Set:\n\n    <Connector port="80"\n        name="a" />\n    <Host>\n',
            'Set:\n\n<Connector port="80"\n    name="a" />\n<Host>',
        ),
        ("Set:\n\n\t<Host *:80>\n\t\tName a\n", "Set:\n\n<Host *:80>\n\tName a"),
        ("<Enter>\n\nOn:\n\n    if a:\n        b\n", "On:\n\nif a:\n    b"),
        ("One<BR>\n<BR>\n\n    if a:\n        b\n", "One\n\nif a:\n    b"),
        ("<Link\n  href='/a'>There</Link>\n", "There"),
        ("<Bob is here\n- One.\n\nOn.\n", "<Bob is here\n- One.\n\nOn."),
        ("<Bob is here\nand stays", "<Bob is here and stays"),
        ("<Note that a\nis ->\n", "<Note that a is ->"),
        ("<Bob\n```\nls\n```\n", "<Bob\n\nls"),
        ("Begin {% raw\nwith it.\n", "Begin {% raw with it."),
        ("Set image={{ .Image }} there.\n", "Set image= there."),
    ],
)
def test_what_only_looks_like_a_tag_is_text_or_code(markup, text):
    assert read("a.md", markup).text == text


def test_a_box_within_a_box_is_text():
    code = "\n        ```\n        ls\n        ```\n"
    markup = f'=== "Linux"\n\n    !!! note\n        It is **new**.\n{code}'
    assert read("a.md", markup).text == "Linux\n\nNote: It is new.\n\nls"


def test_a_term_that_shows_nothing_has_no_colon():
    document = read("a.rst", "The modes:\n\n\\\n   It copies.\n")
    assert document.text == "The modes:\nIt copies."


def test_html_is_what_a_reader_sees():
    page = """<!doctype html><html><head><title>The
        page</title><style>p {color: red}</style><script>var a = "<p>x</p>";</script></head>
        <body><h1>Top <em>words</em></h1><p>One &amp; two<br>three.</p><ul><li>a<li>b</ul>
        <table><tr><td>1<td>2</table><pre>x
          y</pre><svg><text>no</text></svg><p onclick="alert(1)">End"""
    document = read("a.html", page)
    assert document.title == "The page"
    assert document.text == (
        "Top words\n\nOne & two\nthree.\n- a\n- b\n1; 2\n\nx\n          y\n\nEnd"
    )
    assert headings(document) == [(1, "Top words", "Top words")]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<div>Intro text <h2 hidden>Menu</h2> more</div>", "Intro text more"),
        ("<dl>Before <dt hidden>T</dt><dd>Words</dd></dl>", "  Before\nWords"),
    ],
)
def test_what_is_hidden_in_html_ends_nothing(page, text):
    document = read("a.html", page)
    assert (document.text, list(document.headings)) == (text, [])


def test_signs_that_show_alone_what_opens_are_no_text():
    page = "<h2>Fees?</h2><span>+</span><p>None.</p><div>$</div><div>5</div><p>a + b</p>"
    assert read("a.html", page.encode()).text == "Fees?\n\nNone.\n\n$\n\n5\n\na + b"


@pytest.mark.parametrize(
    "page", ["", "<", "<p", "<!--", "<script>", "&#xD800;", "</p></p>", "<h1>", "<![CDATA[x]]>"]
)
def test_html_that_is_cut_off_is_read(page):
    document = read("a.html", page)
    document.text.encode()


def test_a_pdf_has_its_pages_texts():
    document = read("a.pdf", pdf_file("First page.", "Second page.", title="The second"))
    assert (document.title, document.text) == ("The second", "First page.\n\nSecond page.")
    assert read("a.pdf", pdf_file("First page.", title="First:")).title == "a"


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7\n", pdf_file("words")[:100]])
def test_a_broken_pdf_is_refused(data):
    with pytest.raises(Exception):  # noqa: B017, whatever pypdf raises is caught above it
        read("a.pdf", data)


def test_a_pdf_without_text_is_an_error():
    with pytest.raises(UnreadableError, match="OCR"):
        read("a.pdf", pdf_file(""))


def test_squads_paragraphs_are_documents():
    data = {
        "data": [
            {"title": "The_Norse", "paragraphs": [{"context": "One."}, {"context": "Two."}]},
            {"paragraphs": [{"context": "Three.", "qas": [{"question": "?"}]}]},
        ]
    }
    assert read_all("dev.json", json.dumps(data)) == [
        Document("dev.json#1", "The Norse", "One."),
        Document("dev.json#2", "The Norse", "Two."),
        Document("dev.json#3", "dev", "Three."),
    ]


@pytest.mark.parametrize("data", ["{}", '{"name": "x"}', "[1]", "null"])
def test_json_of_another_shape_has_no_documents(data):
    assert read_all("package.json", data) == []


@pytest.mark.parametrize(
    "data", ['{"data": 3}', '{"data": [{}]}', "{", '{"data": ' + "[" * 5000, b"\xff"]
)
def test_json_that_is_broken_is_refused(data):
    with pytest.raises(UnreadableError, match="SQuAD"):
        read_all("dev.json", data)


def test_json_lines_are_documents():
    lines = '{"text": "One."}\n\n{"id": 7, "title": "T", "text": "Two."}\n{"id": "x", "text": "3"}'
    assert read_all("notes.jsonl", lines) == [
        Document("notes.jsonl#1", "notes", "One."),
        Document("notes.jsonl#7", "T", "Two."),
        Document("notes.jsonl#x", "notes", "3"),
    ]


def test_a_bad_line_is_named_and_the_next_is_read():
    lines = b'{"text": 3}\n{"text": "%s"}\n\xff\n{"text": "One."}\n' % (b"x" * 200)
    *parts, document = read_parts("a.jsonl", lines, bound=100)
    faults = all_of(Fault, parts)
    assert [fault.where for fault in faults] == [f"a.jsonl, line {n}" for n in (1, 2, 3)]
    assert "--max_file_bytes" in faults[1].why
    assert isinstance(document, Document)
    assert document.name == "a.jsonl#4"


def test_a_file_of_bad_lines_is_given_up():
    lines = b"{}\n" * 5000
    documents = FORMATS[".jsonl"](io.BytesIO(lines), "a.jsonl", BOUND)
    assert isinstance(next(documents), Fault)
    with pytest.raises(UnreadableError, match="most of 1001 lines"):
        list(documents)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.rst", "a.html"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"caf\x81", "not UTF-8: byte 3 is 0x81"),
        (b"a\0b", "zero byte"),
        (b"x" * 101, "longer than 100 bytes"),
    ],
)
def test_a_file_that_is_not_text_is_refused(name, data, why):
    with pytest.raises(UnreadableError, match=why):
        read(name, data, bound=100)


def test_names_are_short_lines():
    assert shortened(" a\n b\t") == "a b"
    assert len(shortened("x" * 10_000)) == MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("A.MD", ".md"),
        ("a.json.gz", ".json"),
        ("a.jsonl.GZ", ".jsonl"),
        ("a.txt.gz", ""),
        ("a.docx", ".docx"),
        ("a.html.md.j2", ".md"),
        ("a.j2", ""),
        ("a.xlsx", ".xlsx"),
        ("a.pages", ""),
        ("md", ""),
    ],
)
def test_a_format_is_found_by_the_files_name(name, kind):
    assert format_of(name) == kind


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_as_excel_saves_it_is_a_row_a_line(encoding, separator):
    rows = [["Name", "Größe"], ["Fuchs, rot", "3"], ["", ""], ["Hase", "2"]]
    lines = (separator.join(f'"{cell}"' for cell in row) for row in rows)
    document = read("a.csv", "\r\n".join(lines).encode(encoding))
    assert document.text == "Name: Fuchs, rot; Größe: 3\nName: Hase; Größe: 2"
    assert [block.line for block in document.blocks] == [2, 4]


def test_a_table_with_lines_above_its_head_is_read_below_them():
    document = read("a.csv", "Report of May\n\nName,Size,Age\nfox,3,1\n\nhare,,2\n")
    assert document.text == ("Report of May\nName: fox; Size: 3; Age: 1\nName: hare; Age: 2")
    assert [block.line for block in document.blocks] == [1, 4, 6]


def test_a_table_may_have_a_second_line_of_names():
    lines = ["Town,Votes,Votes", ",Ann,Bob", "Ulm,12,9", "Bonn,7,8"]
    document = read("a.csv", "\n".join(lines))
    assert document.text.splitlines()[0] == "Town: Ulm; Votes Ann: 12; Votes Bob: 9"
    lines[1:2] = ["Kiel,**,n/a"]
    assert read("a.csv", "\n".join(lines)).text.startswith("Town: Kiel; Votes: **; Votes: n/a")


@pytest.mark.parametrize(
    "text",
    ["sep=;\nName;Size\nfox, red;3", '"Name";"Size, in, m"\n"fox, red";3', "Name|Size\nfox, red|3"],
)
def test_a_tables_separator_is_declared_or_outside_quotes(text):
    document = read("a.csv", text)
    size = "Size, in, m" if "in, m" in text else "Size"
    assert document.text == f"Name: fox, red; {size}: 3"


def test_a_table_may_have_no_names():
    lines = ["abe@x.org,Abe,law,yes", "ann@x.org,Ann,art,yes", "bo@x.org,Bo,law,no"]
    assert read("a.csv", "\n".join(lines)).text.splitlines()[0] == "abe@x.org; Abe; law; yes"
    lines.insert(0, "mail,name,course,paid")
    assert read("a.csv", "\n".join(lines)).text.startswith(
        "mail: abe@x.org; name: Abe; course: law"
    )


def test_a_tables_cell_may_be_long():
    document = read("a.csv", f'Name,Text\nfox,"{"x" * 140_000}"')
    assert document.text == f"Name: fox; Text: {'x' * 140_000}"


@pytest.mark.parametrize(
    "title",
    [
        "untitled", "Untitled 1", "(anonymous)", "Microsoft Word - template.docx", "Document1",
        "Sheet1", " - ",
        "PowerPoint Presentation", "Tabelle1", "Dokument 2", "annual_report.PDF", "Slide 1",
    ],
)  # fmt: skip
def test_a_title_that_says_nothing_counts_for_nothing(title):
    document = read("report_2026.html", f"<title>{title}</title><h1>{title}</h1><p>Words.")
    assert document.title == "report 2026"


@pytest.mark.parametrize("title", ["Untitled poems", "Document management", "Sheet metal", "1984"])
def test_a_title_of_words_counts(title):
    assert read("a.html", f"<title>{title}</title><p>Words.").title == title


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", "Größe".encode("utf-16")),
        ("a.md", b"\xef\xbb\xbfGr\xc3\xb6\xc3\x9fe"),
        ("a.html", b'<meta charset="iso-8859-1"><p>Gr\xf6\xdfe'),
        ("a.xhtml", b'<?xml version="1.0" encoding="latin-1"?><p>Gr\xf6\xdfe</p>'),
        ("a.rst", b".. -*- coding: cp1252 -*-\n\nGr\xf6\xdfe"),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "Gr\xc3\xb6\xc3\x9fe"}'),
        ("a.json", b'\xef\xbb\xbf{"data": [{"paragraphs": [{"context": "Gr\xc3\xb6\xc3\x9fe"}]}]}'),
    ],
)
def test_a_file_is_read_in_its_declared_encoding(name, data):
    document = read(name, data)
    assert document.text == "Größe"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("成绩优秀", "gb18030"), ("Отчёт", "cp1251"), ("成績", "big5"), ("Mała łódź", "cp1250")],
)
def test_another_code_page_that_is_not_declared_is_named(text, encoding):
    with pytest.raises(UnreadableError, match="not UTF-8"):
        read("a.txt", text.encode(encoding))


def test_a_table_whose_quoted_names_spaces_part():
    data = b'"Module" "Day"\n"1" "Introduction" "27 August"\n"2" "No class, trip" "3 September"'
    assert read("a.csv", data).text.splitlines() == [
        "1; Module: Introduction; Day: 27 August",
        "2; Module: No class, trip; Day: 3 September",
    ]


def test_a_chinese_file_may_hold_more_than_it_declares():
    document = read("a.html", '<meta charset="gb2312"><p>镕, 囍'.encode("gbk"))
    assert document.text == "镕, 囍"


def test_a_notebook_is_its_markdown_and_code():
    cells = [
        {"cell_type": "markdown", "source": ["# Top\n", "*One*"]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "gone"}]},
    ]
    document = read("a.ipynb", json.dumps({"cells": cells}))
    assert (document.title, document.text) == ("Top", "Top\n\nOne\n\nx = 1")


def test_words_documents_have_headings_lists_and_tables():
    word = docx.Document()
    word.add_heading("Top", 1)
    word.add_paragraph("These:")
    word.add_paragraph("one", style="List Bullet")
    table = word.add_table(rows=2, cols=2)
    for cell, text in zip([c for row in table.rows for c in row.cells], "AB12", strict=True):
        cell.text = text
    document = read("a.docx", saved(word))
    assert document.text == "Top\n\nThese:\n- one\nA: 1; B: 2"


def test_a_box_to_tick_is_no_part_of_a_word():
    document = docx.Document()
    document.add_paragraph("☐402 Closed")
    document.add_table(1, 2).cell(0, 0).text = "☒403 Open"
    found = read("form.docx", saved(document))
    assert found.text == "☐ 402 Closed\n\n☒ 403 Open"


@pytest.mark.parametrize(
    ("title", "name", "expected"),
    [
        ("Letterhead of 2019", "rules.docx", "Rules for all members"),
        ("Members and rules", "rules.docx", "Members and rules"),
        ("", "members_rules.docx", "Rules for all members"),
        ("", "former_rules.docx", "former rules"),
        ("", "rules.docx", "Rules for all members"),
    ],
)
def test_a_title_is_what_the_document_says_it_is(title, name, expected):
    document = docx.Document()
    document.core_properties.title = title
    document.add_paragraph("The society of gardeners")
    document.add_paragraph("Rules for all members.")
    document.add_paragraph("Whoever rents a garden waters it. " * 5)
    assert read(name, saved(document)).title == expected


def test_workbooks_have_a_row_a_line_with_its_columns():
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Prices"
    day = datetime.datetime(2031, 5, 1)
    for row in (
        ["Plans of 2031"], ["Plan", "EUR", "Share", "From"], ["Solo", 5, 0.25, day],
        ["Team", 18.5, None, None], [], [None, "alone"],
    ):  # fmt: skip
        sheet.append(row)
    sheet["C3"].number_format = "0.0%"
    other = book.create_sheet("Notes")
    other["D1048576"] = "far down"
    book.create_sheet("Hidden").sheet_state = "hidden"
    document = read("prices.xlsx", saved(book))
    assert document.text == (
        "Prices\n\nPlans of 2031\nPlan: Solo; EUR: 5; Share: 25.0%; From: 2031-05-01\n"
        "Plan: Team; EUR: 18.5\n\nalone\n\nNotes\n\nfar down"
    )
    assert [block.line for block in document.blocks if block.line] == [1, 3, 4, 6, 1048576]


def epub(pages: dict[str, str], encrypted: str = "") -> bytes:
    items = "".join(
        f'<item id="p{n}" href="{name}" media-type="application/xhtml+xml"/>'
        for n, name in enumerate(pages)
    )
    spine = "".join(f'<itemref idref="p{n}"/>' for n in reversed(range(len(pages))))
    book = f"""<package xmlns="http://www.idpf.org/2007/opf"><metadata
        xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The
        book</dc:title></metadata><manifest>{items}<item id="nav" href="nav.xhtml"
        properties="nav" media-type="application/xhtml+xml"/></manifest>
        <spine><itemref idref="nav"/>{spine}</spine></package>"""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="O/book.opf"/></rootfiles></container>',
        )
        if encrypted:
            reference = f'<x><CipherReference URI="{encrypted}"/></x>'
            archive.writestr("META-INF/encryption.xml", reference)
        archive.writestr("O/book.opf", book)
        for name, page in pages.items():
            archive.writestr(f"O/{name}", page)
    return data.getvalue()


PAGES = {"b.xhtml": "<h1>Two</h1><p>Last.", "a/1.xhtml": "<h1>One</h1><p>First &amp; best."}


def test_books_are_read_in_the_order_of_their_spine():
    document = read("a.epub", epub(PAGES, encrypted="O/font.otf"))
    assert (document.title, document.text) == (
        "The book",
        "One\n\nFirst & best.\n\nTwo\n\nLast.",
    )


def test_a_book_that_is_encrypted_is_refused():
    with pytest.raises(UnreadableError, match="encrypted"):
        read("a.epub", epub(PAGES, encrypted="O/b.xhtml"))


PACKAGES = ["a.docx", "a.epub", "a.odt", "a.ods", "a.pptx", "a.xlsx"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_too_long_unpacked_is_refused(name):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.xml", b" " * (BOUND + 1))
    with pytest.raises(UnreadableError, match="max_file_bytes"):
        read(name, data.getvalue(), BOUND)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_another_kind_is_refused(name):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(UnreadableError):
        read(name, data.getvalue(), BOUND)


@pytest.mark.parametrize("name", [*PACKAGES, "a.ipynb"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\0" * 50, b"[" * 5000])
def test_broken_packages_are_refused(name, data):
    with pytest.raises(UnreadableError):
        read(name, data)


@pytest.mark.parametrize("name", PACKAGES)
def test_an_encrypted_file_is_named(name):
    with pytest.raises(UnreadableError, match="encrypted"):
        read(name, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512))


HOSTILE = ["<table><tr><td>", "{{", "{% ", "<sup>", "> ", "- ", "[", "`a", "**", "| a ", ". "]


@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.html"])
@pytest.mark.parametrize("part", HOSTILE)
def test_markup_that_is_never_closed_is_read(name, part):
    document = read(name, part * (20_000 // len(part)))
    assert all(block.end > block.start for block in document.blocks)
