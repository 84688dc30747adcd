"""What may be an answer, and what is made of a span that was chosen."""

import math
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader import whole_words as words
from qa_service.instance.reader.answer_rule import AnswerRule
from qa_service.instance.reader.whole_words import whole_words
from tests.unit.instance.reader.test_spans import encode, read

FAQ = "Where is the key?"


def allows(question, text, words):
    start = text.index(words)
    return AnswerRule(question, text).allows(start, start + len(words))


@pytest.mark.parametrize(
    ("question", "text", "words"),
    [
        (FAQ, "## Where is the key?\n\nBelow the mat.", "##"),
        (FAQ, "## Where is the key?\n\nBelow the mat.", "Where"),
        (FAQ, "## The key\n\nBelow the mat.", "The key"),
        (FAQ, "3. Where is the key?\n\nBelow the mat.", "3"),
        (FAQ, "8- Keys\n9- Mats", "8-"),
        (FAQ, "**Q: Where is the key?**\n\nA: Below the mat.", "Q"),
        (FAQ, "**Q: Where is the key?**\n\nA: Below the mat.", "A"),
        (FAQ, "Where is the key?\n=================\nBelow it.", "===="),
        (FAQ, "* Where is the key?\n* Below the mat.", "* Where is"),
        (FAQ, "| Key | Place |\n|---|---|\n| red | mat |", "|---|"),
        (FAQ, "The key is below the mat", "key"),
        ("What is top_k?", "Field: top_k; Meaning: how many answers there are in a reply", "top_k"),
        ("What does --dry-run do?", "With --dry-run it writes nothing, and says so.", "--dry-run"),
        (FAQ, "It is below the mat. The key is the key.", "key"),
        (FAQ, "The key is below the mat.", "."),
        ("What is top_k?", "In every reply, a number of them.", "a"),
    ],
)
def test_marks_and_the_words_of_a_repeated_question_are_no_answer(question, text, words):
    assert not allows(question, text, words)


@pytest.mark.parametrize(
    ("question", "text", "words"),
    [
        ("Which sign is a wildcard?", "Here @ is a wildcard, and * too.", "@"),
        ("Which sign is a wildcard?", "Here @ is a wildcard, and * too.", "*"),
        ("Which letter?", 'Write "a" there.', "a"),
        ("Is the door red or blue?", "The door is blue", "blue"),
        ("Is the door red or blue?", "## Red or blue\n\nThe door is blue", "blue"),
        ("How many of the 12 came?", "Of all who were asked by mail and by phone, 12 came.", "12"),
        ("Is it a_b or c_d?", "In this version of it, a_b is the name that is taken.", "a_b"),
        ("What is 3?", "There are 3 ways to get to the other side of the river by foot.", "3"),
        (FAQ, "A key lies below the mat", "below the mat"),
        (FAQ, "Answer me: below the mat", "Answer me"),
        (FAQ, "3 keys are below the mat", "3 keys"),
    ],
)
def test_a_span_in_prose_may_be_an_answer(question, text, words):
    start = text.rindex(words)
    assert AnswerRule(question, text).allows(start, start + len(words))


@pytest.mark.parametrize(
    "text",
    [f"It is Ida{end}In 1931" for end in ("\n\n", "\n---------\n", "\n \n")]
    + ["# It is Ida\nIn 1931"],
)
def test_an_answer_ends_with_its_paragraph(text):
    rule = AnswerRule("Who?", text)
    start, end = text.index("Ida"), text.index("1931")
    assert not rule.allows(start, end)
    assert rule.allows(start, start + 3)
    assert rule.allows(end, end + 4)


ROWS = "Key: a; Value: 1 to 9\nKey: b; Value: 2"
PIPES = "| Plan | Price |\n|---|---|\n| Solo | 5 EUR |"


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (ROWS, "a; Value: 1", "a"),
        (ROWS, "Value: 1 to 9", "1 to 9"),
        (ROWS, "1 to 9\nKey: b", "1 to 9"),
        (ROWS, "Key", "Key"),
        ("Set: 1, or more; else: it is 2", "1, or more; else: it", "1, or more"),
        ("Note: set 1; or 2", "1; or 2", "1; or 2"),
        (PIPES, "Solo | 5 EUR", "Solo"),
        (PIPES, "Price |\n|---", "Price"),
        ("We read:\n- red ink\n- blue ink", "red ink\n- blue", "red ink"),
        ("1. red ink\n2. blue ink", "red ink\n2. blue ink", "red ink"),
        ("1- red ink\n2- blue ink", "red ink\n2- blue ink", "red ink"),
        ("It is Ida\nRoth - or so", "Ida\nRoth - or", "Ida\nRoth - or"),
        ("a | b | c", "a | b", "a | b"),
    ],
)
def test_an_answer_stays_in_one_item_or_cell(text, words, expected):
    start = text.index(words)
    start, end = AnswerRule("Why?", text).within_cell(start, start + len(words))
    assert text[start:end].rstrip("; \n") == expected


CELLS = "a: b; c: d\na: e; c: f"


def test_a_span_over_a_cells_end_becomes_the_cell():
    (answer,) = read(CELLS, {2: 9.0}, {6: 9.0}, ReadingConfig(max_answer_tokens=9))
    assert (answer.answer, answer.score) == ("b", 1.0)


def test_the_start_of_one_cell_with_the_end_of_another_counts_for_neither_if_one_is_an_answer():
    config = ReadingConfig(max_answer_tokens=9)
    (answer,) = read(CELLS, {2: 9.0, 6: 8.5}, {2: 7.5, 6: 9.0}, config)
    assert answer.answer == "d"
    assert answer.score == pytest.approx(1 / (1 + math.exp(16.5 - 17.5)), abs=0.01)


def test_a_line_end_within_a_paragraph_is_no_end():
    assert allows("Who?", "It is Ida\nRoth, and he", "Ida\nRoth")


@pytest.mark.parametrize(
    "text", ["b b b b", "## b c\n\nd e f g", "1. b c d\n\ne f", "b? c d. e", "* b\n* c\n\n---\n\nd"]
)
def test_the_table_of_spans_agrees_with_the_rule_for_one_span(text):
    rule, encoded = AnswerRule("b c", text), encode(text)
    table = rule.table(encoded.offsets, 4)
    assert table.shape == (len(encoded.offsets), 4)
    for first, (start, _) in enumerate(encoded.offsets):
        for last in range(first, min(first + 4, len(encoded.offsets))):
            assert table[first, last - first] == rule.allows(start, encoded.offsets[last][1])


def test_disallowed_spans_leave_their_probability_to_the_others():
    raised = {2: 9.0, 5: 4.0}
    (answer,) = read("## b c?\n\nd e", raised, raised, question="b c")
    assert (answer.answer, answer.score) == ("d", 1.0)


def test_a_text_that_only_repeats_the_question_has_no_answer():
    config = ReadingConfig(null_threshold=0.0)
    (answer,) = read("## b c?", {2: 9.0}, {2: 9.0}, config, question="b c")
    assert (answer.answer, answer.start) == ("", None)


TEXTS = {
    "Read http://ex.org/a_b?c=1#d, so.": {
        "http": "http://ex.org/a_b?c=1#d",
        "org/a": "http://ex.org/a_b?c=1#d",
    },
    "Write to ida.roth@ex.org.": {"ida": "ida.roth@ex.org", "ex.org.": "ida.roth@ex.org"},
    "Set --no-check=all or -vv.": {"no-check": "--no-check=all", "vv": "-vv", "-vv.": "-vv"},
    "It lies in /etc/a-b/c.conf; or ~/.d": {"etc": "/etc/a-b/c.conf", ".d": "~/.d"},
    "See a-b/c.conf; so": {"c.conf;": "a-b/c.conf"},
    "See C:\\Data\\x.ini.": {"Data": "C:\\Data\\x.ini"},
    "At -12 °C or ±0.5 mm or 7%.": {"12": "-12 °C", "0.5": "±0.5 mm", "7": "7%"},
    "It costs $2,500.75 or 18 EUR.": {"500": "$2,500.75", "18": "18 EUR"},
    "It has 64 MiB or 2 kg/m².": {"64 Mi": "64 MiB", "2": "2 kg/m²"},
    "It costs € 20, at 55 dB(A).": {"20": "€ 20", "55": "55 dB(A)"},
    "It writes **/*.py and *.txt.": {"py": "**/*.py", "*.t": "*.txt", "txt": "*.txt"},
    "On .NET press Ctrl-Alt-Del.": {"NET": ".NET", "Alt": "Ctrl-Alt-Del"},
    "This is **very bold**. So": {"bold**": "bold", "**very": "very"},
    "Number 07-1234.": {"07": "07-1234", "1234.": "07-1234"},
    "It meets ISO 9001:2015.": {"ISO": "ISO 9001:2015", "9001": "9001:2015"},
    "Set a.b.max_size in C++ or C#.": {"max": "a.b.max_size", "C": "C++", "C#.": "C#"},
    "The sign * is it.": {"The sign *": "*", "*": "*"},
    "Run it with -q now.": {"with -q": "-q"},
    "Add --all=yes to see it.": {"--all=yes to see": "--all=yes"},
    "Add -v 2 in full.": {"-v 2 in": "-v 2 in"},
    "Keys lie in /srv/k-1.pem on each node.": {"/srv/k-1.pem on each node": "/srv/k-1.pem"},
    "See https://ex.org/a for more.": {"https://ex.org/a for more.": "https://ex.org/a"},
    "Either and/or of it.": {"and/or of it": "and/or of it"},
    "A well-known man, born in 1914-1918.": {"known": "known", "man,": "man", "1914": "1914"},
    "He said \"yes\" (in 1843).": {"yes\"": "yes", "\"yes": "yes", "(in 1843).": "(in 1843)"},
    "By J. Roe Jr. of the U.S. Navy.": {"Roe Jr.": "Roe Jr.", "U.S.": "U.S.", "Navy.": "Navy"},
    "- Pears and figs\n- Plums": {"- Pears": "Pears", "figs\n": "figs"},
    "Issues: ● In all: ○ 80 open ○ 54 to discuss": {
        "○ 80": "80", "80 open ○": "80 open", "● In all": "In all", "54": "54",
    },
    "Ulm: ●; Bonn: ○": {"●": "●", "○": "○"},
    "**Bold** words, and `code`.": {"**Bold**": "Bold", "`code`.": "code"},
    "Over 90 of them, a 40-year-old": {"Over 90": "Over 90", "40": "40"},
    "In 1999 in London; 30 min": {"1999": "1999", "30": "30 min"},
    'A screen of 27" and a door of 6\'2".': {
        '27"': '27"', "27": '27"', "6": "6'2\"", "2\"": "6'2\"",
    },
    'Read "Room 27", then 24" wide': {"27": "27", "24": '24"'},
    "Call (555) 010-7788 or 555-0199.": {"555) 010": "(555) 010-7788", "7788": "(555) 010-7788"},
    "Tel: +49 (0)731 505-0; Fax: +44 20 7946 0958": {
        "731 505": "+49 (0)731 505-0", "+49": "+49 (0)731 505-0", "505-0": "+49 (0)731 505-0",
        "20 7946": "+44 20 7946 0958",
    },
    "From 10 a.m. to 5:30 pm daily.": {"10 a.m": "10 a.m.", "10": "10 a.m.", "5:30": "5:30 pm"},
    "It gives 800 lm from 9 Wh, and 0.5 l.": {"800": "800 lm", "9": "9 Wh", "0.5": "0.5 l"},
    "In 1990 (1991) and 12 amps": {"1990": "1990", "1991": "1991", "12": "12"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [(text, *pair) for text, pairs in TEXTS.items() for pair in pairs.items()],
)
def test_a_chosen_span_becomes_what_a_person_would_mark(text, words, expected):
    start = text.index(words)
    start, end = whole_words(text, start, start + len(words), {"sign"})
    assert text[start:end] == expected


@pytest.mark.parametrize(("text", "words"), [("Yes, so.", ","), ("Why?! So", "?!"), ("a) b", ")")])
def test_a_span_of_punctuation_alone_is_empty(text, words):
    start = text.index(words)
    start, end = whole_words(text, start, start + len(words))
    assert start == end


def test_the_search_in_a_run_without_white_space_is_bounded():
    text = "a/" * 50_000
    start, end = whole_words(text, 50_000, 50_002)
    assert end - start <= 2 * 2048 + 2


def test_the_words_of_a_url_count_as_one_answer():
    text, raised = "b://c.d/e", {0: 5.0, 4: 5.0, 8: 5.0}
    (answer,) = read(text, raised, raised, ReadingConfig(max_answer_tokens=9))
    assert (answer.answer, answer.score, answer.places) == (text, 1.0, ())


PIECES = [" ", "\n", "the", "an", "x", "Q:", "1.", "- ", "# ", "**", "---", "===", "__", ". ", "?"]
PIECES += ["...", '"', "(", ")", "@", "top_k", "--dry-run", "or", "| ", "\u00a0", "é", "5", ":--"]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=30), st.data())
def test_a_spans_worth_is_the_same_alone_and_in_the_whole_text(pieces, data):
    text = "".join(pieces)
    rule = AnswerRule("the top_k x of 5", text)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    assert (rule._worth(start, end) == rule._worth(0, len(text))[start:end]).all()


SIGNS = "+-.,/():;apmAPM'\u2032\"\u2033 0123456789x\u00a0\n"


@given(st.text(SIGNS, max_size=60), st.integers(0, 60), st.integers(1, 60))
@example("Call +49 (0) 30 12-34 now", 5, 4)
@example("It ends at 10 p.m. today", 11, 2)
@example('He is 5 ft 10" tall, or 5\'10"', 24, 2)
def test_a_span_is_cut_in_a_spaced_word_only_where_one_may_be_cut(text, start, length):
    start = min(start, len(text))
    end = min(start + length, len(text))
    begin = max(0, text.rfind("\n", 0, start) + 1, start - words._MAX_SPACED_CHARS)
    for found in words._SPACED.finditer(text, begin, end + words._MAX_SPACED_CHARS):
        for place in (start, end):
            if found.start() < place < found.end():
                assert words._AFTER_SPACED.match(text, place)
                before = text[found.start() : place][::-1]
                assert before[0] == "," or words._BEFORE_SPACED.match(before)


PHRASES = [
    "Ada",
    "the",
    "with",
    "sign",
    "run",
    "a",
    "5",
    "pm",
    "p.m.",
    "10",
    "km",
    "min",
    "GB",
    "é",
]
PHRASES += ["--dry-run", "Ctrl-C", "ISO", "9001", "$", "CHF", "it's", "U.S.", "http://b.c/d", "°C"]
PHRASES += [" "] * 9 + [
    ", ",
    ". ",
    "? ",
    "; ",
    "-",
    "\u2013",
    '"',
    "(",
    ")",
    "'s",
    "\n",
    "\n- ",
    "*",
]


@given(st.lists(st.sampled_from(PHRASES), min_size=1, max_size=12), st.data())
@example(["It ends at ", "5", " ", "pm", ", "], None)
def test_a_span_that_is_seen_at_once_to_be_whole_stays_so_in_the_long_way(pieces, data):
    text = "".join(pieces)
    bounds = st.integers(0, len(text))
    start, end = sorted([data.draw(bounds), data.draw(bounds)]) if data else (13, 15)
    start, end = words.stripped(text, start, end)
    if start < end:
        found = whole_words(text, start, end, {"sign"})
        with mock.patch.object(words, "_is_plain", lambda *_: False):
            assert found == whole_words(text, start, end, {"sign"})
