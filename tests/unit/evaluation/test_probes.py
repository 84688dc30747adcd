"""What the probes change, and what they leave."""

import pytest

from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.probes import PROBES, distracted, lower_cased, with_typos

TEXTS = {
    "Ada": "Ada built the Analytical bridge. She lived in Rome. It rained.",
    "Bo": "Bo built the Analytical tower! Nobody came. He was glad.",
    "Cy": "Cy baked bread.",
}
QUESTIONS = [
    SquadQuestion(name, f"Who built the Analytical thing of {name}?", text, (name,), (0,))
    for name, text in TEXTS.items()
]


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_answers_stay_where_they_are_and_a_probe_is_always_the_same(probe):
    changed = probe(QUESTIONS)
    assert changed == probe(QUESTIONS)
    for before, after in zip(QUESTIONS, changed, strict=True):
        start = after.answer_starts[0]
        assert after.answers == before.answers
        assert after.context[start : start + len(after.answers[0])] == after.answers[0]


def test_lower_cased_has_no_capitals():
    assert lower_cased(QUESTIONS)[0].question == "who built the analytical thing of ada?"


def test_typos_replace_one_letter_in_twenty():
    long = SquadQuestion("1", "Who, in 1843? " * 500, "Ada", ("Ada",), (0,))
    (changed,) = with_typos([long])
    pairs = list(zip(long.question, changed.question, strict=True))
    assert all(before == after for before, after in pairs if not before.isalpha())
    letters = [before != after for before, after in pairs if before.isalpha()]
    assert 0.035 < sum(letters) / len(letters) < 0.065


def test_the_distracting_sentences_are_of_a_text_without_the_answer():
    changed = distracted(QUESTIONS)[0].context
    before, after = changed.split(TEXTS["Ada"])
    assert before.strip() in TEXTS["Bo"] + TEXTS["Cy"]
    assert after.strip() in TEXTS["Bo"] + TEXTS["Cy"]


def test_without_another_text_no_distracting_sentence_is_added():
    assert distracted(QUESTIONS[:1]) == QUESTIONS[:1]
