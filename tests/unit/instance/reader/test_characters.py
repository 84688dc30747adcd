"""Cuts through what a reader sees as one character, in many scripts."""

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from qa_service.instance.reader.whole_words import stripped, whole_characters
from tests.unit.instance.reader.texts import texts

CHARACTERS = {
    "combining mark": "e\u0301",
    "two marks": "a\u0323\u0302",
    "Hebrew point": "\u05e9\u05b8",
    "Devanagari conjunct": "\u0915\u094d\u0937\u093f",
    "Thai sara am": "\u0e01\u0e33",
    "Hangul in parts": "\u1112\u1161\u11ab",
    "half-width kana": "\uff76\uff9e",
    "keycap": "1\ufe0f\u20e3",
    "flag": "🇩🇪",
    "flag of Wales": "🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f",
    "skin tone": "👍🏽",
    "family": "👩\u200d👩\u200d👧\u200d👦",
}


@pytest.mark.parametrize("character", CHARACTERS.values(), ids=CHARACTERS)
@pytest.mark.parametrize(("before", "after"), [("a ", " b"), ("", ""), ("字", "字"), ("🇫🇷", "🇫🇷")])
def test_a_cut_character_is_made_whole(character, before, after):
    text = before + character + after
    whole = (len(before), len(before) + len(character))
    for cut in range(whole[0] + 1, whole[1]):
        assert whole_characters(text, cut, whole[1]) == whole
        assert whole_characters(text, whole[0], cut) == whole
    assert whole_characters(text, *whole) == whole


@given(texts, st.data())
@example("🇩🇪" * 20, None)
@example("🇩🇪🇫🇷 1️⃣2️⃣", None)
@example("\u0301 a", None)
def test_no_character_is_cut(text, data):
    ends = {0} | {cluster.end() for cluster in regex.finditer(r"\X", text)}
    cuts = [len(text) // 2, len(text) - 1]
    if data is not None:
        cuts = [data.draw(st.integers(0, len(text))) for _ in range(2)]
    start, end = sorted(max(0, cut) for cut in cuts)
    whole = whole_characters(text, start, end)
    assert set(whole) <= ends
    assert whole == (max(e for e in ends if e <= start), min(e for e in ends if e >= end))


def test_a_mark_at_the_start_of_a_text_is_whole():
    assert whole_characters("\u0301 a", 0, 1) == (0, 1)


@given(texts)
def test_stripping_matches_str_strip(text):
    start, end = stripped(text, 0, len(text))
    assert text[start:end] == text.strip()
