"""Rare words put for others: in question and text alike, and nothing else changes."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from training.features import Features, Target, swap_words

NAMES = [f"{first}{second}zz" for first in "bcdfghjklmnpqrtvw" for second in "aeiouyhjkw"]
YEARS = [str(year) for year in range(1900, 1930)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "where", "was", "born", "in", "##ville", "##burg"]
VOCABULARY = {word: number for number, word in enumerate([*WORDS, *NAMES, *YEARS])}
PIECES = list(VOCABULARY)


@pytest.fixture
def tokenizer():
    return Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))


def row(name, year, ending="##ville"):
    pieces = f"[CLS] where was {name} born [SEP] {name} was born in {name} {ending} in {year} [SEP]"
    ids = np.array([VOCABULARY[piece] for piece in pieces.split()])
    return Features(ids, Target.of_span(10, 11))


def rows():
    endings = ("##ville", "##burg")
    return [row(NAMES[n % len(NAMES)], YEARS[n % len(YEARS)], endings[n % 2]) for n in range(1000)]


def words_of(features):
    return [PIECES[number] for number in features.input_ids]


def test_a_word_is_swapped_wherever_it_stands_and_the_answer_stays_in_its_place(tokenizer):
    swapped = swap_words(rows(), tokenizer, 1.0, seed=0)
    changed = 0
    for before, after in zip(rows(), swapped, strict=True):
        words = words_of(after)
        assert words[3] == words[6] in NAMES
        assert words[:3] == ["[CLS]", "where", "was"]
        assert after.target.first == before.target.first
        assert len(after) == len(before)
        changed += words[3] != words_of(before)[3]
    assert 0.5 * len(swapped) < changed < 0.8 * len(swapped)


def test_a_year_is_swapped_for_a_year_and_a_word_of_two_tokens_for_one_like_it(tokenizer):
    long_names = {tuple(words_of(r)[10:12]) for r in rows()}
    swapped = swap_words(rows(), tokenizer, 1.0, seed=0)
    assert {words_of(r)[13] for r in swapped} == set(YEARS)
    assert {tuple(words_of(r)[10:12]) for r in swapped} <= long_names
    assert any(words_of(r)[10] != words_of(r)[3] for r in swapped)


def test_a_swap_share_of_zero_changes_nothing(tokenizer):
    for before, after in zip(rows(), swap_words(rows(), tokenizer, 0.0, seed=0), strict=True):
        assert words_of(after) == words_of(before)


def test_the_same_seed_swaps_the_same_words(tokenizer):
    first, again, other = (swap_words(rows(), tokenizer, 0.3, seed=seed) for seed in (1, 1, 2))
    assert [words_of(r) for r in first] == [words_of(r) for r in again]
    assert [words_of(r) for r in first] != [words_of(r) for r in other]


def test_a_common_word_stays(tokenizer):
    same = [row(NAMES[0], year) for year in YEARS]
    for after in swap_words(same, tokenizer, 1.0, seed=0):
        assert words_of(after)[3] == NAMES[0]
