"""SQuAD's file format and measures, on cases worked out by hand."""

import gzip
import json
import re

import pytest

from qa_service.data.squad import exact_match, f1_score, normalize_answer, read_squad

ANSWERS = [{"text": "Café", "answer_start": 4}, {"text": "Das Café", "answer_start": 0}]
QUESTIONS = [
    {"id": 7, "question": "Was steht am Ufer?", "answers": ANSWERS},
    {"id": "none", "question": "Wer?", "answers": [], "is_impossible": True},
]
PARAGRAPH = {"context": "Das Café steht am Ufer.", "qas": QUESTIONS}
DOCUMENT = {"data": [{"title": "Loire", "paragraphs": [PARAGRAPH]}]}


@pytest.fixture(params=["squad.json", "squad.json.gz"])
def squad_file(request, tmp_path):
    path = tmp_path / request.param
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump(DOCUMENT, file)
    return path


def test_reads_plain_and_gzip_alike(squad_file):
    answered, unanswerable = read_squad(squad_file)
    assert answered.id == "7"
    assert answered.answers == ("Café", "Das Café")
    for answer, start in zip(answered.answers, answered.answer_starts, strict=True):
        assert answered.context[start : start + len(answer)] == answer
    assert (unanswerable.answers, unanswerable.answer_starts) == ((), ())
    assert [answered.is_impossible, unanswerable.is_impossible] == [False, True]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_file_with_a_byte_order_mark_is_read(tmp_path, encoding):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(DOCUMENT, ensure_ascii=False), encoding=encoding)
    assert read_squad(path)[0].context == PARAGRAPH["context"]


@pytest.mark.parametrize("content", ["[]", '{"data": [{"paragraphs": [{}]}]}', "no json"])
def test_files_of_another_format_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"SQuAD|Expecting"):
        read_squad(path)


def test_a_faulty_file_is_one_short_line_with_its_name(tmp_path):
    whole = gzip.compress(json.dumps(DOCUMENT).encode())
    number = json.dumps({"data": [{"paragraphs": [{"context": 5, "qas": QUESTIONS}]}]})
    faults = {
        "cut.gz": (whole[:-20], "is not a whole gzip file: Compressed file ended"),
        "plain.gz": (b"{}", "is not a whole gzip file: Not a gzipped file"),
        "damaged.gz": (whole[:20] + b"\xff" * 40 + whole[60:], "is not a whole gzip file: "),
        "program": (b"\x7fELF\xd0" * 100_000, "format: UnicodeDecodeError: 'utf-8' codec"),
        "number": (number.encode(), "format: TypeError: context is not a string"),
    }
    for name, (content, words) in faults.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(words)) as raised:
            read_squad(path)
        assert str(raised.value).startswith(f"{path} is not ")
        assert len(str(raised.value)) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The New York Times", "new york times"),
        ("  an  apple, a day ", "apple day"),
        ("U.S.", "us"),
        ("theatre", "theatre"),
        ("the", ""),
        ("1 %", "1"),
    ],
)
def test_answers_are_normalized_as_squad_does(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match_takes_the_best_answer():
    assert exact_match("the Times.", ("New York", "Times")) == 1.0
    assert exact_match("York", ("New York", "Times")) == 0.0


def test_f1_counts_words_as_often_as_they_stand():
    assert f1_score("very very big", ("very big",)) == pytest.approx(0.8)
    assert f1_score("small", ("very big",)) == 0.0
    assert f1_score("York Times", ("Guardian", "New York Times")) == pytest.approx(0.8)


@pytest.mark.parametrize("measure", [exact_match, f1_score])
def test_unanswerable_questions_score_only_an_empty_answer(measure):
    assert measure("", ()) == 1.0
    assert measure("an answer", ()) == 0.0
    assert measure("", ("an answer",)) == 0.0
