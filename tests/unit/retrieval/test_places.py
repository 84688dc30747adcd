"""A passage of a file with pages, slides or sheets says where a person finds it."""

from pathlib import Path

import openpyxl
import pptx
import pytest

from harness.collections import run_index
from qa_service.retrieval.collection import Collection
from qa_service.wire.messages import Passage
from tests.unit.retrieval.formats.pdf_files import pdf_file
from tests.unit.retrieval.formats.test_odf import odf_file

pytestmark = pytest.mark.usefixtures("reads_here")


def found(output: Path, question: str) -> Passage:
    """The best passage, with the place of the question's last word in it."""
    best = Collection(output).search(question, 1)[0]
    at = best.passage.text.lower().index(question.rsplit(maxsplit=1)[-1].lower())
    return best.passage_at(best.passage.start + at)


def presentation(path: Path) -> None:
    deck = pptx.Presentation()
    for title, is_hidden in (("Spring", False), ("Draft", True), ("Autumn", False)):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = f"Plant in {title.lower()}."
        if is_hidden:
            slide.element.set("show", "0")
    deck.save(str(path))


def workbook(path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.title = "Stock"
    book.active.append(["Item", "Pieces"])
    prices = book.create_sheet("Prices")
    for row in (["Plan", "Euros"], ["Solo", 5], ["Team", 18], ["Group", 40]):
        prices.append(row)
    book.save(path)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "report.pdf").write_bytes(pdf_file("Whales are mammals.", "Herrings are fish."))
    presentation(folder / "garden.pptx")
    workbook(folder / "plans.xlsx")
    slides = "".join(
        f"<draw:page><draw:frame><draw:text-box><text:p>{words}</text:p></draw:text-box>"
        "</draw:frame></draw:page>"
        for words in ("Foxes dig.", "Badgers sleep.")
    )
    (folder / "animals.odp").write_bytes(odf_file("presentation", slides))
    (folder / "notes.md").write_text("# Notes\n\nOwls hunt at night.\n")
    return folder


@pytest.fixture(scope="module")
def indexed(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("indexed") / "out"
    run_index(docs, output)
    return output


@pytest.mark.parametrize(
    ("question", "document", "page", "place"),
    [
        ("herrings", "report.pdf", 2, "page 2"),
        ("plant autumn", "garden.pptx", 3, "slide 3"),
        ("Euros Group", "plans.xlsx", 0, "sheet Prices, row 4"),
        ("badgers", "animals.odp", 2, "slide 2"),
        ("owls", "notes.md", 0, ""),
    ],
)
def test_a_passage_has_its_page_slide_or_row(indexed, question, document, page, place):
    passage = found(indexed, question)
    assert (passage.document, passage.page, passage.place) == (document, page, place)


def test_a_search_says_where_a_passage_begins(indexed):
    assert Collection(indexed).search("herrings", 1)[0].passage.place == "page 1"
