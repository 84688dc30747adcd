"""Makes pages of offices in prose, lists, forms and commands, and what people ask of them.

    python -m training.office_pages --count 20000 --output pages_passages.json.gz

writes questions with their passages, for `finetune_model --train_passages`. A page tells some facts
of each of some things (`wordings/pages.json`), and not others: the telephone of one town, the price
of another product. So what is near and wrong competes, and what is not there is asked for, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qa_service.retrieval.documents import Block, BlockList, Document, Kind, Parsed, row_text
from qa_service.retrieval.layout import lay_out
from qa_service.retrieval.passages import cut
from qa_service.retrieval.search_messages import read_text
from training.documents import Asked, DocumentQuestion, generator_flags, write_groups
from training.office_values import LISTS, drawn_value
from training.table_questions import as_typed

_NONE_SHARE = 0.3
_QUESTIONS_A_THING = 3
_QUESTIONS_A_PAGE = 10
_PASSAGES = 4
_FILLERS = (
    "Please read this page before you write to us.",
    "What is said here was checked at the last review.",
    "Some of it may change without notice.",
    "More is in the handbook on the shelf by the entrance.",
    "We thank everyone who sent corrections.",
    "This page replaces the one of last spring.",
    "For all else the general rules hold.",
    "Bring a pen and some patience.",
)


class Fact(msgspec.Struct, frozen=True):
    """A kind of fact: `{s}` is the thing, `{x}` its name, `{v}` the value.

    Attributes:
        names: What a form calls it.
        value: `kind` names what draws it, as in tables.
        wordings: How people ask for it.
    """

    names: list[str]
    value: dict[str, Any]
    sentences: list[str]
    wordings: list[str]


class Things(msgspec.Struct, frozen=True):
    """A kind of thing that pages are about.

    Attributes:
        rows: The list of their names.
        title: What a heading of one may be.
        subjects: How sentences and questions name one.
    """

    rows: str
    title: list[str]
    subjects: list[str]
    facts: list[Fact]


class Task(msgspec.Struct, frozen=True):
    tool: str
    asked: list[str]
    said: list[str]
    commands: list[str]


class Pages(msgspec.Struct, frozen=True):
    """`wordings/pages.json`."""

    lists: dict[str, list[str]]
    tasks: list[Task]
    kinds: list[Things]


_PAGES = msgspec.json.decode(
    (Path(__file__).parent / "wordings" / "pages.json").read_bytes(), type=Pages
)
_LISTS = LISTS | _PAGES.lists


class Question(NamedTuple):
    """A question and the answer, within words that stand once in the document.

    Attributes:
        words: "" if nothing answers.
    """

    question: str
    answer: str = ""
    words: str = ""


def _value(fact: Fact, rng: random.Random) -> str:
    if its := fact.value.get("list"):
        return str(rng.choice(_LISTS[its]))
    return drawn_value(fact.value, rng)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _about(
    things: Things, name: str, out: BlockList, style: str, rng: random.Random
) -> Iterator[Question]:
    """Writes some facts of a thing in a style; asks for some of them and for others."""
    told = rng.sample(things.facts, rng.randint(2, len(things.facts) - 1))
    subject = rng.choice(things.subjects).format(x=name)
    written = [(fact, *_told(fact, name, subject, style, rng)) for fact in told]
    if style == "prose":
        sentences = [words for _, words, _ in written]
        for _ in range(rng.randint(0, 2)):
            sentences.insert(rng.randint(0, len(sentences)), rng.choice(_FILLERS))
        middle = rng.randint(1, len(sentences))
        out.paragraph(" ".join(sentences[:middle]))
        out.paragraph(" ".join(sentences[middle:]))
    elif style == "list":
        out.begin_list()
        for _, words, _ in written:
            out.begin_item("-")
            out.paragraph(words)
            out.end_item()
        out.end_list()
    else:
        out.blocks += [
            Block(Kind.ROW, words, is_first=not n) for n, (_, words, _) in enumerate(written)
        ]
    for _ in range(_QUESTIONS_A_THING):
        if rng.random() < _NONE_SHARE / 2:
            missing = rng.choice([fact for fact in things.facts if fact not in told])
            yield Question(_worded(missing, name, subject, rng))
        else:
            fact, words, value = rng.choice(written)
            yield Question(_worded(fact, name, subject, rng), value, words)


def _told(fact: Fact, name: str, subject: str, style: str, rng: random.Random) -> tuple[str, str]:
    """A fact as a sentence or as a line of a form, and its value."""
    value = _value(fact, rng)
    label = rng.choice(fact.names)
    if style == "form":
        return row_text([label], [value]), value
    if style == "list" and rng.random() < 0.5:
        return f"{label}: {value}", value
    said = subject if rng.random() < 0.8 else name
    sentence = _capital(rng.choice(fact.sentences).format(s=said, x=name, v=value))
    return sentence, value if value in sentence else _capital(value)


def _worded(fact: Fact, name: str, subject: str, rng: random.Random) -> str:
    if rng.random() < 0.1:
        wording = f"{rng.choice(fact.names).lower()} {rng.choice(('of', 'for', '-'))} {{s}}"
    else:
        wording = rng.choice(fact.wordings)
    return as_typed(wording.format(s=subject, x=name), rng)


def _of_things(out: BlockList, rng: random.Random) -> list[Question]:
    """Some things of a kind, one below the other, and questions about others of that kind."""
    things = rng.choice(_PAGES.kinds)
    names = rng.sample(_LISTS[things.rows], rng.randint(2, 5))
    present, absent = names[:-1], names[-1]
    style = rng.choice(("prose", "prose", "list", "form"))
    title = rng.choice(things.title)
    asked = list[Question]()
    for name in present:
        out.heading(2, _capital(title.format(x=name)))
        asked += _about(things, name, out, style, rng)
    fact, subject = rng.choice(things.facts), rng.choice(things.subjects).format(x=absent)
    return [*asked, Question(_worded(fact, absent, subject, rng))]


def _of_terms(out: BlockList, rng: random.Random) -> list[Question]:
    """Terms with what they mean: whole definitions are asked for, and terms by what they mean."""
    terms = rng.sample(_LISTS["terms"], rng.randint(4, 9))
    meanings = rng.sample(_LISTS["definitions"], len(terms))
    form = rng.choice(("{t}: {d}", "{t} means {d}.", "{t} - {d}", "{t} is {d}."))
    out.heading(2, rng.choice(("Terms", "Glossary", "Words that we use", "Definitions")))
    told = []
    for term, meaning in zip(terms[:-1], meanings, strict=False):
        words = _capital(form.format(t=term, d=meaning))
        out.paragraph(words)
        told.append((term, meaning, words))
    wordings = (
        "what is {t}", "what does {t} mean", "definition of {t}", "meaning of {t}", "{t} means",
    )  # fmt: skip
    asked = [
        Question(as_typed(rng.choice(wordings).format(t=term), rng), meaning, words)
        for term, meaning, words in rng.sample(told, 3)
    ]
    term, meaning, words = rng.choice(told)
    called = rng.choice(("what do we call {d}", "word for {d}", "{d}: what is the term"))
    asked.append(Question(as_typed(called.format(d=meaning), rng), _capital(term), words))
    return [*asked, Question(as_typed(rng.choice(wordings).format(t=terms[-1]), rng))]


def _of_commands(out: BlockList, rng: random.Random) -> list[Question]:
    """Commands, in code or in a sentence, of which one is asked for whole."""
    tasks = rng.sample(_PAGES.tasks, rng.randint(3, 6))
    asked = list[Question]()
    for task in tasks[:-1]:
        command, said = rng.choice(task.commands), rng.choice(task.said)
        if rng.random() < 0.6:
            out.paragraph(
                rng.choice(("To {t}:", "This is how you {t}:", "{T}:")).format(
                    t=said, T=_capital(said)
                )
            )
            out.code(command)
            words = command
        else:
            words = f"To {said}, run {command} in a terminal."
            out.paragraph(words)
        asked.append(Question(_how(task, rng), command, words))
    return [*rng.sample(asked, 2), Question(_how(tasks[-1], rng))]


def _how(task: Task, rng: random.Random) -> str:
    form = rng.choice(("how do I {a}", "command to {a}", "what do I type to {a}", "{a}"))
    return as_typed(form.format(a=rng.choice(task.asked)), rng)


def _of_steps(out: BlockList, rng: random.Random) -> list[Question]:
    """A list of what is needed for something: each item is a fact of a rule."""
    things = next(its for its in _PAGES.kinds if its.rows == "rules")
    name = rng.choice(_LISTS["rules"])
    out.heading(2, f"How to ask for {name}")
    return list(_about(things, name, out, rng.choice(("list", "prose")), rng))


_PARTS = (_of_things, _of_things, _of_things, _of_terms, _of_commands, _of_steps)


def make_page(number: int, rng: random.Random) -> tuple[Document, list[Question]]:
    out = BlockList()
    department, year = rng.choice(LISTS["departments"]), rng.randint(2008, 2027)
    paper = rng.choice(("handbook", "guide", "notes", "leaflet", "newsletter", "web page"))
    out.heading(1, f"{department}: {paper} {year}")
    asked = list[Question]()
    for part in rng.sample(_PARTS, rng.choice((1, 1, 2))):
        if rng.random() < 0.4:
            out.paragraph(rng.choice(_FILLERS))
        asked += part(out, rng)
    document = lay_out(Parsed(out.blocks), f"{department.lower()}-{paper}-{number}.md")
    return msgspec.structs.replace(document, passages=tuple(cut(document))), asked


def put(
    one: Question, document: Document, elsewhere: Sequence[str], rng: random.Random
) -> list[Asked]:
    """Puts a question to the passage with its answer, others of its page, and others.

    Of a page, all that has not the answer's words is wrong, the same thing's other facts, too.
    """
    answers = (one.answer,) if one.answer else ()
    question = DocumentQuestion("", document.name, one.question, answers, "prose")
    at = document.text.find(one.words) if one.words else -1
    if one.words and (at < 0 or document.text.count(one.words) > 1):
        return []
    place = at + one.words.index(one.answer) if one.words else -1
    right, near = list[Asked](), list[Asked]()
    for its in document.passages:
        read = read_text(document.title, its.heading, document.text[its.start : its.end])
        if its.start <= place and place + len(one.answer) <= its.end:
            start = read.start + place - its.start
            right.append(Asked(question, read.text, one.answer, start))
        else:
            near.append(Asked(question, read.text))
    if one.words and not right:
        return []
    others = [Asked(question, text) for text in rng.sample(elsewhere, _PASSAGES)]
    found = right + rng.sample(near, min(_PASSAGES - 1, len(near)))
    return (found + others)[:_PASSAGES]


def main() -> None:
    flags = generator_flags(__doc__).parse_args()
    rng = random.Random(flags.seed)
    made = [make_page(number, rng) for number in range(flags.count // _QUESTIONS_A_PAGE)]
    pools = [
        [read_text(its.title, p.heading, its.text[p.start : p.end]).text for p in its.passages]
        for its, _ in made
    ]
    groups = []
    for document, asked in made:
        # What another page says of the same thing would be an answer.
        for one in asked:
            name = set(one.question.lower().split())
            elsewhere = [
                text
                for pool in rng.sample(pools, min(12, len(pools)))
                for text in pool
                if len(name.intersection(text.lower().split())) < 2
            ]
            if len(elsewhere) >= _PASSAGES and (group := put(one, document, elsewhere, rng)):
                groups.append(group)
    write_groups(groups, flags, rng)


if __name__ == "__main__":
    main()
