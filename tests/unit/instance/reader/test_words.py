"""Texts put together from words have the tokenizer's tokens, whatever they hold."""

from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from qa_service.instance.reader import words
from qa_service.instance.reader.words import MAX_NEW, MAX_WORD_CHARS, Words
from tests.unit.instance.reader.texts import texts
from tests.unit.instance.tiny_reader import KINDS, tiny_tokenizer

ascii_texts = st.text(st.characters(max_codepoint=127), max_size=60)


def make(kind="bert"):
    tokenizer = Tokenizer.from_str(tiny_tokenizer(kind).to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer, Words(tokenizer)


def expected(tokenizer, text):
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def encoded(known, asked):
    return [
        (ids.tolist(), list(map(tuple, offsets.tolist()))) for ids, offsets in known.encode(asked)
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(ascii_texts | texts, max_size=8))
@example(["the River, [SEP] THE river's", "the river\x00the", "a\x0bb a\x0cb a\x7fb", "a\r\nb", ""])
@example(
    [
        "l\u2019\u00eele \u201cd\u2019or\u201d\u2026 1990\u20131995",
        "cafe\u0301 \u0301x \u200b \u200bthe",
        "\u6cb3\u5ddd the\u3002river",
    ]
)
@example(["  the  river ", " ", "the,river ,the", "the\n the river\n", "river, river, the."])
@example(["_^`~$+<=>|", "x" * 101, "y" * MAX_WORD_CHARS, "riverriver the-river 3.14"])
def test_tokens_equal_the_tokenizers(kind, asked):
    tokenizer, known = make(kind)
    wanted = [expected(tokenizer, text) for text in asked]
    for _ in ("new", "known"):
        assert encoded(known, asked) == wanted
    for text, tokens in zip(asked, wanted, strict=True):
        assert encoded(known, [text]) == encoded(Words(tokenizer), [text]) == [tokens]


class Counting:
    """A tokenizer that counts what it is asked; what `Words` looks at is the real one's."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def encode_batch(self, texts, **options):
        self.asked.append(texts)
        return self.tokenizer.encode_batch(texts, **options)


def test_the_tokenizer_is_asked_for_new_words_only():
    counting = Counting(make()[0])
    known = Words(cast(Tokenizer, counting))
    for text in ("Ada the river", "the river, Ada", "the lake"):
        known.encode([text])
    assert counting.asked == [["Ada", "river", "the"], [","], ["lake"]]


def test_a_new_chunk_of_known_words_asks_the_tokenizer_nothing():
    counting = Counting(make()[0])
    known = Words(cast(Tokenizer, counting))
    known.encode(["the river , Ada ("])
    del counting.asked[:]
    text = "(Ada,the river , the,"
    assert encoded(known, [text]) == [expected(counting.tokenizer, text)]
    assert not counting.asked


def test_a_batch_is_tokenized_at_once():
    counting = Counting(make()[0])
    much, more = (" ".join(f"{a}{b}" for b in range(2 * MAX_NEW)) for a in "xy")
    Words(cast(Tokenizer, counting)).encode([much, "the river", more, "the lake"])
    words, whole = counting.asked
    assert {"the", "river", "lake"} < set(words)
    assert whole == [much, more]


def test_a_text_of_mostly_new_words_is_tokenized_whole():
    counting = Counting(make()[0])
    text = " ".join(f"w{number}" for number in range(2 * MAX_NEW))
    Words(cast(Tokenizer, counting)).encode([text])
    words, whole = counting.asked
    assert len(words) == MAX_NEW
    assert whole == [text]


def test_the_number_of_kept_words_is_bounded(monkeypatch):
    monkeypatch.setattr(words, "MAX_WORDS", 3)
    tokenizer, known = make()
    for number in range(20):
        text = f"a w{number} {'z' * 2 * MAX_WORD_CHARS}"
        assert encoded(known, [text]) == [expected(tokenizer, text)]
        assert len(known._known) <= 3


def test_a_tokenizer_with_added_words_tokenizes_whole_texts():
    tokenizer, _ = make()
    tokenizer.add_tokens(["the river"])
    known = Words(tokenizer)
    assert encoded(known, ["the river"]) == [expected(tokenizer, "the river")]
    assert not known._known
