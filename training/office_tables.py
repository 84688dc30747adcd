"""Makes the tables that offices keep, and what people ask of them in other words than the tables'.

    python -m training.office_tables --count 2000 --output office_passages.json.gz

writes questions with their passages, for `finetune_model --train_passages`. Of each kind of column
(`wordings/office.json`) there are several names and several ways to ask, of which any goes with
any: what is to be learned is which words mean the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from qa_service.retrieval.documents import BlockList, Document, Parsed, row_text
from qa_service.retrieval.layout import lay_out
from qa_service.retrieval.passages import cut
from qa_service.retrieval.search_messages import read_text
from training.documents import Asked, DocumentQuestion, generator_flags, write_groups
from training.office_values import LISTS, OFFICE, Column, Kind, drawn_value
from training.table_questions import as_typed, place_in

_NONE_SHARE = 0.22
_EMPTY_SHARE = 0.06
_OTHER_WORDS_SHARE = 0.4
_QUESTIONS_A_TABLE = 9
_QUESTIONS_A_DOCUMENT = 15
_PASSAGES = 4
_PAPERS = ("handbook", "annual report", "notes", "fact sheet", "plan", "price file", "overview")
_LEADS = (
    "The following table shows them.",
    "As of the last review:",
    "Figures may not add up.",
    "See also the notes below.",
)

_GROUPS = (
    ("",), ("",), ("Male", "Female", "Total"), ("Number", "Percent"),
    ("Estimate", "Margin of error"), ("Under 18", "All ages"),
)  # fmt: skip
_SAID = {
    "Male": ("men", "boys", "male"),
    "Female": ("women", "girls", "female"),
    "Total": ("altogether", "in all", "total"),
    "Number": ("how many", "number"),
    "Percent": ("share", "in percent", "percentage"),
    "Estimate": ("estimated number",),
    "Margin of error": ("how exact is the number", "margin of error", "uncertainty"),
    "Under 18": ("minors", "below 18"),
    "All ages": ("everybody", "all ages"),
}


def _value(column: Column, rng: random.Random) -> str:
    """A value; in one cell of seventeen there is none."""
    return "" if rng.random() < _EMPTY_SHARE else drawn_value(column.value, rng)


class Question(NamedTuple):
    """A question and the cell that answers it, if one does.

    Attributes:
        label: The row's name.
        row: The row, as the index writes it; "" if there is none.
    """

    question: str
    label: str
    answer: str = ""
    row: str = ""


class Made(NamedTuple):
    caption: str
    head: list[str]
    rows: list[list[str]]
    asked: list[Question]


def make_table(rng: random.Random) -> Made:
    return _by_year(rng) if rng.random() < 0.3 else _of_kind(rng.choice(OFFICE.kinds), rng)


def _of_kind(kind: Kind, rng: random.Random) -> Made:
    names = LISTS[kind.rows]
    labels = rng.sample(names, min(len(names) - 1, rng.randint(3, 14)))
    columns = rng.sample(kind.columns, rng.randint(2, min(6, len(kind.columns))))
    others = [column for column in kind.columns if column not in columns]
    head = [rng.choice(kind.labels), *(rng.choice(column.names) for column in columns)]
    rows = [[label, *(_value(column, rng) for column in columns)] for label in labels]
    caption = rng.choice(kind.captions)
    asked = []
    for _ in range(_QUESTIONS_A_TABLE):
        row = rng.choice(rows)
        label, place, draw = row[0], rng.randrange(len(columns)), rng.random()
        column, value = columns[place], row[place + 1]
        if draw < _NONE_SHARE / 2:
            label, value = rng.choice([name for name in names if name not in labels]), ""
        elif draw < _NONE_SHARE and others:
            column, value = rng.choice(others), ""
        words = _worded(column, label, rng)
        asked.append(Question(words, label, value, row_text(head, row) if label == row[0] else ""))
    return Made(caption, head, rows, asked)


def _said(label: str, rng: random.Random) -> str:
    if label in OFFICE.said and rng.random() < _OTHER_WORDS_SHARE:
        return rng.choice(OFFICE.said[label])
    return label.lower() if rng.random() < 0.3 else label


def _worded(column: Column, label: str, rng: random.Random) -> str:
    shown = _said(label, rng)
    if rng.random() < 0.15:
        name = rng.choice(column.names).lower()
        wording = rng.choice(
            (f"{name} of {{x}}", f"{{x}} {name}", f"{{x}}: {name}", f"what is the {name} for {{x}}")
        )
    else:
        wording = rng.choice(column.wordings)
    return as_typed(wording.format(x=shown), rng)


def _by_year(rng: random.Random) -> Made:
    """A table of numbers by year, month, or group, below one head row or two that are joined."""
    metric = rng.choice(LISTS["metrics"])
    names = LISTS[rng.choice(("states", "countries", "towns", "offences", "groups"))]
    labels = rng.sample(names, min(len(names) - 1, rng.randint(4, 18)))
    first = rng.randint(1996, 2022)
    years = [str(first + n) for n in range(rng.randint(2, 6))]
    style = rng.randrange(4)
    if style == 0:
        years = [f"{year}-{int(year) % 100 + 1:02}" for year in years]
    groups = rng.choice(_GROUPS)
    columns = [(year, group) for year in years for group in groups][:8]
    head = [
        rng.choice(("State", "Area", "Name", "Place", "Group", "")),
        *(f"{a} {b}".strip() for a, b in columns),
    ]
    form = rng.choice(("{:,}", "{}", "{:,}"))
    rows = [[label, *(_figure(group, form, rng) for _, group in columns)] for label in labels]
    caption = rng.choice(
        (
            f"Table {rng.randint(1, 30)}. {metric} by year",
            f"{metric}, {years[0]} to {years[-1]}",
            f"{metric} (in thousands)",
        )
    )
    asked = []
    for _ in range(_QUESTIONS_A_TABLE):
        row, place = rng.choice(rows), rng.randrange(len(columns))
        year, group = columns[place]
        label, is_none = row[0], rng.random() < _NONE_SHARE
        if is_none:
            if rng.random() < 0.5:
                label = rng.choice([name for name in names if name not in labels])
            else:
                year = str(first + rng.choice((-4, -3, 9, 10, 12)))
        words = _of_year(metric, label, year, group, rng)
        value = "" if is_none else row[place + 1]
        asked.append(Question(words, label, value, row_text(head, row) if label == row[0] else ""))
    return Made(caption, head, rows, asked)


def _figure(group: str, form: str, rng: random.Random) -> str:
    if group == "Percent":
        return f"{rng.uniform(0, 100):.1f}"
    return form.format(int(10 ** rng.uniform(1.5, 5.5)))


def _of_year(metric: str, label: str, year: str, group: str, rng: random.Random) -> str:
    if len(year) == 4:
        year = rng.choice((year, year, f"the year {year}", f"'{year[2:]}"))
    else:
        year = rng.choice((year, f"{year[:4]}/{year[-2:]}", f"the school year {year}"))
    which = rng.choice(_SAID[group]) if group else ""
    label = _said(label, rng)
    thing = metric.lower()
    forms = (
        f"how many {thing} in {label} in {year}" + (f", {which}" if which else ""),
        f"{label} {thing} {year} {which}".strip(),
        f"{thing} {label} {year}" + (f" ({which})" if which else ""),
        f"number of {thing} for {label} in {year} {which}".strip(),
        f"what was it for {label} in {year}, {which or thing}",
        f"{year}, {label}: {which or thing}",
    )
    return as_typed(rng.choice(forms), rng)


def make_document(number: int, rng: random.Random) -> tuple[Document, list[Question]]:
    """A file of some tables as the index has it, and what is asked of it."""
    made = [make_table(rng) for _ in range(rng.choice((1, 1, 2, 3, 4)))]
    asked = [one for table in made for one in table.asked]
    subject, kind, year = (
        rng.choice(LISTS["departments"]),
        rng.choice(_PAPERS),
        rng.randint(2008, 2027),
    )
    out = BlockList()
    is_sheet = len(made) == 1 and rng.random() < 0.6
    if not is_sheet:
        out.heading(1, f"{subject}: {kind} {year}")
        asked = [_of_document(one, subject, kind, year, rng) for one in asked]
    for table in made:
        draw = rng.random()
        if not is_sheet and draw < 0.7:
            out.heading(2, table.caption)
        if not is_sheet and rng.random() < 0.5:
            out.paragraph(rng.choice(_LEADS))
        out.table(table.head, [(0, row) for row in table.rows], "" if draw < 0.7 else table.caption)
    name = f"{subject.lower()}-{kind}-{number}.csv"
    document = lay_out(Parsed(out.blocks), name)
    return msgspec.structs.replace(document, passages=tuple(cut(document))), asked


def _of_document(one: Question, subject: str, kind: str, year: int, rng: random.Random) -> Question:
    """A question that names the document, as people do whose folder has many."""
    if rng.random() > 0.2:
        return one
    name = rng.choice((f"{subject} {kind}", f"{kind} {year}", f"{subject} {kind} {year}")).lower()
    form = rng.choice(
        (
            f"{name}: {one.question}",
            f"{one.question.rstrip('?')} in the {name}",
            f"{one.question.rstrip('?')} ({name})",
        )
    )
    return one._replace(question=form)


def put(
    one: Question, document: Document, elsewhere: Sequence[str], rng: random.Random
) -> list[Asked]:
    """Puts a question to passages: the row's, some of the same document, and others.

    Args:
        elsewhere: Passages of other documents; those with the row's name may answer it, too.
    """
    question = DocumentQuestion(
        "", document.name, one.question, (one.answer,) if one.answer else (), "table"
    )
    right, near = list[Asked](), list[tuple[int, Asked]]()
    at = document.text.find(one.row) if one.row else -1
    for its in document.passages:
        read = read_text(document.title, its.heading, document.text[its.start : its.end])
        if its.start <= at < its.end:
            cell = place_in(one.row, one.answer, "") if one.answer else None
            start = read.start + at - its.start + cell[0] if cell else -1
            right.append(
                Asked(
                    question,
                    read.text,
                    read.text[start : start + len(one.answer)] if cell else "",
                    start,
                )
            )
        elif one.label.lower() not in read.text.lower():
            near.append((abs(its.start - at), Asked(question, read.text)))
    others = [Asked(question, text) for text in elsewhere if one.label.lower() not in text.lower()]
    nearest = [asked for _, asked in sorted(near, key=lambda its: its[0])[:4]]
    found = right + rng.sample(nearest, min(2, len(nearest)))
    return (found + rng.sample(others, min(_PASSAGES, len(others))))[:_PASSAGES]


def main() -> None:
    flags = generator_flags(__doc__).parse_args()
    rng = random.Random(flags.seed)
    made = [make_document(number, rng) for number in range(flags.count // _QUESTIONS_A_DOCUMENT)]
    pool = [
        read_text(its.title, passage.heading, its.text[passage.start : passage.end]).text
        for its, _ in made
        for passage in its.passages
    ]
    groups = [
        put(one, document, rng.sample(pool, 40), rng) for document, asked in made for one in asked
    ]
    write_groups(groups, flags, rng)


if __name__ == "__main__":
    main()
