"""What a training run sees: paragraphs, unanswerable questions, mixtures, rows, batches."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from qa_service.squad import SquadQuestion
from qa_service.training.features import FeatureMaker, collate, plan_batches
from qa_service.training.mixture import MixtureConfig, Source, draw_mixture
from qa_service.training.paragraphs import UnanswerableMaker, among_neighbours

ROOT = Path(__file__).parents[2]
SENTENCES = ("Ada wrote notes.", "Bo sang.", "Cy dug wells.", "Di flew.", "Ed slept.")
QUESTIONS = [
    SquadQuestion(str(n), "who?", s, (s.split()[0],), (0,)) for n, s in enumerate(SENTENCES)
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "sang", "did", "it", "rain", *"abcdefgh.,"]


@pytest.fixture
def tokenizer():
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def write_squad(path, questions):
    paragraphs = [
        {
            "context": q.context,
            "qas": [
                {
                    "id": q.id,
                    "question": q.question,
                    "answers": [{"text": q.answers[0], "answer_start": q.answer_starts[0]}],
                }
            ],
        }
        for q in questions
    ]
    with gzip.open(path, "wt") as file:
        json.dump({"data": [{"paragraphs": paragraphs}]}, file)
    return path


def test_neighbours_move_answers_and_keep_the_order_of_the_file():
    for seed in range(20):
        for question in among_neighbours(QUESTIONS, 2, random.Random(seed)):
            (answer,), (start,) = question.answers, question.answer_starts
            assert question.context[start : start + len(answer)] == answer
            assert question.context in " ".join(SENTENCES)
            assert question.context.count(".") <= 5


def test_no_neighbours_leave_the_sentence():
    assert among_neighbours(QUESTIONS, 0, random.Random(0)) == QUESTIONS


def test_unanswerable_prefers_the_text_that_shares_rare_words():
    texts = [f"Plain text number {n}." for n in range(200)]
    texts += ["The Loire floods in June.", "The Loire has many castles."]
    question = SquadQuestion("1", "When does the Loire flood?", texts[-2], ("June",), (20,))
    maker = UnanswerableMaker(texts)
    made = [maker.make(question, random.Random(seed)) for seed in range(40)]
    assert all(m.answers == () == m.answer_starts and m.context != texts[-2] for m in made)
    assert sum(m.context == texts[-1] for m in made) >= 20


def test_no_unanswerable_where_every_text_holds_the_answer():
    maker = UnanswerableMaker(["It was June.", "In June!"])
    question = SquadQuestion("1", "When?", "It was June.", ("June",), (7,))
    assert maker.make(question, random.Random(0)) is None


def test_unanswerable_questions_are_the_same_in_every_process():
    program = """
import random
from qa_service.squad import SquadQuestion
from qa_service.training.paragraphs import UnanswerableMaker
texts = [f"a{n} a{n + 1} a{n + 2}" for n in range(40)]
asked = [SquadQuestion(str(n), text, text, ("no",), (0,)) for n, text in enumerate(texts)]
rng = random.Random(0)
print([UnanswerableMaker(texts).make(question, rng).context for question in asked])
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("text", "count"), [("a.json", None), ("a.json=12", 12), ("b/c.json.gz=1", 1)]
)
def test_source_flag(text, count):
    source = Source.parse(text)
    assert str(source.path) == text.partition("=")[0]
    assert source.count == count


@pytest.mark.parametrize("text", ["a.json=0", "a.json=-3", "a.json=many"])
def test_source_flag_refuses_other_counts(text):
    with pytest.raises(ValueError, match="positive"):
        Source.parse(text)


def test_mixture_draws_each_question_before_any_twice(tmp_path):
    path = write_squad(tmp_path / "q.json.gz", QUESTIONS)
    drawn = draw_mixture([Source(path, 7)], MixtureConfig())
    assert len(drawn) == 7
    assert {q.id for q in drawn} == {q.id for q in QUESTIONS}
    assert len(draw_mixture([Source(path)], MixtureConfig())) == len(QUESTIONS)


def test_mixture_is_the_same_for_the_same_seed(tmp_path):
    source = Source(write_squad(tmp_path / "q.json.gz", QUESTIONS), 40, are_sentences=True)
    config = MixtureConfig(unanswerable_share=0.5, seed=3)
    drawn = draw_mixture([source], config)
    assert drawn == draw_mixture([source], config)
    assert 0 < sum(not question.answers for question in drawn) < 40


def make_row(tokenizer, question, max_tokens=32, seed=0):
    return FeatureMaker(tokenizer, max_tokens).make(question, random.Random(seed))


def test_row_points_at_the_answer_without_the_full_stop(tokenizer):
    context = "a b c. Did it rain"
    row = make_row(tokenizer, SquadQuestion("1", "who sang", context, ("b c.",), (2,)))
    words = [WORDS[i] for i in row.input_ids]
    assert " ".join(words) == "[CLS] who sang [SEP] a b c . did it rain [SEP]"
    assert words[row.start : row.end + 1] == ["b", "c"]
    assert row.token_type_ids.tolist() == [0] * 4 + [1] * 8


def test_unanswerable_row_points_at_the_first_token(tokenizer):
    row = make_row(tokenizer, SquadQuestion("1", "who", "a b c", (), ()))
    assert (row.start, row.end) == (0, 0)


@pytest.mark.parametrize("answer", ["a", "d e", "h"])
def test_cut_row_holds_the_whole_answer(tokenizer, answer):
    context = "a b c d e f g h"
    question = SquadQuestion("1", "who", context, (answer,), (context.index(answer),))
    for seed in range(20):
        row = make_row(tokenizer, question, max_tokens=8, seed=seed)
        assert len(row) <= 8
        assert " ".join(WORDS[i] for i in row.input_ids[row.start : row.end + 1]) == answer


def test_no_row_for_an_answer_that_does_not_fit(tokenizer):
    assert (
        make_row(tokenizer, SquadQuestion("1", "who", "a b c d e f", ("a b c d e",), (0,)), 8)
        is None
    )


def test_batches_hold_every_row_once_and_near_lengths_together():
    lengths = [random.Random(n).randint(5, 200) for n in range(100)]
    batches = plan_batches(lengths, 8, random.Random(0))
    assert sorted(i for batch in batches for i in batch) == list(range(100))
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert padded < 1.2 * sum(lengths)


def test_collate_pads_at_the_end(tokenizer):
    questions = [
        SquadQuestion("1", "who", "a b c", ("c",), (4,)),
        SquadQuestion("2", "who", "a", (), ()),
    ]
    batch = collate([make_row(tokenizer, question) for question in questions], 0)
    assert batch.attention_mask.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert batch.input_ids[1, 5:].tolist() == [0, 0]
    assert batch.start_positions.tolist() == [5, 0]
