"""Presentations are read slide by slide, as a person reads their boxes."""

import copy

import pptx
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.oxml import parse_xml

from tests.unit.retrieval.formats.reading import read, saved

NAMESPACE = "http://schemas.openxmlformats.org/drawingml/2006/main"


def test_presentations_have_titles_lists_tables_and_notes():
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.shapes.title.text = "The plan"
    first.placeholders[1].text = "For 2031"
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Steps"
    body = slide.placeholders[1].text_frame
    body.text = "Dig"
    for text, level in (("by hand", 1), ("Plant\vtrees", 0)):
        paragraph = body.add_paragraph()
        paragraph.text, paragraph.level = text, level
    shapes = slide.shapes.add_group_shape().shapes
    shapes.add_textbox(0, 6_700_000, 8_000_000, 99).text_frame.text = "in a group"
    table = slide.shapes.add_table(2, 2, 0, 6_200_000, 8_000_000, 99).table
    for cell, text in zip(table.iter_cells(), "AB12", strict=True):
        cell.text = text
    slide.notes_slide.notes_text_frame.text = "Say why."
    hidden = deck.slides.add_slide(deck.slide_layouts[5])
    hidden.shapes.title.text = "Not shown"
    hidden.element.set("show", "0")
    document = read("deck.pptx", saved(deck))
    assert document.text == (
        "The plan\n\nFor 2031\n\nSteps\n\n- Dig\n  - by hand\n- Plant\ntrees\n"
        "A: 1; B: 2\n\nin a group\n\nSay why."
    )
    assert document.title == "The plan"
    first.placeholders[1].text = "The plan is what we do. " * 9
    assert read("deck.pptx", saved(deck)).title == "deck"
    deck.core_properties.title = "A plan for 2031"
    assert read("deck.pptx", saved(deck)).title == "A plan for 2031"


def test_boxes_on_a_slide_are_read_card_by_card_below_the_largest_line():
    """As programs draw slides: nothing is a placeholder, and titles stand in a row of boxes."""
    deck = pptx.Presentation()
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    boxes = [
        (100, 800, 4_000, 300, 14, "Of three years each."),
        (100, 100, 4_000, 500, 28, "Three plans"),
        *((100, y, 1_900, 400, size, f"West {y}") for y, size in ((1_500, 18), (1_950, 12))),
        *((2_400, y, 1_900, 400, size, f"East {y}") for y, size in ((1_500, 18), (1_950, 12))),
        *((x, 4_000, 1_900, 400, 12, f"Foot {x}") for x in (2_400, 100)),
    ]
    for left, top, width, height, points, text in boxes:
        box = shapes.add_textbox(*(1_000 * emu for emu in (left, top, width, height)))
        run = box.text_frame.paragraphs[0].add_run()
        run.text, run.font.size = text, points * 12_700
    document = read("deck.pptx", saved(deck))
    assert [heading.text for heading in document.headings] == ["Three plans"]
    assert document.text.split("\n\n") == [
        *("Three plans", "Of three years each.", "West 1500", "West 1950"),
        *("East 1500", "East 1950", "Foot 100", "Foot 2400"),
    ]


def test_a_placeholder_without_a_kind_is_no_title():
    """As LibreOffice writes what PowerPoint had before 2007."""
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    title, body = slide.placeholders
    title.text, body.text = "Closing", "Hand over:\nreview\nassess\nclose"
    title.text_frame.paragraphs[0].runs[0].font.size = 40 * 12_700
    body.text_frame.paragraphs[0].runs[0].font.size = 20 * 12_700
    for shape in (title, body):
        shape.element.find(".//{*}ph").attrib.clear()
    slide.shapes._spTree.insert(2, body.element)
    lines = read("deck.pptx", saved(deck)).text.splitlines()
    assert lines[0] == "Closing"
    assert lines[-4:] == ["- Hand over:", "- review", "- assess", "- close"]


def test_a_slides_number_is_no_text_of_it():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Steps"
    slide.placeholders[1].text = "Dig"
    for shape in deck.slide_layouts[1].shapes:
        if shape.placeholder_format.type.name in {"SLIDE_NUMBER", "FOOTER", "DATE"}:
            copied = copy.deepcopy(shape.element)
            slide.shapes._spTree.append(copied)
            slide.shapes[-1].text_frame.text = "17"
    assert len(slide.placeholders) == 5
    assert read("deck.pptx", saved(deck)).text == "Steps\n\nDig"


def test_lists_are_what_is_written_with_bullets_or_numbers():
    """In any box; in that of a slide's content but where its paragraphs or its layout have none."""
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Steps"
    slide.placeholders[1].text = "Dig.\nPlant."
    box = slide.shapes.add_textbox(0, 6_200_000, 8_000_000, 400_000).text_frame
    box.text = "To be there:\nSpade\nSoil\nFirst\nby hand\nSecond"
    signs = ("", *2 * ('buChar char="•"',), *3 * ('buAutoNum type="alphaUcPeriod" startAt="3"',))
    for paragraph, sign in zip(box.paragraphs, signs, strict=True):
        if sign:
            add_sign(paragraph, sign)
    box.paragraphs[4].level = 1
    assert read("deck.pptx", saved(deck)).text == (
        "Steps\n\n- Dig.\n- Plant.\n\nTo be there:\n"
        "- Spade\n- Soil\nC. First\n  C. by hand\nD. Second"
    )
    for paragraph in slide.placeholders[1].text_frame.paragraphs:
        add_sign(paragraph, "buNone")
    assert "\n\nDig.\n\nPlant.\n\n" in read("deck.pptx", saved(deck)).text


def add_sign(paragraph, sign):
    paragraph._p.get_or_add_pPr().append(parse_xml(f'<a:{sign} xmlns:a="{NAMESPACE}"/>'))


def test_charts_are_tables_of_what_they_show():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Tests"
    data = CategoryChartData(number_format="0%")
    data.categories = ["Passed", "Failed"]
    data.add_series("May", (0.75, 0.25))
    place = (0, 2_000_000, 4_000_000, 2_000_000)
    chart = slide.shapes.add_chart(XL_CHART_TYPE.PIE, *place, data).chart
    chart.has_legend = False
    assert read("deck.pptx", saved(deck)).text == "Tests\n\nMay\nPassed: 75%\nFailed: 25%"
    chart.plots[0].has_data_labels = True
    labels = chart.plots[0].data_labels
    labels.show_percentage, labels.show_value = True, False
    data = CategoryChartData()
    data.categories = ["Passed", "Failed"]
    data.add_series("May", (6, 3))
    chart.replace_data(data)
    assert read("deck.pptx", saved(deck)).text == "Tests\n\nMay\nPassed: 67%\nFailed: 33%"
    labels.show_percentage = False
    data.add_series("June", (5, None))
    chart.replace_data(data)
    chart.has_title = True
    chart.chart_title.text_frame.text = "How many passed"
    assert read("deck.pptx", saved(deck)).text == (
        "Tests\n\nHow many passed\nPassed; May: 6; June: 5\nFailed; May: 3"
    )
