"""Texts cut into sentences and passages."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qa_service.retrieval.documents import Document, Heading
from qa_service.retrieval.passages import cut
from qa_service.retrieval.sentences import MAX_CHARS_PER_TOKEN, sentences
from qa_service.wire.sections import PIECES

LIMIT = 30


def document(text: str, *headings: tuple[int, str]) -> Document:
    found = [Heading(text.index(words), level, words) for level, words in headings]
    return Document("a.txt", "A", text, tuple(found))


def passages(text: str, *headings: tuple[int, str], limit: int = LIMIT) -> list[str]:
    return [text[p.start : p.end] for p in cut(document(text, *headings), limit)]


def split(text: str) -> list[str]:
    return [text[s.start : s.end] for s in sentences(text, 0, len(text), LIMIT)]


@pytest.mark.parametrize(
    "text",
    [
        "One is here. | Two is there! | Is it? | Yes…",
        'He said "no." | She left. | (It rained.) | Then it stopped.',
        "Dr. Smith met J. R. Jones at 3 p.m. in approx. 5. | They left.",
        "It costs 3.14 or e.g. 2.71 euros. | Fig. 3 shows it.",
        "A list:\n | - one thing\n | - another\n | 3. a third",
        "A title\n\n | A paragraph without a stop\n\n | Another",
        "今日は晴れ。 | 明日は雨！ | 本当？",  # noqa: RUF001
    ],
)
def test_sentences_end_where_a_reader_ends_them(text):
    expected = text.split(" | ")
    assert split("".join(f"{part} " for part in expected)) == [part.strip() for part in expected]


def test_a_sentence_that_is_too_long_is_cut_between_words():
    parts = split("word " * (2 * LIMIT + 5))
    assert [len(part.split()) for part in parts] == [LIMIT, LIMIT, 5]
    assert {len(part) % 5 for part in parts} == {4}, "no word is cut"


def test_a_passage_repeats_the_last_sentence_of_the_one_before():
    text = " ".join(f"This is sentence number {n} of all." for n in range(12))
    first, second, *_ = passages(text)
    last = first.split(". ")[-1]
    assert second.startswith(last)
    assert first.endswith(".")


def test_a_paragraph_ends_a_passage_that_is_two_thirds_full():
    paragraph = " ".join(["word"] * 7) + ".\n\n"
    assert [p.count("word") for p in passages(paragraph * 6)] == [21, 28]


def test_a_heading_ends_a_passage_that_is_half_full_and_stands_with_what_follows():
    text = "# Top\n" + "word " * 16 + ".\n## Low\n" + "other " * 16 + ".\n"
    found = list(cut(document(text, (1, "# Top"), (2, "## Low")), LIMIT))
    assert [text[p.start : p.end].split(maxsplit=1)[0] for p in found] == ["#", "##"]
    assert [p.heading for p in found] == ["# Top", "# Top > ## Low"]


def test_short_sections_share_a_passage():
    text = "# One\nfew words.\n# Two\nfew more.\n"
    assert len(passages(text, (1, "# One"), (1, "# Two"))) == 1


def test_what_is_left_joins_the_passage_before():
    text = "word " * 25 + ". A few. " + "word " * 24 + ". End."
    assert passages(text)[-1].endswith("End.")
    assert len(passages(text)) == 2


@given(
    st.lists(st.sampled_from(["word", "it", ". ", "! ", " ", "\n", "\n\n", "- ", "語", "。", "é"]))
)
@example([" "] * 5000 + ["word"] + [" "] * 5000 + ["word"])
@example(["word", "."] + ["\n"] * 5000 + ["word", "."])
@example(["x" * 50_000])
@example(["\n1. "] * 1000)
def test_passages_hold_everything_within_bounds(pieces):
    text = "".join(pieces)
    covered = 0
    for passage in cut(document(text), LIMIT):
        assert not text[covered : max(covered, passage.start)].strip()
        assert passage.end > covered
        covered = passage.end
        words = text[passage.start : passage.end]
        assert words == words.strip() != ""
        assert 3 * len(PIECES.findall(words)) <= 4 * LIMIT + 3
        assert 3 * len(words) <= 4 * LIMIT * MAX_CHARS_PER_TOKEN + 3
    assert not text[covered:].strip()


def test_the_cost_of_cutting_grows_with_the_text():
    text = "1. " * 20_000 + "\n" + " " * 20_000 + "a.b" * 20_000

    class Counted(str):
        """A text that counts what is copied of it."""

        copied = 0

        def __getitem__(self, key):
            found = super().__getitem__(key)
            Counted.copied += len(found)
            return found

    assert list(cut(Document("a", "A", Counted(text)), 150))
    assert Counted.copied < 20 * len(text)
