"""Presentations are read slide by slide, as a person reads their boxes."""

import copy
import io

import pptx

from tests.unit.retrieval.formats.reading import read


def saved(deck) -> bytes:
    data = io.BytesIO()
    deck.save(data)
    return data.getvalue()


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
