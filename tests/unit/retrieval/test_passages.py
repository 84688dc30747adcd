"""Texts cut into sentences and passages."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qa_service.retrieval.documents import BlockList, Document, Parsed
from qa_service.retrieval.layout import lay_out
from qa_service.retrieval.passages import MAX_CHARS_PER_TOKEN, cut, sentences
from qa_service.wire.sections import PIECES
from training.trees import render_document

LIMIT = 30


def document(text: str) -> Document:
    return Document("a.txt", "A", text)


def passages(text: str) -> list[str]:
    return [text[p.start : p.end] for p in cut(document(text), LIMIT)]


def split(text: str) -> list[str]:
    return [text[start:end] for start, end, _ in sentences(text, 0, len(text), LIMIT)]


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


def test_long_rows_of_a_table_are_a_passage_each_and_short_ones_share_one():
    rows = "".join(f"| {'a' * n} | what it is |\n" for n in (1, 2, 3))
    table = f"Options:\n\n| name | meaning |\n|---|---|\n{rows}"
    found = render_document(table, "markdown", "a.md")

    def texts(limit: int) -> list[str]:
        return [found.text[p.start : p.end] for p in cut(found, limit)]

    alone = [f"name: {'a' * n}; meaning: what it is" for n in (1, 2, 3)]
    assert texts(60) == [f"Options:\n{alone[0]}", *alone[1:]]
    assert texts(120) == [f"Options:\n{alone[0]}\n{alone[1]}", alone[2]]
    assert [p.heading for p in cut(found, 60)] == ["", "Options:", "Options:"]


def test_a_row_that_is_too_long_is_cut_between_cells_and_its_parts_have_its_label():
    names = ["Service", *(f"Column number {n}" for n in range(12))]
    out = BlockList()
    out.table(names, [(1, ["Plumber", *(f"value {n}" for n in range(12))])])
    found = lay_out(Parsed(out.blocks), "a.csv")
    parts = [(p.heading, found.text[p.start : p.end]) for p in cut(found, LIMIT)]
    assert "; ".join(text for _, text in parts) == found.text
    label = "Service: Plumber; Column number 0: value 0"
    assert {heading for heading, _ in parts[1:]} == {f"{label}; Column number 1: value 1; "
                                                     "Column number 2: value 2"}  # fmt: skip
    assert parts[0][0] == "" and all(text.startswith("Column") for _, text in parts[1:])


def test_a_tables_caption_goes_with_each_passage_of_its_rows():
    out = BlockList()
    out.heading(1, "Contact")
    out.paragraph("There are three:")
    rows = [(n, [town, "9 to 5"]) for n, town in enumerate(("Ulm", "Bonn", "Kiel"), 2)]
    out.table(["Town", "Open"], rows, "Offices of the north")
    found = lay_out(Parsed(out.blocks), "a.csv")
    passages = [(p.heading, found.text[p.start : p.end]) for p in cut(found, 60)]
    assert passages == [
        ("Contact", "There are three:\n\nOffices of the north\nTown: Ulm; Open: 9 to 5"),
        ("Contact > Offices of the north", "Town: Bonn; Open: 9 to 5"),
        ("Contact > Offices of the north", "Town: Kiel; Open: 9 to 5"),
    ]


def test_a_passage_repeats_the_last_sentence_of_the_one_before():
    text = " ".join(f"This is sentence number {n} of all." for n in range(12))
    first, second, *_ = passages(text)
    last = first.split(". ")[-1]
    assert second.startswith(last)
    assert first.endswith(".")


def test_a_passage_ends_before_a_paragraph_that_fits_only_in_the_next():
    paragraph = " ".join(["word"] * 12) + ".\n\n"
    assert [text.count("word") for _, text, _ in cut_markdown(paragraph * 5)] == [24, 24, 12]


def cut_markdown(markup: str, limit: int = LIMIT) -> list[tuple[str, str, int]]:
    """Each passage's heading, text and line."""
    it = render_document(markup, "markdown", "a.md")
    return [(p.heading, it.text[p.start : p.end], p.line) for p in cut(it, limit)]


def test_a_passage_is_of_one_section_and_stands_without_its_headings():
    markup = "# Top\n\nfew words\n\n## Low\n\n### Deep\n\nmore words\n\n## End\n\nlast\n"
    assert cut_markdown(markup) == [
        ("Top", "few words", 3),
        ("Top > Low > Deep", "more words", 9),
        ("Top > End", "last", 13),
    ]


def test_headings_alone_are_a_passage():
    assert [text for _, text, _ in cut_markdown("# One\n\n# Two\n")] == ["One\n\nTwo"]


def test_a_passage_ends_before_a_list_that_fits_only_in_the_next():
    items = "".join(f"- the item number {n}\n" for n in range(4))
    first, second = cut_markdown(f"{'word ' * 15}.\n\nThese are allowed:\n\n{items}")
    assert first[1].endswith("These are allowed:")
    assert second[1] == f"These are allowed:\n{items}".strip()


def test_a_passage_half_full_of_a_list_ends_before_the_paragraph_after_it():
    items = "".join(f"- the item number {n}\n" for n in range(3))
    first, second = cut_markdown(f"{items}\nwords of another matter, and more of them.\n")
    assert (first[1], second[1].split()[0]) == (items.strip(), "words")
    (alone,) = cut_markdown(f"- the item\n\n{'word ' * 10}.\n")
    assert alone[1].startswith("- the item\n")


def test_a_sentence_that_announces_items_is_their_heading_though_another_follows_it():
    items = "".join(f"- this is the item number {n}\n" for n in range(12))
    _, *others = cut_markdown(f"These are allowed:\n\nAll are free.\n\n{items}")
    assert {heading for heading, _, _ in others} == {"These are allowed:"}


def test_items_cut_from_the_sentence_that_introduces_them_have_it_as_heading():
    items = "".join(f"- this is the item number {n}\n" for n in range(12))
    first, *others = cut_markdown(f"# Top\n\nThese are allowed:\n\n{items}")
    assert first[0] == "Top"
    assert {heading for heading, _, _ in others} == {"Top > These are allowed:"}
    assert all(text.startswith("- this is") for _, text, _ in others)
    lines = [line for _, _, line in others]
    assert lines == sorted(lines)
    assert markdown_line(items, lines[0] - 5).startswith(others[0][1].split("\n")[0])


def test_what_is_within_an_item_has_its_term_as_heading():
    words = "one two three four five six seven eight nine ten."
    definitions = f"Colour\n   Of it. {words}\n\n   {words}\n\n   {words}\n\nSize\n   {words}\n"
    found = render_document(f"They are:\n\n{definitions}", "rst", "a.rst")
    parts = [(part.heading, found.text[part.start : part.end]) for part in cut(found, LIMIT)]
    assert parts == [
        ("", f"They are:\nColour: Of it. {words}\n  {words}"),
        ("They are: > Colour", f"{words}\nSize: {words}"),
    ]
    steps = f"1. First: do it.\n\n   - {words}\n   - {words}\n   - {words}\n"
    assert [part[0] for part in cut_markdown(steps)] == ["", "First"]
    long = " ".join(f"word{n}" for n in range(40))
    assert [part[0] for part in cut_markdown(f"- Name: {long}\n")] == ["", "Name"]
    assert [part[0] for part in cut_markdown(f"- {long} {long} {long}\n")] == [""] * 4


def test_a_passage_within_an_item_repeats_a_sentence_too():
    words = "There are so many words in this sentence."
    found = cut_markdown(f"- Name: {words}\n\n  {words} It ends.\n\n  {words} {words}\n")
    assert [text for _, text, _ in found] == [
        f"- Name: {words}\n  {words} It ends.",
        f"It ends.\n  {words} {words}",
    ]


def markdown_line(text: str, number: int) -> str:
    return text.split("\n")[number]


def test_code_is_cut_between_lines_and_each_passage_has_its_line():
    code = "".join(f"call_number({n}, 'words')\n" for n in range(12))
    found = cut_markdown(f"Do this:\n\n```\n{code}```\n")
    assert len(found) > 2
    for _, text, line in found[1:]:
        assert text.split("\n")[0] == code.split("\n")[line - 4]


def test_a_commands_options_in_code_are_passages_as_rows_are():
    options = [
        "  -q, --quiet\n                   print no more than what is an error",
        "  --log <file>     write what is printed to this file too",
        "  -k               go on with what does not depend on it",
        "  -n, --number N   how many of them run at once here",
    ]
    usage = "\n".join(["usage: make [options]", *options])
    found = [text for _, text, _ in cut_markdown(f"# Use\n\n```\n{usage}\n```\n")]
    assert found == ["usage: make [options]", *options]
    command = "\n".join(["run", *(f"  --option-{n} {n} \\" for n in range(5))])
    (only,) = cut_markdown(f"```\n{command}\n```\n", 2 * LIMIT)
    assert only[1] == command


OPTIONS = "".join(f"  -{name}  does what it is called after\n" for name in "abcd")


@pytest.mark.parametrize(
    "code",
    [
        "".join(f"-{n}.5  {n}.25  -{n}\n" for n in range(6)),
        "-rw-r--r--  1 root  root    12 a\n" * 6,
        f"usage() {{ cat <<END\n{OPTIONS}END\n}}\n" + "case $1 in one) run two ;;\n" * 20,
    ],
    ids=["numbers", "rights", "program"],
)
def test_what_only_looks_like_options_is_cut_as_code(code):
    found = cut_markdown(f"```\n{code}```\n", 60)
    assert len(found) <= 1 + len(PIECES.findall(code)) // 40


def test_what_stands_behind_options_is_cut_between_lines():
    further = "".join(f"$ make {n} one two three\n" for n in range(10))
    found = [text for _, text, _ in cut_markdown(f"```\n{OPTIONS * 3}\n{further}```\n")]
    assert [line for text in found for line in text.split("\n") if line] == [
        line for line in f"{OPTIONS * 3}{further}".split("\n") if line
    ]


def test_a_short_remainder_joins_the_passage_before():
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
def test_passages_contain_the_whole_text_within_bounds(pieces):
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


def test_signs_without_words_make_no_sentence():
    assert len(split(". " * 400)) < 20
    assert split("What?! Yes… No . Then") == ["What?!", "Yes…", "No .", "Then"]
