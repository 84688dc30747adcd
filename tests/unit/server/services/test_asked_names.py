"""Which words of a question are names, and how many of them a passage lacks."""

import pytest

from qa_service.server.services.asked_names import asked_names, count_missing
from qa_service.wire.messages import Passage


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("How many planes does Southwest own?", {"southwest"}),
        ("REAP recipients in Ohio, FY09", {"reap", "ohio", "fy09"}),
        ("etcd v3.4 or macOS, since 2019?", {"maco", "2019"}),
        ("When did Boeing's plant open in 1998?", {"boeing", "1998"}),
        ("what is the fee for 250 copies", set()),
        ("Can I bring a dog?", set()),
        ("What Is Ownership", set()),  # a title
        ("WHERE IS THE OFFICE", set()),
        ("", set()),
        ("¿?", set()),
    ],
)
def test_names_are_words_with_capitals_and_years(question, names):
    assert asked_names(question) == names


def test_a_name_may_stand_in_the_passage_its_headings_its_title_or_its_path():
    names = {"ohio", "2019", "boeing", "fee", "guam"}
    passage = Passage("reports/2019.pdf", "Fees", "States > OHIO", 0, 12, "Boeings: 12.")
    assert count_missing(names, passage) == 1
    assert count_missing(set(), passage) == 0
