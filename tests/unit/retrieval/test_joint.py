"""Passages of several collections are comparable: a word scores the same in all of them."""

from collections import Counter
from pathlib import Path

import pytest

from harness.collections import index
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.search_messages import WordCounts

QUESTION = "Which harbour has a lighthouse?"
RARE = "The lighthouse is old and white and tall."
"""As long as the others, so that BM25's share of the length is the same."""
COMMON = "The harbour is old and white and tall."


def collection(folder: Path, name: str, texts: list[str]) -> Collection:
    documents = folder / name
    documents.mkdir()
    for number, text in enumerate(texts):
        (documents / f"{number}.txt").write_text(text)
    return Collection(index(documents, folder / f"{name}.index"))


@pytest.fixture
def coast(tmp_path):
    """One with many harbours and a lighthouse, and one of lighthouses with a harbour."""
    harbours = collection(tmp_path, "harbours", [COMMON] * 20 + [RARE])
    lighthouses = collection(tmp_path, "lighthouses", [RARE] * 20 + [COMMON])
    return harbours, lighthouses


def best(of: Collection, text: str, counts: WordCounts | None = None) -> float:
    hits = of.search(QUESTION, 30, None, counts)
    return next(hit.score for hit in hits if hit.passage.text == text)


def test_a_word_scores_the_same_in_all_collections_that_are_searched_together(coast):
    harbours, lighthouses = coast
    assert best(harbours, RARE) > 3 * best(lighthouses, RARE), "alone each has its own scale"
    counted = [its.count_words(QUESTION) for its in coast]
    words = Counter(counted[0].by_word) + Counter(counted[1].by_word)
    both = WordCounts(sum(its.passages for its in counted), dict(words))
    assert (both.passages, both.by_word["lighthous"], both.by_word["harbour"]) == (42, 21, 21)
    for text in (RARE, COMMON):
        scores = [best(its, text, both) for its in coast]
        assert scores[0] == pytest.approx(scores[1], rel=1e-3)


def test_one_collections_own_counts_change_nothing(coast):
    for its in coast:
        counts = its.count_words(QUESTION)
        for text in (RARE, COMMON):
            assert best(its, text, counts) == pytest.approx(best(its, text), rel=1e-5)
