"""Word's documents are read as Word shows them."""

import pytest

from qa_service.retrieval.documents import Document, UnreadableError
from qa_service.retrieval.formats.word_styles import Nesting, Role
from tests.unit.retrieval.formats import reading
from tests.unit.retrieval.formats.word_files import cell, paragraph, row, run, table, word_file


def read(body: str, **parts: str) -> Document:
    return reading.read("a.docx", word_file(body, **parts))


def val(name: str, value: str | int) -> str:
    return f'<w:{name} w:val="{value}"/>'


def within(name: str, content: str) -> str:
    return f"<w:{name}>{content}</w:{name}>"


def control(content: str) -> str:
    return within("sdt", f"<w:sdtPr/>{within('sdtContent', content)}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (within("ins", run("how staff")) + within("del", "<w:r><w:delText>X</w:delText></w:r>"),
         "how staff"),
        (within("moveFrom", run("X")) + within("moveTo", run("moved")), "moved"),
        (control(run("in")) + within("smartTag", run(" a")) + within("hyperlink", run(" link")),
         "in a link"),
        (within("fldSimple", run("field")), "field"),
        ('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>IF</w:instrText></w:r>'
         + run("X") + '<w:r><w:fldChar w:fldCharType="separate"/></w:r>' + run("result")
         + '<w:r><w:fldChar w:fldCharType="end"/></w:r>' + run(" on"), "result on"),
        ('<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:checked/></w:checkBox>'
         '</w:ffData></w:fldChar></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>' + run("yes"),
         "☑ yes"),
        ("<w:r><w:rPr><w:vanish/></w:rPr><w:t>X</w:t></w:r>" + run("seen"), "seen"),
        ("<w:r><w:rPr><w:strike/></w:rPr><w:t>£5</w:t></w:r>" + run("£4"), "£4"),
        ("<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:noBreakHyphen/><w:t>c</w:t><w:br/><w:t>d</w:t>"
         '<w:sym w:font="Symbol" w:char="F0B0"/><w:sym w:font="Wingdings" w:char="F0DF"/></w:r>',
         "a b-c\nd°←"),
        ("<m:oMath><m:r><m:t>E=m</m:t></m:r><m:sSup><m:sSupPr/><m:e><m:r><m:t>c</m:t></m:r></m:e>"
         "<m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup></m:oMath>", "E=mc^2"),
        ("<m:oMath><m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>c</m:t></m:r>"
         "</m:den></m:f></m:oMath>", "(a+b)/c"),
    ],
)  # fmt: skip
def test_a_paragraph_is_what_a_person_sees(content, expected):
    assert read(paragraph(content)).text == expected


def test_content_controls_hold_paragraphs_rows_and_cells():
    rows = row("A", control(cell("B"))) + control(row("1", "2"))
    assert read(control(paragraph("Block")) + table(rows)).text == "Block\nA: 1; B: 2"


def test_a_paragraph_whose_end_is_deleted_goes_on_in_the_next():
    first = paragraph("One, ", within("rPr", "<w:del/>"))
    assert read(first + paragraph("two.")).text == "One, two."


def text_box(text: str) -> str:
    content = within("txbxContent", paragraph(text))
    return (
        '<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wps:txbx>'
        f"{content}</wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox>{content}"
        "</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )


def test_text_boxes_and_notes_follow_their_paragraph():
    noted = '<w:r><w:footnoteReference w:id="1"/></w:r><w:r><w:endnoteReference w:id="2"/></w:r>'
    notes = {
        "footnotes": f'<w:footnote w:id="1">{paragraph("The note.")}</w:footnote>',
        "endnotes": f'<w:endnote w:id="2">{paragraph("At the end.")}</w:endnote>',
    }
    body = paragraph(run("Costs 12") + noted + text_box("In a box")) + paragraph("Next.")
    assert read(body, **notes).text == ("Costs 12\n\nThe note.\n\nAt the end.\n\nIn a box\n\nNext.")
    in_table = table(row("A", "B"), row(cell(paragraph(run("1") + noted)), "2"))
    assert read(in_table, **notes).text == "A: 1; B: 2\n\nThe note.\n\nAt the end."


STYLES = "".join(
    f'<w:style w:type="paragraph" w:styleId="{known_as}">{val("name", name)}{more}</w:style>'
    for known_as, name, more in (
        ("berschrift1", "heading 1", within("pPr", val("outlineLvl", 0))),
        ("Kapitel", "Kapitel", val("basedOn", "berschrift1")),
        ("Titre2", "Titre 2", ""),
        ("Round1", "Round 1", val("basedOn", "Round2")),
        ("Round2", "Round 2", val("basedOn", "Round1")),
        ("Clause", "Clause", within("pPr", within("numPr", val("numId", 1)))),
        ("Titel", "Title", ""),
        ("TOC1", "toc 1", ""),
    )
)


def test_heads_and_feet_of_pages_are_read_once_without_the_pages_numbers():
    section = "".join(
        f'<w:{kind}Reference w:type="{type_}" r:id="r{n}"/>'
        for n, (kind, type_) in enumerate((("header", "default"), ("footer", "first")))
    )
    parts = {
        "header": paragraph("Form 12, May 2031") + table(row("Town of Ulm", "Roads")),
        "footer": paragraph("Page 3 of 4") + paragraph("We sweep. Page | 3"),
    }
    body = paragraph("We sweep.") + within("sectPr", section)
    assert read(body, **parts).text == "Form 12, May 2031\nTown of Ulm: Roads\n\nWe sweep."
    body += within("sectPr", section + "<w:titlePg/>") + paragraph("We dig.")
    parts["footer"] += paragraph("Draft")
    assert "Ulm: Roads\n\nDraft\n\nWe sweep.\n\nWe dig." in read(body, **parts).text


def test_text_boxes_of_a_paragraph_are_read_as_they_stand():
    def older(top, left, text):
        inner = f"<v:textbox><w:txbxContent>{paragraph(text)}</w:txbxContent></v:textbox>"
        style = f"position:absolute;margin-left:{left}pt;margin-top:{top}pt;width:9pt"
        return f'<w:r><w:pict><v:shape style="{style}">{inner}</v:shape></w:pict></w:r>'

    def newer(top, left, text):
        sides = "".join(
            f'<wp:position{side} relativeFrom="paragraph"><wp:posOffset>{12700 * place}'
            f"</wp:posOffset></wp:position{side}>" for side, place in (("V", top), ("H", left))
        )  # fmt: skip
        inner = f"<wps:txbx><w:txbxContent>{paragraph(text)}</w:txbxContent></wps:txbx>"
        return f"<w:r><w:drawing><wp:anchor>{sides}{inner}</wp:anchor></w:drawing></w:r>"

    boxes = newer(90, 0, "Tuesday") + older(3, 200, "at ten") + older(2.5, "-.5", "Monday")
    assert read(paragraph(boxes)).text == "Monday\n\nat ten\n\nTuesday"
    inline = newer(0, 0, "Plan").replace("anchor", "inline")
    assert read(paragraph(boxes + inline)).text == "Tuesday\n\nat ten\n\nMonday\n\nPlan"


def test_a_chart_is_a_table_of_what_it_shows():
    def points(kind, *texts):
        found = "".join(f'<pt idx="{n}"><v>{text}</v></pt>' for n, text in enumerate(texts))
        return f"<{kind}><strCache>{found}</strCache></{kind}>"

    series = (
        f"<ser>{points('tx', 'Loans')}{points('cat', 'May', 'June')}{points('val', 3, 4.5)}</ser>"
    )
    chart = f"<chart><plotArea><barChart>{series}</barChart></plotArea></chart>"
    drawing = '<w:r><w:drawing><c:chart xmlns:c="c" r:id="r0"/></w:drawing></w:r>'
    assert read(paragraph(drawing), chart=chart).text == "Loans\nMay: 3\nJune: 4.5"


def test_headings_are_found_by_outline_by_the_style_below_and_by_a_translated_name():
    names = ("Kapitel", "Titre2", "Round1", "TOC1")
    body = "".join(paragraph(name, val("pStyle", name)) for name in names)
    document = read(body + paragraph("Direct", val("outlineLvl", 2)), styles=STYLES)
    found = [(one.level, one.text) for one in document.headings]
    assert found == [(1, "Kapitel"), (2, "Titre2"), (3, "Direct")]
    assert document.text == "Kapitel\n\nTitre2\n\nRound1\n\nDirect"


def test_a_paragraph_in_the_titles_style_is_the_title():
    body = paragraph("The plan", val("pStyle", "Titel"))
    body += "".join(paragraph(one, val("outlineLvl", 0)) for one in ("One", "Two"))
    assert read(body, styles=STYLES).title == "The plan"


def test_a_bold_line_with_a_text_below_is_a_heading_below_the_last_one():
    def bold(text: str) -> str:
        return f"<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>{text}</w:t></w:r></w:p>"

    body = bold("City of Ulm") + bold("Fees") + paragraph("They are due in May.")
    body += paragraph("Forms", val("outlineLvl", 1)) + bold("By post") + paragraph("Send two.")
    body += bold("Send them by the end of May.") + paragraph("Later ones wait.")
    document = read(body)
    found = [(one.level, one.text) for one in document.headings]
    assert found == [(2, "Fees"), (2, "Forms"), (3, "By post")]
    assert document.text.startswith("City of Ulm\n\nFees\n\nThey are due")


def test_a_line_with_the_next_sections_number_is_a_heading():
    lines = ["1.1 Scope", "1.2 Method", "2.2 Costs"]  # a table of contents
    lines += ["1.0 General", "1.1 Scope", "All of it.", "1.2 Method", "By hand."]
    lines += ["1.2.1 Tools", "A pen.", "2.5 Million people", "live here.", "1.3 We pay: by card"]
    document = read("".join(map(paragraph, lines)))
    found = [(one.level, one.text) for one in document.headings]
    assert found == [(2, "1.0 General"), (3, "1.1 Scope"), (3, "1.2 Method"), (4, "1.2.1 Tools")]
    assert document.text == "\n\n".join(lines)


def level(place: int, form: str, text: str, more: str = "") -> str:
    inner = val("start", 1) + val("numFmt", form) + more + val("lvlText", text)
    return f'<w:lvl w:ilvl="{place}">{inner}</w:lvl>'


NUMBERING = (
    '<w:abstractNum w:abstractNumId="0">'
    + level(0, "decimal", "%1.") + level(1, "decimal", "%1.%2", val("pStyle", "Clause"))
    + level(2, "lowerLetter", "%3)") + level(3, "bullet", "o") + level(4, "upperRoman", "%5")
    + '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    + '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0">'
    + '<w:startOverride w:val="7"/></w:lvlOverride></w:num>'
)  # fmt: skip


def numbered(text: str, place: int | str, *properties: str, known_as: int = 1) -> str:
    inner = val("ilvl", place) + val("numId", known_as)
    return paragraph(text, within("numPr", inner), *properties)


def test_items_and_headings_have_the_numbers_that_word_counts():
    body = (
        numbered("Scope", 0, val("outlineLvl", 0)) + numbered("one", 1) + numbered("two", 1)
        + numbered("deep", 2) + numbered("deeper", 2) + numbered("point", 3) + numbered("4", 4)
        + numbered("Terms", 0, val("outlineLvl", 0)) + paragraph("styled", val("pStyle", "Clause"))
        + numbered("again", 0, known_as=2) + numbered("none", 0, known_as=0)
    )  # fmt: skip
    assert read(body, numbering=NUMBERING, styles=STYLES).text == (
        "1. Scope\n\n  1.1 one\n  1.2 two\n    a) deep\n    b) deeper\n      - point\n        I 4"
        "\n\n2. Terms\n\n  2.1 styled\n7. again\n\nnone"
    )


def test_a_list_further_to_the_right_than_another_lists_item_is_within():
    bullets = '<w:abstractNum w:abstractNumId="1">' + level(0, "bullet", "o") + "</w:abstractNum>"
    numbers = "".join(
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n > 2:d}"/></w:num>' for n in (1, 3, 4)
    )

    def item(text: str, left: int, known_as: int) -> str:
        return numbered(text, 0, f'<w:ind w:left="{left}"/>', known_as=known_as)

    body = (
        item("Clinic:", 720, 1) + item("14 nurses", 1440, 3) + item("1 clerk", 1440, 4)
        + item("House:", 720, 1) + item("2 nurses", 1440, 3)
        + paragraph("Beds:") + item("6", 1440, 3) + item("8", 1500, 4)
    )  # fmt: skip
    assert read(body, numbering=NUMBERING.split("<w:num ")[0] + bullets + numbers).text == (
        "1. Clinic:\n  - 14 nurses\n  - 1 clerk\n2. House:\n  - 2 nurses\n\nBeds:\n- 6\n- 8"
    )


def test_merged_cells_are_read_below_one_another():
    merge, goes_on = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    wide = val("gridSpan", 2)
    body = table(
        row("A", "B", "C"),
        row(cell("x", merge), "1", "2"), row(cell("", goes_on), "3", "4"),
        row(cell("wide", wide, merge), "5"), row(cell("", wide, goes_on), "6"),
        row("8", "9", properties='<w:gridBefore w:val="1"/>'),
    )  # fmt: skip
    assert read(body).text == (
        "A: x; B: 1; C: 2\nA: x; B: 3; C: 4\nA: wide; C: 5\nA: wide; C: 6\nB: 8; C: 9"
    )
    broken = table(row(cell("wide", wide), "b"), row(cell("", goes_on), cell("", goes_on), "c"))
    assert read(broken).text == "wide: b\nwide: c"


def test_a_tables_head_is_what_word_repeats_or_the_style_sets_off():
    rows = (row("Term", "Meaning", properties="<w:tblHeader/>"), row("fox", "an animal"))
    assert read(table(*rows)).text == "Term: fox; Meaning: an animal"
    set_off = '<w:tblStylePr w:type="firstRow"><w:rPr><w:b/></w:rPr></w:tblStylePr>'
    style = f'<w:style w:type="table" w:styleId="Grid4">{set_off}</w:style>'
    body = table(row("Term", "Meaning"), row("fox", "an animal")).replace(
        "<w:tblPr/>", f'<w:tblPr>{val("tblStyle", "Grid4")}<w:tblLook w:val="04A0"/></w:tblPr>'
    )
    assert read(body, styles=style).text == "Term: fox; Meaning: an animal"
    keys = "".join(row(cell(paragraph(f"<w:r><w:rPr><w:b/></w:rPr><w:t>{key}</w:t></w:r>")), "5")
                   for key in ("Width", "Height"))  # fmt: skip
    assert read(table(keys)).text == "Width: 5\nHeight: 5"


def test_a_table_goes_on_in_one_right_below_without_a_head():
    """As of those who part it at a page's end."""
    head = row("Week", "Topic", "Due", properties="<w:tblHeader/>")
    rows = [row(f"{n} May", f"Chapter {n}", "a test") for n in range(1, 5)]
    parts = table(head, *rows[:2]) + paragraph("") + table(*rows[2:])
    assert read(parts).text.splitlines()[-1] == "Week: 4 May; Topic: Chapter 4; Due: a test"
    parts = table(head, *rows[:2]) + paragraph("Then:") + table(*rows[2:])
    assert "Week: 4 May" not in read(parts).text


def test_tables_within_tables_are_read():
    inner = table(row("k", "v"), row("k2", "v2"))
    body = table(row("A", cell(paragraph("outer") + inner)), row("B", "c"))
    assert read(body).text == "A: outer\nB: c\n\nk: v\nk2: v2"
    assert read(table(row(cell(paragraph("Page") + inner)))).text == "Page\nk: v\nk2: v2"


def test_entries_of_contents_without_a_style_are_left_out():
    """As Google Docs writes them."""
    begin, separate, end = (
        f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")
    )
    code = "<w:r><w:instrText> {} </w:instrText></w:r>"
    page = begin + code.format("PAGEREF _a") + separate + run("4") + end
    first = begin + code.format("TOC \\h") + separate + run("Scope ") + page
    contents = paragraph(first) + paragraph(run("Staff ") + page) + paragraph(end)
    body = paragraph(run("See page ") + page) + paragraph("In 2031")
    assert read(contents + body).text == "See page 4\n\nIn 2031"


def test_a_document_that_is_nested_too_deep_is_named():
    deep = "<w:sdt><w:sdtContent>" * 3000 + "</w:sdtContent></w:sdt>" * 3000
    with pytest.raises(UnreadableError, match="nested too deep"):
        read(deep)


@pytest.mark.parametrize(
    "parts",
    [
        {"styles": '<w:style w:styleId="x">'},
        {"numbering": "<w:num><w:abstractNumId/></w:num>"},
        {"numbering": f'<w:num w:numId="1"><w:abstractNumId w:val="{"9" * 5000}"/></w:num>'},
    ],
)
def test_broken_parts_are_named_or_left_out(parts):
    body = numbered("words", "9" * 5000)
    try:
        assert "words" in read(body, **parts).text
    except UnreadableError as error:
        assert "not a Word document" in str(error)


def test_bands_are_no_heads_and_a_head_is_set_off():
    def shaded(text: str, colour: str) -> str:
        return cell(text, f'<w:shd w:val="clear" w:fill="{colour}"/>')

    dark, light = "1A2332", "F8F9FA"
    rows = (
        row(shaded("Version", dark), shaded("Usage", dark)),
        row("A", "letters"), row(shaded("B", light), shaded("cards", light)), row("C", "icons"),
    )  # fmt: skip
    assert read(table(*rows)).text == (
        "Version: A; Usage: letters\nVersion: B; Usage: cards\nVersion: C; Usage: icons"
    )
    repeated = "<w:tblHeader/>"
    body = table(
        row(shaded("Criteria", dark), shaded("Description", dark), properties=repeated),
        row("1.", "Old faults", properties=repeated), row("2.", "New faults"),
    )  # fmt: skip
    assert read(body).text == (
        "Criteria: 1.; Description: Old faults\nCriteria: 2.; Description: New faults"
    )


def test_lists_within_one_another_by_their_indents_are_nine_at_most():
    numbers = "".join(
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="0"/></w:num>' for n in range(1, 31)
    )
    nesting = Nesting()
    depths = [nesting.depth(Role(0, 1, "-", str(n), 300 * n)) for n in range(1, 31)]
    assert depths == [*range(1, 9), *[9] * 22]
    body = "".join(
        numbered(str(n), 0, f'<w:ind w:left="{300 * n}.5"/>', known_as=n) for n in range(1, 31)
    )
    text = read(body, numbering=NUMBERING.split("<w:num ")[0] + numbers).text
    assert text.startswith("1. 1\n  2. 2\n    3. 3\n")


def test_what_is_in_a_frame_is_counted_once():
    framed = table(row(cell(numbered("one", 0) + numbered("two", 0))))
    body = framed + numbered("three", 0)
    assert read(body, numbering=NUMBERING).text == "1. one\n2. two\n\n3. three"


def test_a_long_cell_or_a_table_alone_in_a_row_is_read_as_the_page_is():
    roles = table(row("Role", "Task", "Skill"), row("Ann", "Evaluates", "Projects"))
    page = cell(paragraph("Duties:") + numbered("Write " * 60, 0) + numbered("Read", 0))
    rows = [row("Name", "Plan"), row(cell(paragraph("Roles") + roles), cell("")),
            row("Tools", "Log"), row(page, cell(""))]  # fmt: skip
    lines = read(table(*rows), numbering=NUMBERING).text.split("\n\n")
    assert lines[:3] == [
        "Name: Plan", "Roles\nRole: Ann; Task: Evaluates; Skill: Projects", "Tools: Log"
    ]  # fmt: skip
    assert lines[3].startswith("Duties:\n1. Write")
    assert lines[3].endswith("\n2. Read")


def test_bullets_that_are_typed_are_those_of_items():
    body = paragraph("Tell us of") + paragraph("•\tA new name") + paragraph("- a child")
    assert read(body + paragraph("-5 degrees")).text == (
        "Tell us of\n- A new name\n- a child\n\n-5 degrees"
    )


def test_a_sentence_that_is_a_paragraph_a_line_is_one():
    first = "We shall pay the cost of repair, and the claims that are estimated by all of"
    body = paragraph(first) + paragraph("your surveyors.") + paragraph("pears")
    assert read(body).text == f"{first} your surveyors.\n\npears"
    assert read(paragraph(first) + paragraph("") + paragraph("pears")).text == f"{first}\n\npears"
    assert read(paragraph(first) + paragraph("a) pears")).text == f"{first}\n\na) pears"
