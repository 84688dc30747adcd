"""The passages that `client.py` shows."""

from qa_service.client import read_answer
from qa_service.programs.asking import describe, describe_passages, describe_unsure

_PLACE = {"line": 0, "page": 0, "place": "", "collection": ""}
PASSAGES = [
    {"document": "a.md", "title": "T", "heading": "B", "text": "A.\n\nB.", "start": 7, "end": 13,
     **_PLACE},
    {"document": "b.md", "title": "B", "heading": "", "start": 0, "end": 4, "text": "Six.",
     **_PLACE},
]  # fmt: skip
NO_ANSWER = {"answer": "", "score": 0.9, "start": None, "end": None}


def test_without_an_answer_the_passages_that_were_read_are_shown():
    answer = read_answer({**NO_ANSWER, "passages": PASSAGES}, 1.0)
    assert describe_passages(answer) == [
        "not found in the 2 passages read:",
        "1. a.md, character 7: T > B",
        "   A.",
        "   B.",
        "2. b.md, character 0: B",
        "   Six.",
    ]
    assert "not found in the 2 passages read:" in describe(answer)


def test_a_title_that_is_the_first_heading_is_shown_once():
    passages = [{**PASSAGES[0], "heading": heading} for heading in ("T > B", "T", "Table > B")]
    lines = describe_passages(read_answer({**NO_ANSWER, "passages": passages}, 1.0))
    assert [line.partition(": ")[2] for line in lines if "character" in line] == [
        "T > B",
        "T",
        "T > Table > B",
    ]


def test_with_an_answer_passages_are_shown_if_requested():
    known = {"answer": "A.", "score": 0.9, "start": 7, "end": 9, "passage": PASSAGES[0]}
    answer = read_answer({**known, "passages": PASSAGES[:1]}, 1.0)
    assert describe_passages(answer)[0] == "the passage read:"
    assert describe_passages(read_answer(known, 1.0)) == []


def test_the_other_places_of_an_answer_are_shown():
    spans = [{"start": 0, "end": 2}, {"start": 9, "end": 11}]
    answer = read_answer({**NO_ANSWER, "answer": "A.", "start": 0, "end": 2, "places": spans}, 1.0)
    assert "also at character 9" in describe(answer)


def test_a_place_at_the_same_offset_of_another_document_is_shown():
    known = {"answer": "A.", "score": 0.9, "start": 7, "end": 9, "passage": PASSAGES[0]}
    places = [{"start": 7, "end": 9, "document": name} for name in ("a.md", "b.md")]
    assert "also at b.md, character 7" in describe(read_answer({**known, "places": places}, 1.0))


def test_a_page_or_a_row_is_shown_in_place_of_the_line():
    passages = [{**PASSAGES[1], "line": 12, **more} for more in ({}, {"place": "page 3"})]
    lines = describe_passages(read_answer({**NO_ANSWER, "passages": passages}, 1.0))
    assert lines[1] == "1. b.md:12, character 0: B"
    assert lines[3] == "2. b.md, page 3, character 0: B"


def test_answers_that_are_not_sure_enough_are_shown_with_their_places():
    known = {"answer": "A.", "score": 0.2, "start": 7, "end": 9, "passage": PASSAGES[0]}
    answer = read_answer({**NO_ANSWER, "unsure": [known]}, 1.0)
    assert describe_unsure(answer) == [
        *("not sure enough:", "0.20  A.", "   **A.**", "   a.md, character 7: T > B")
    ]
    assert "        not sure enough:" in describe(answer).splitlines()
    assert describe_unsure(read_answer(known, 1.0)) == []
