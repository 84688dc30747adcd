"""What a training run sees: paragraphs, unanswerable questions, mixtures, rows, batches."""

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from harness.server import ROOT
from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.measures import UnanswerableMaker
from tests.support import present
from tests.unit.squad_files import write_squad
from training.features import FeatureMaker, Features, Target, collate, plan_batches
from training.mixture import Source, draw_mixture
from training.soft_labels import (
    Example,
    SoftLabel,
    SoftLabels,
    among_neighbours,
    label_questions,
    untokenized,
)

pytestmark = pytest.mark.slow

SENTENCES = ("Ada wrote notes.", "Bo sang.", "Cy dug wells.", "Di flew.", "Ed slept.")
QUESTIONS = [
    SquadQuestion(str(n), "who?", s, (s.split()[0],), (0,)) for n, s in enumerate(SENTENCES)
]
EXAMPLES = [Example(question) for question in QUESTIONS]
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


def test_neighbours_move_answers_and_keep_the_order_of_the_file():
    for seed in range(20):
        for example in among_neighbours(EXAMPLES, 2, random.Random(seed)):
            question = example.question
            (answer,), (start,) = question.answers, question.answer_starts
            assert question.context[start : start + len(answer)] == answer
            assert question.context in " ".join(SENTENCES)
            assert question.context.count(".") <= 5
            assert example.label_start == start


def test_no_neighbours_leave_the_sentence():
    assert among_neighbours(EXAMPLES, 0, random.Random(0)) == EXAMPLES


def test_unanswerable_prefers_the_text_that_shares_rare_words():
    texts = [f"Plain text number {n}." for n in range(200)]
    texts += ["The Loire floods in June.", "The Loire has many castles."]
    question = SquadQuestion("1", "When does the Loire flood?", texts[-2], ("June",), (20,))
    maker = UnanswerableMaker(texts)
    made = [present(maker.make(question, random.Random(seed))) for seed in range(40)]
    assert all(m.answers == () == m.answer_starts and m.context != texts[-2] for m in made)
    assert sum(m.context == texts[-1] for m in made) >= 20


def test_no_unanswerable_where_every_text_holds_the_answer():
    maker = UnanswerableMaker(["It was June.", "In June!"])
    question = SquadQuestion("1", "When?", "It was June.", ("June",), (7,))
    assert maker.make(question, random.Random(0)) is None


def test_unanswerable_questions_are_the_same_in_every_process():
    program = """
import random
from qa_service.data.squad import SquadQuestion
from qa_service.evaluation.measures import UnanswerableMaker
texts = [f"a{n} a{n + 1} a{n + 2}" for n in range(40)]
asked = [SquadQuestion(str(n), text, text, ("no",), (0,)) for n, text in enumerate(texts)]
rng = random.Random(0)
print([UnanswerableMaker(texts).make(question, rng).context for question in asked])
"""
    command = [sys.executable, "-c", program]
    first, second = (
        subprocess.check_output(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    )
    assert first == second


@pytest.mark.parametrize(
    ("text", "count"), [("a.json", None), ("a.json=12", 12), ("b/c.json.gz=1", 1)]
)
def test_a_source_flag_has_a_path_and_a_count(text, count):
    source = Source.parse(text)
    assert str(source.path) == text.partition("=")[0]
    assert source.count == count


@pytest.mark.parametrize("text", ["a.json=0", "a.json=-3", "a.json=many"])
def test_a_source_flag_with_another_count_is_refused(text):
    with pytest.raises(ValueError, match="positive"):
        Source.parse(text)


def test_mixture_draws_each_question_before_any_twice(tmp_path):
    path = write_squad(tmp_path / "q.json.gz", QUESTIONS)
    drawn = draw_mixture([Source(path, 7)], SoftLabels())
    assert len(drawn) == 7
    assert {e.question.id for e in drawn} == {q.id for q in QUESTIONS}
    assert len(draw_mixture([Source(path)], SoftLabels())) == len(QUESTIONS)


def test_mixture_is_the_same_for_the_same_seed(tmp_path):
    source = Source(write_squad(tmp_path / "q.json.gz", QUESTIONS), 40, are_sentences=True)
    drawn, again = (draw_mixture([source], SoftLabels(), 0.5, seed=3) for _ in range(2))
    assert drawn == again
    assert 0 < sum(not example.question.answers for example in drawn) < 40


def make_row(tokenizer, question, max_tokens=32, seed=0, label=None):
    return FeatureMaker(tokenizer, max_tokens).make(Example(question, label), random.Random(seed))


def words_of(ids):
    return " ".join(WORDS[i] for i in ids)


def targeted(row):
    return words_of(row.input_ids[row.target.first : row.target.stop])


def test_row_points_at_the_answer_without_the_full_stop(tokenizer):
    context = "a b c. Did it rain"
    row = make_row(tokenizer, SquadQuestion("1", "who sang", context, ("b c.",), (2,)))
    assert words_of(row.input_ids) == "[CLS] who sang [SEP] a b c . did it rain [SEP]"
    assert targeted(row) == "b c"
    assert (row.target.start.tolist(), row.target.end.tolist()) == ([1, 0], [0, 1])


def test_unanswerable_row_points_at_the_first_token(tokenizer):
    row = make_row(tokenizer, SquadQuestion("1", "who", "a b c", (), ()))
    assert (row.target.first, row.target.stop) == (0, 1)


@pytest.mark.parametrize("answer", ["a", "d e", "h"])
def test_cut_row_holds_the_whole_answer(tokenizer, answer):
    context = "a b c d e f g h"
    question = SquadQuestion("1", "who", context, (answer,), (context.index(answer),))
    for seed in range(20):
        row = make_row(tokenizer, question, max_tokens=8, seed=seed)
        assert len(row) <= 8
        assert targeted(row) == answer


def test_no_row_for_an_answer_that_does_not_fit(tokenizer):
    question = SquadQuestion("1", "who", "a b c d e f", ("a b c d e",), (0,))
    assert make_row(tokenizer, question, 8) is None


def test_batches_hold_every_row_once_and_near_lengths_together():
    lengths = [random.Random(n).randint(5, 200) for n in range(100)]
    rows = [Features(np.zeros(length, np.int64), Target.of_span(0, 0)) for length in lengths]
    batches = plan_batches(rows, 8, random.Random(0))
    assert sorted(i for batch in batches for i in batch) == list(range(100))
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert padded < 1.2 * sum(lengths)


def test_a_batch_holds_all_rows_of_a_group():
    groups = [0, 1, 1, 1, 0, 2, 2, 3, 3, 3, 0]
    rows = [Features(np.zeros(9, np.int64), Target.of_span(0, 0), group) for group in groups]
    batches = plan_batches(rows, 3, random.Random(0))
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    assert all(sum(group in {groups[i] for i in b} for b in batches) == 1 for group in (1, 2, 3))


def test_a_question_is_drawn_with_all_its_passages(tmp_path):
    questions = [
        SquadQuestion(f"{n}/{place}", f"who sang {n}", f"a b {place}", (), ())
        for n in range(6)
        for place in range(3)
    ]
    source = Source(write_squad(tmp_path / "q.json.gz", questions), 4, are_passages=True)
    drawn = draw_mixture([source], SoftLabels(), unanswerable_share=1.0)
    asked = [example.question.question for example in drawn]
    assert len(set(asked)) == 4
    assert [len(list(of)) for _, of in groupby(asked)] == [3] * 4
    assert len({example.group for example in drawn}) == 4
    assert {example.question.context for example in drawn} == {"a b 0", "a b 1", "a b 2"}
    more = draw_mixture([Source(source.path, 8, are_passages=True)], SoftLabels())
    assert len({example.group for example in more}) == 8


def test_a_file_without_passages_is_refused(tmp_path):
    source = Source(write_squad(tmp_path / "q.json.gz", []), 4, are_passages=True)
    with pytest.raises(ValueError, match="no questions"):
        draw_mixture([source], SoftLabels())


def test_collate_pads_at_the_end(tokenizer):
    questions = [
        SquadQuestion("1", "who", "a b c", ("c",), (4,)),
        SquadQuestion("2", "who", "a", (), ()),
    ]
    batch = collate([make_row(tokenizer, question) for question in questions], 0)
    assert batch.attention_mask.tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert batch.input_ids[1, 5:].tolist() == [0, 0]
    assert batch.start.tolist() == batch.end.tolist() == [[0] * 5 + [1, 0], [1] + [0] * 6]


SENTENCE = SquadQuestion("1", "who sang", "a b c", (), ())
LABEL = SoftLabel(np.log([0.5, 0.3, 0.2]), np.log([0.1, 0.1, 0.8]))


def labels_of(*pairs):
    labels = SoftLabels()
    for question, label in pairs:
        labels.add(question, label)
    return labels


def test_labels_come_back_from_their_file(tmp_path):
    other = replace(SENTENCE, context="a b", answers=("b",), answer_starts=(2,))
    path = tmp_path / "labels.npz"
    labels_of((SENTENCE, LABEL), (other, SoftLabel(LABEL.end[:2], LABEL.start[:2]))).write(path)
    read = SoftLabels(path)
    assert len(read) == 2
    np.testing.assert_allclose(present(read.get(SENTENCE)).start, LABEL.start, atol=1e-3)
    np.testing.assert_allclose(present(read.get(other)).end, LABEL.start[:2], atol=1e-3)
    assert read.get(replace(SENTENCE, question="who")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["labels.npz"]


def test_label_moves_with_its_sentence(tokenizer):
    before, after = (Example(replace(SENTENCE, context=text)) for text in ("did it", "rain ."))
    for seed in range(20):
        moved = among_neighbours([before, Example(SENTENCE, LABEL), after], 1, random.Random(seed))
        row = present(FeatureMaker(tokenizer, 32).make(moved[1], random.Random(0)))
        assert targeted(row) == "a b c"
        np.testing.assert_allclose(row.target.start, [0.5, 0.3, 0.2], rtol=1e-6)
        np.testing.assert_allclose(row.target.end, [0.1, 0.1, 0.8], rtol=1e-6)


def test_a_rows_target_is_the_mean_of_answer_and_label(tokenizer):
    question = replace(SENTENCE, answers=("b",), answer_starts=(2,))
    row = make_row(tokenizer, question, label=LABEL)
    np.testing.assert_allclose(row.target.start, [0.25, 0.65, 0.1], rtol=1e-6)
    np.testing.assert_allclose(row.target.end, [0.05, 0.55, 0.4], rtol=1e-6)


@pytest.mark.parametrize(("answer", "is_right"), [("a", True), ("b", False)])
def test_labels_that_hardly_ever_begin_in_the_answer_are_refused(tokenizer, answer, is_right):
    maker = FeatureMaker(tokenizer, 32)
    begin = SENTENCE.context.index(answer)
    question = replace(SENTENCE, answers=(answer,), answer_starts=(begin,))
    for _ in range(64):
        maker.make(Example(question, LABEL), random.Random(0))
    with nullcontext() if is_right else pytest.raises(ValueError, match="64 labels 0 begin"):
        maker.check_labels()


def test_label_of_a_text_with_other_tokens_is_refused(tokenizer):
    longer = SoftLabel(np.zeros(4, np.float32), np.zeros(4, np.float32))
    assert make_row(tokenizer, SENTENCE, label=longer) is None


def test_sentences_without_answers_are_drawn_if_they_are_labelled(tmp_path):
    unanswered = [SquadQuestion("1", "who?", text, (), ()) for text in ("Ada ``", "Bo .")]
    source = Source(write_squad(tmp_path / "sentences.json", unanswered), are_sentences=True)
    with pytest.raises(ValueError, match="no questions"):
        draw_mixture([source], SoftLabels())
    labels = labels_of((untokenized(unanswered[0]), LABEL))
    (drawn,) = draw_mixture([source], labels)
    assert drawn.label is LABEL
    assert drawn.question.context == 'Ada "'


def test_an_interrupted_labelling_run_is_continued(tokenizer, tmp_path):
    runs = []

    def logits(ids, mask, _types):
        runs.append(len(ids))
        return ids.astype(np.float32), -ids.astype(np.float32)

    questions = [replace(SENTENCE, context=" ".join("abcdefgh"[: n + 1])) for n in range(8)]
    path = tmp_path / "labels.npz"
    assert label_questions(logits, tokenizer, 0, questions[:5], path) == 5
    assert label_questions(logits, tokenizer, 0, questions, path) == 8
    assert sum(runs) == 8
    label = present(SoftLabels(path).get(questions[2]))
    above_null = np.arange(3) + WORDS.index("a") - WORDS.index("[CLS]")
    assert label.above_null
    assert label.start.tolist() == above_null.tolist()
    assert label.end.tolist() == (-above_null).tolist()


def test_labels_of_older_versions_are_not_compared_with_null(tokenizer, tmp_path):
    path = tmp_path / "labels.npz"
    labels_of((SENTENCE, LABEL)).write(path)
    with np.load(path) as file:
        np.savez(path, **{name: file[name] for name in file.files if name != "above_null"})
    label = present(SoftLabels(path).get(SENTENCE))
    assert not label.above_null
    row = present(
        FeatureMaker(tokenizer, 32).make(Example(SENTENCE, label, group=1), random.Random(0))
    )
    assert row.passage is None


def test_a_text_alone_that_has_no_answer_is_learned_without_its_label(tokenizer):
    row = make_row(tokenizer, replace(SENTENCE, is_impossible=True), label=LABEL)
    assert (row.target.first, row.target.start.tolist()) == (0, [1])


def test_passages_of_a_question_share_the_teachers_choice_among_them(tokenizer):
    """Of one softmax over null and all tokens 70 % is the teacher's, 30 % the accepted answer's."""
    answered = replace(SENTENCE, answers=("b",), answer_starts=(2,))
    other = replace(SENTENCE, context="d e")
    labels = SoftLabel(*np.log([[3, 2, 1]] * 2)), SoftLabel(*np.log([[2, 1]] * 2))
    maker = FeatureMaker(tokenizer, 32)
    examples = [Example(q, its, group=1) for q, its in zip((answered, other), labels, strict=True)]
    rows = [present(maker.make(example, random.Random(0))) for example in examples]
    batch = collate(rows, 0)
    first = int(rows[0].input_ids.tolist().index(WORDS.index("a")))
    np.testing.assert_allclose(batch.start[0, [0, first, first + 1]], [0.1, 0.3, 0.5], rtol=1e-6)
    np.testing.assert_allclose(batch.start[1, [0, first]], [0.3 + 0.7 / 4, 0.35], rtol=1e-6)
    for in_group in (batch.start_in_group, batch.end_in_group):
        np.testing.assert_allclose(in_group[0, first : first + 3], [0.21, 0.44, 0.07], rtol=1e-6)
        np.testing.assert_allclose(in_group[1, first : first + 2], [0.14, 0.07], rtol=1e-6)
        np.testing.assert_allclose(in_group[:, 1:].sum() + 0.07, 1, rtol=1e-6)


def test_question_whose_text_is_too_long_is_not_labelled(tokenizer, tmp_path):
    questions = [replace(SENTENCE, context="a " * 500), SENTENCE]

    def logits(ids, *_):
        return ids.astype(np.float32), ids.astype(np.float32)

    assert label_questions(logits, tokenizer, 0, questions, tmp_path / "labels.npz") == 1
