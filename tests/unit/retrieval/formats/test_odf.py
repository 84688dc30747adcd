"""LibreOffice's files, and messages, are read as a person sees them."""

import io
import zipfile

import pytest

from qa_service.retrieval.documents import UnreadableError
from tests.unit.retrieval.formats.reading import read

_SPACE = "urn:oasis:names:tc:opendocument:xmlns"
_NAMES = " ".join(
    f'xmlns:{name}="{_SPACE}:{name}:1.0"'
    for name in ("office", "text", "table", "style", "draw", "presentation", "fo")
)
MANIFEST = "<manifest/>"


def odf_file(
    kind: str, body: str, styles: str = "", manifest: str = MANIFEST, pages: str = ""
) -> bytes:
    content = (
        f"<office:document-content {_NAMES}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>"
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("META-INF/manifest.xml", manifest)
        archive.writestr("content.xml", content)
        if pages:
            archive.writestr(
                "styles.xml", f"<office:document-styles {_NAMES}>{pages}</office:document-styles>"
            )
        archive.writestr("meta.xml", '<m xmlns:dc="urn:x"><dc:title>The costs</dc:title></m>')
    return data.getvalue()


def cell(text: str, more: str = "") -> str:
    return f"<table:table-cell {more}><text:p>{text}</text:p></table:table-cell>"


def row(*cells: str, more: str = "") -> str:
    inner = "".join(one if one.startswith("<") else cell(one) for one in cells)
    return f"<table:table-row {more}>{inner}</table:table-row>"


def test_heads_and_feet_of_the_pages_are_read_once():
    number = "<text:page-number>3</text:page-number>"
    pages = "".join(
        f'<style:master-page style:name="{name}">'
        f"<style:header><text:p>{head}</text:p></style:header>"
        f"<style:footer><text:p>{foot}</text:p></style:footer></style:master-page>"
        for name, head, foot in (
            ("Standard", "Town of Ulm", f"Page {number}"),
            ("First_20_Page", "Town of Ulm", "Phone 12"),
            ("Envelope", "Not here", number),
        )
    )
    first = '<style:style style:name="P1" style:master-page-name="First_20_Page"/>'
    data = odf_file("text", "<text:p>We sweep.</text:p>", first, pages=pages)
    assert read("a.odt", data).text == "Town of Ulm\n\nPhone 12\n\nWe sweep."


def test_a_text_has_headings_lists_tables_and_notes():
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>The note."
    note += "</text:p></text:note-body></text:note>"
    item = "<text:list-item><text:p>{}</text:p></text:list-item>"
    items = "".join(map(item.format, ("one", "two")))
    wide = cell("Q1", 'table:number-columns-spanned="2"')
    body = (
        '<text:h text:outline-level="1">Top</text:h>'
        f'<text:p>Costs<text:s text:c="2"/>12{note} <text:span>EUR</text:span><text:line-break/>a'
        "<text:tab/>b</text:p><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        f'<text:list text:style-name="L1">{items}</text:list><text:p><draw:frame><draw:text-box>'
        "<text:p>In a box</text:p></draw:text-box></draw:frame></text:p><table:table>"
        f"<table:table-header-rows>{row(wide, 'B')}"
        f"{row('A', 'C', 'B')}</table:table-header-rows>{row('1', '2', '3')}</table:table>"
        "<office:annotation><text:p>comment</text:p></office:annotation>"
    )  # fmt: skip
    level = (
        '<text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>'
    )
    styles = f'<text:list-style style:name="L1">{level}</text:list-style>'
    document = read("a.odt", odf_file("text", body, styles))
    assert document.title == "The costs"
    assert document.text == (
        "Top\n\nCosts 12 EUR\na b\n\nThe note.\n1. one\n2. two\n\nIn a box\nQ1 A: 1; Q1 C: 2; B: 3"
    )


def test_a_line_in_a_bold_style_is_a_heading():
    body = '<text:p text:style-name="P1">§ 2 Fees</text:p><text:p>They are due in May.</text:p>'
    bold = '<style:text-properties xmlns:fo="urn:x" fo:font-weight="bold"/>'
    styles = f'<style:style style:name="P1">{bold}</style:style>'
    document = read("rules.odt", odf_file("text", body, styles))
    assert [(one.level, one.text) for one in document.headings] == [(2, "§ 2 Fees")]


def test_a_workbook_has_sheets_with_rows_and_leaves_out_what_is_hidden():
    fill = row('<table:table-cell table:number-columns-repeated="16384"/>',
               more='table:number-rows-repeated="1048576"')  # fmt: skip
    merged = cell("North", 'table:number-rows-spanned="2"')
    rows = (
        row("Region", "Plan", "EUR"), row(merged, "Solo", "$5.00"),
        row("<table:covered-table-cell/>", "Team", "$9.00"),
        row("South", "Old", "$1.00", more='table:visibility="collapse"'), fill,
    )  # fmt: skip
    hidden = '<table:table table:name="H" table:style-name="h"><table:table-row/></table:table>'
    styles = (
        '<style:style style:name="h"><style:table-properties table:display="false"/></style:style>'
    )
    body = f'<table:table table:name="Prices">{"".join(rows)}</table:table>{hidden}'
    document = read("a.ods", odf_file("spreadsheet", body, styles))
    assert document.text == (
        "Prices\n\nRegion: North; Plan: Solo; EUR: $5.00\nRegion: North; Plan: Team; EUR: $9.00"
    )
    assert [block.line for block in document.blocks] == [0, 2, 3]


@pytest.mark.parametrize("style", [
    '<style:text-properties fo:font-weight="bold"/>',
    '<style:table-cell-properties fo:background-color="#ffcc00"/>',
])  # fmt: skip
def test_what_a_style_sets_off_is_the_head(style: str):
    styles = f'<style:style style:name="ce1" xmlns:fo="urn:x">{style}</style:style>'
    head = [cell(name, 'table:style-name="ce1"') for name in ("Term", "Meaning")]
    body = f'<table:table table:name="Sheet1">{row(*head)}{row("fox", "animal")}</table:table>'
    assert read("a.ods", odf_file("spreadsheet", body, styles)).text == "Term: fox; Meaning: animal"
    plain = odf_file("spreadsheet", body, styles.replace("bold", "normal").replace("cc00", "ffff"))
    assert read("a.ods", plain).text == "Term: Meaning\nfox: animal"


def test_slides_have_titles_lists_and_notes():
    frame = "<draw:frame {}><draw:text-box>{}</draw:text-box></draw:frame>"
    points = "<text:list><text:list-item><text:p>Dig</text:p></text:list-item></text:list>"
    body = (
        "<draw:page>" + frame.format('presentation:class="title"', "<text:p>Steps</text:p>")
        + frame.format("", points) + "<presentation:notes>"
        + frame.format("", "<text:p>Say why.</text:p>") + "</presentation:notes></draw:page>"
    )  # fmt: skip
    document = read("a.odp", odf_file("presentation", body))
    assert document.text == "Steps\n\n- Dig\n\nSay why."
    assert [heading.text for heading in document.headings] == ["Steps"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (odf_file("text", "", manifest="<manifest><encryption-data/></manifest>"), "encrypted"),
        (odf_file("text", "<text:p>"), "not in OpenDocument's format"),
        (odf_file("text", "<text:section>" * 5000 + "</text:section>" * 5000), "nested too deep"),
        (b"PK\x03\x04", "not a zip archive"),
    ],
)
def test_what_cannot_be_read_is_named(data, why):
    with pytest.raises(UnreadableError, match=why):
        read("a.odt", data)


def test_lists_and_headings_have_the_numbers_that_are_shown():
    def level(number: int, more: str) -> str:
        return f'<text:list-level-style-number text:level="{number}" {more}/>'

    suffix = 'style:num-suffix="."'
    levels = level(1, f'style:num-format="A" {suffix}') + level(2, f'style:num-format="1" {suffix}')
    outline = "".join(
        f'<text:outline-level-style text:level="{place}" style:num-format="1"'
        f' text:display-levels="{place}"/>'
        for place in (1, 2)
    )
    styles = (
        f'<text:list-style style:name="L1">{levels}</text:list-style>'
        f'<text:outline-style style:name="Outline">{outline}</text:outline-style>'
        '<style:style style:name="P1" style:list-style-name=""/>'
    )

    def items(*texts: str, more: str = "") -> str:
        inner = "".join(f"<text:list-item>{text}</text:list-item>" for text in texts)
        return f"<text:list {more}>{inner}</text:list>"

    def p(text: str) -> str:
        return f"<text:p>{text}</text:p>"

    def h(number: int, text: str, more: str = "") -> str:
        return f'<text:h text:outline-level="{number}" {more}>{text}</text:h>'

    mine = 'text:style-name="L1"'
    first = items(p("Aims") + items(p("one"), p("two")), p("Rules"), more=mine)
    further = f'{mine} text:continue-numbering="true"'
    body = (
        h(1, "Preface", 'text:style-name="P1"') + h(1, "Start") + h(2, "Tools") + first
        + p("Between.") + items(p("Fees"), more=further) + items(p("New"), more=mine)
        + h(1, "End")
    )  # fmt: skip
    text = read("a.odt", odf_file("text", body, styles)).text
    assert [line for line in text.splitlines() if line] == [
        *("Preface", "1 Start", "1.1 Tools", "A. Aims", "  1. one", "  2. two", "B. Rules"),
        *("Between.", "C. Fees", "A. New", "2 End"),
    ]


def test_texts_are_bold_by_their_parts_and_bands_are_no_heads():
    styles = (
        '<style:style style:name="T1"><style:text-properties fo:font-weight="bold"/></style:style>'
        '<style:style style:name="T2" style:parent-style-name="T1"/>'
    )
    for name, colour in (("dark", "#1a2332"), ("light", "#f8f9fa")):
        properties = f'<style:table-cell-properties fo:background-color="{colour}"/>'
        styles += f'<style:style style:name="{name}">{properties}</style:style>'
    bold = '<text:p><text:span text:style-name="T2">Colours</text:span></text:p>'

    def on(style: str, *texts: str) -> str:
        return row(*(cell(text, f'table:style-name="{style}"') for text in texts))

    rows = (
        on("dark", "Name", "Use") + row("A", "text") + on("light", "B", "cards") + row("C", "icons")
    )
    body = f"{bold}<text:p>These are ours.</text:p><table:table>{rows}</table:table>"
    document = read("a.odt", odf_file("text", body, styles))
    assert [heading.text for heading in document.headings] == ["Colours"]
    assert document.text.endswith("Name: A; Use: text\nName: B; Use: cards\nName: C; Use: icons")


def test_a_cell_has_neither_its_comment_nor_an_error():
    comment = "<office:annotation><text:p>Is this right?</text:p></office:annotation>"
    costs = f"<table:table-cell>{comment}<text:p>1.1 million</text:p></table:table-cell>"
    rows = (
        row("Goal", "Costs", "Share") + row("Sales", costs, "#DIV/0!") + row("Staff", "12", "5 %")
    )
    body = f'<table:table table:name="Plan">{rows}</table:table>'
    assert read("a.ods", odf_file("spreadsheet", body)).text.endswith(
        "Goal: Sales; Costs: 1.1 million\nGoal: Staff; Costs: 12; Share: 5 %"
    )
