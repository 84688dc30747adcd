"""The whole reading with real tokenizers and a made-up model."""

from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qa_service.errors import InternalError, QuestionTooLongError
from qa_service.instance.arrays import NUM_BEST
from qa_service.instance.batch_cost import BatchRule, CostTable
from qa_service.instance.learned_costs import TABLE_EVERY, LearnedCosts
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.spans import find_answers
from qa_service.instance.reader.windows import WindowBuilder
from qa_service.wire.messages import Answer, Question
from tests.support import needs_torch
from tests.unit.instance.reader.texts import texts
from tests.unit.instance.tiny_reader import (
    KINDS,
    PAD_TOKEN_ID,
    MadeUpModel,
    tiny_reader,
    tiny_tokenizer,
)

READING = ReadingConfig(max_answer_tokens=6, window_tokens=24, window_overlap_tokens=8)


class Chooser:
    """An engine's `best_spans` over that model's logits; counts the rows it chose spans for."""

    def __init__(self, model, reading=READING):
        self._model, self._reading = model, reading
        self.num_rows = 0

    def __call__(self, ids, mask, types, text_mask):
        import torch

        from qa_service.instance.engines.pytorch import choose_spans

        self.num_rows += len(ids)
        logits = self._model(ids, mask, types)
        both, texts = torch.from_numpy(np.stack(logits)), torch.from_numpy(text_mask)
        return choose_spans(self._reading, both, texts).numpy(), logits


@pytest.fixture(scope="module")
def make_reader(tmp_path_factory):
    """Makes a reader with the kind's tokenizer, as a prepared model's folder holds it."""

    folder = cache(tmp_path_factory.mktemp)

    def make(kind="bert", logits=None, reading=READING, *more, **named):
        return tiny_reader(folder(kind), kind, logits, reading, *more, **named)

    return make


@pytest.mark.parametrize("kind", KINDS)
@given(question=texts, text=texts, top_k=st.integers(1, 4))
@example("why", "\u0301 lone mark", 4)
@example("why", "\r\n", 1)
@example("", "the\x00river", 1)
def test_answers_are_quoted_from_the_text(make_reader, kind, question, text, top_k):
    (answers,) = make_reader(kind).read([Question(question[:20], text, top_k)])
    if isinstance(answers, QuestionTooLongError):
        return
    assert 1 <= len(answers) <= top_k
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answers), type=list[Answer]) == answers
    ends = {0} | {cluster.end() for cluster in regex.finditer(r"\X", text)}
    for answer in answers:
        if answer.start is None:
            assert (answer.answer, answer.end) == ("", None)
            continue
        assert text[answer.start : answer.end] == answer.answer
        assert answer.answer.strip()
        assert {answer.start, answer.end} <= ends
        assert 0 <= answer.score <= 1
    spans = sorted((a.start, a.end) for a in answers if a.start is not None)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@settings(max_examples=30)
@given(pairs=st.lists(st.tuples(texts, texts), max_size=8), top_k=st.integers(1, 3))
@example([("", "?\u0301")], 2)
def test_batch_members_change_no_answer(make_reader, pairs, top_k):
    reader = make_reader("bert", limits=BatchRule(max_batch_size=3, max_batch_tokens=60))
    questions = [Question(question, text, top_k) for question, text in pairs]
    together = reader.read(questions)
    alone = [reader.read([question])[0] for question in questions]
    assert [comparable(outcome) for outcome in together] == [comparable(o) for o in alone]


def test_rows_that_may_not_be_padded_run_alone(make_reader):
    model = MadeUpModel()
    reader = make_reader("bert", model, may_pad=False)
    questions = [Question("why", "the river " * number) for number in (1, 2, 3, 9)]
    reader.read(questions)
    assert all(len(ids) == 1 and mask.all() for ids, mask, _ in model.batches)


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("threshold", "penalty"), [(None, 0.0), (0.0, 0.0), (0.0, 3.0)])
@settings(max_examples=30)
@given(asked=st.lists(st.tuples(texts, texts, st.integers(1, 2)), max_size=6))
@example([("why", "\r\n", 1), ("why", "a \n b", 1), ("why", "the river " * 30, 1)])
@example([("", "00?\x08", 1)])
def test_spans_chosen_on_the_device_match_those_chosen_by_the_reader(
    make_reader, kind, threshold, penalty, asked
):
    changes = {"null_threshold": threshold, "usual_answer_tokens": 2, "length_penalty": penalty}
    reading = msgspec.structs.replace(READING, **changes)
    model = MadeUpModel(PAD_TOKEN_ID[kind])
    limits = BatchRule(max_batch_size=2, max_batch_tokens=60)
    plain = make_reader(kind, model, reading, limits)
    choosing = make_reader(kind, model, reading, limits, Chooser(model, reading))
    questions = [Question(question[:20], text, top_k) for question, text, top_k in asked]
    for one, other in zip(plain.read(questions), choosing.read(questions), strict=True):
        if not isinstance(one, list):
            assert comparable(one) == comparable(other)
            continue
        assert [(a.answer, a.start, a.end) for a in one] == [
            (a.answer, a.start, a.end) for a in other
        ]
        assert [a.score for a in one] == pytest.approx([a.score for a in other], abs=2e-4)


@needs_torch
def test_only_one_best_answer_of_one_window_is_chosen_on_the_device(make_reader):
    model = MadeUpModel()
    chooser = Chooser(model)
    reader = make_reader(logits=model, best_spans=chooser, limits=BatchRule(max_batch_size=1))
    reader.read([Question("why", "the river"), Question("why", "Ada", 1)])
    assert chooser.num_rows == len(model.batches) == 2
    reader.read([Question("why", "the river", 2), Question("why", "the river " * 30)])
    assert chooser.num_rows == 2


@needs_torch
def test_a_row_keeps_its_best_spans_in_a_batch_with_a_text_of_two_windows(make_reader, monkeypatch):
    by_logits = []

    def recorded(text, *rest):
        by_logits.append(text)
        return find_answers(text, *rest)

    monkeypatch.setattr("qa_service.instance.reader.reader.find_answers", recorded)
    model = MadeUpModel()
    asked = [Question("why", "the river"), Question("why", "Ada the 2nd " * 8)]
    found = make_reader(logits=model, best_spans=Chooser(model)).read(asked)
    assert by_logits == [asked[1].text]
    expected = make_reader(logits=model).read(asked)
    assert [answer.answer for (answer,) in found] == [answer.answer for (answer,) in expected]


@needs_torch
def test_if_the_best_span_is_white_space_the_others_are_looked_at(make_reader):
    def logits(ids, mask, types):
        model.append(ids)
        newline = tiny_tokenizer("roberta").encode("\n", add_special_tokens=False).ids[0]
        return (9.0 * (ids == newline)).astype(np.float32), np.zeros(ids.shape, np.float32)

    model = []
    reader = make_reader("roberta", logits, best_spans=Chooser(logits))
    ((answer,),) = reader.read([Question("why", "the\n")])
    assert answer.answer == "the"
    assert len(model) == 1


def comparable(outcome):
    return (type(outcome), str(outcome)) if isinstance(outcome, Exception) else outcome


@given(
    word_counts=st.lists(st.integers(0, 20), max_size=6),
    max_batch_size=st.integers(1, 5),
    max_batch_tokens=st.integers(8, 120),
)
def test_batches_keep_within_the_limits(make_reader, word_counts, max_batch_size, max_batch_tokens):
    model = MadeUpModel()
    reader = make_reader("bert", model, limits=BatchRule(max_batch_size, max_batch_tokens))
    reader.read([Question("why", "river " * count) for count in word_counts])
    for ids, mask, _ in model.batches:
        assert len(ids) <= max_batch_size
        assert ids.size <= max_batch_tokens or len(ids) == 1
        assert mask.any(axis=0).all(), "a column of nothing but padding"
    rows = sorted(
        (row[:length].tolist(), kinds[:length].tolist())
        for ids, mask, types in model.batches
        for row, kinds, length in zip(ids, types, mask.sum(axis=1), strict=True)
    )
    builder = WindowBuilder(tiny_tokenizer("bert"), 24, 8)
    windows = [w for n in word_counts for w in builder.encode("why", "river " * n).windows]
    assert rows == sorted((w.input_ids.tolist(), w.token_type_ids.tolist()) for w in windows)


def test_a_bad_question_fails_alone(make_reader):
    good = [Question("why", "the river"), Question("who", "Ada the 2nd")]
    outcomes = make_reader().read([good[0], Question("why " * 30, "the river"), good[1]])
    assert isinstance(outcomes[1], QuestionTooLongError)
    assert [outcomes[0], outcomes[2]] == make_reader().read(good)


@pytest.mark.parametrize("has_spans", [False, pytest.param(True, marks=needs_torch)])
def test_nan_logits_fail_their_question_alone(make_reader, has_spans):
    model = MadeUpModel()

    def logits(ids, mask, types):
        start, end = model(ids, mask, types)
        unknown = np.any(ids == 1, axis=1)  # 1 is [UNK]
        start[unknown] = np.nan
        return start, end

    questions = [Question("why", "the river"), Question("why", "😀"), Question("why", "42")]
    best_spans = Chooser(logits) if has_spans else None
    first, second, third = make_reader(logits=logits, best_spans=best_spans).read(questions)
    assert isinstance(second, InternalError)
    assert isinstance(first[0], Answer)
    assert isinstance(third[0], Answer)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_wrong_number_of_spans_is_an_internal_error(make_reader, rows):
    def best_spans(ids, *_):
        logits = np.zeros(ids.shape, np.float32)
        return np.zeros((rows, 1 + 2 * NUM_BEST), np.float32), (logits, logits)

    with pytest.raises(InternalError, match=f"{rows} rows of spans for 2 windows"):
        make_reader(best_spans=best_spans).read([Question("why", "the river")] * 2)


@pytest.mark.parametrize("rows", [(1, 2), (2, 1), (3, 3), (0, 0)])
def test_a_wrong_number_of_rows_is_an_internal_error(make_reader, rows):
    def logits(ids, mask, types):
        return tuple(np.zeros((count, ids.shape[1]), np.float32) for count in rows)

    with pytest.raises(InternalError, match="rows of logits for 2 windows"):
        make_reader(logits=logits).read([Question("why", "the river")] * 2)


def test_a_text_without_tokens_costs_no_model_run(make_reader):
    model = MadeUpModel()
    assert make_reader(logits=model).read([Question("why", "\u200b")]) == [
        [Answer("", 1.0, None, None)]
    ]
    assert model.batches == []
    assert make_reader(logits=model).read([]) == []


def test_the_window_is_never_longer_than_the_model(make_reader):
    model = MadeUpModel()
    reader = make_reader(logits=model, reading=ReadingConfig(window_tokens=10_000))
    reader.read([Question("why", "river " * 2000)])
    assert max(ids.shape[1] for ids, _, _ in model.batches) == 512


def test_the_batch_rule_follows_measured_times(make_reader):
    start = CostTable((8, 24), (1, 2), ((1e9, 1e9), (1e9, 1e9)))
    reader = make_reader()
    reader.rule = BatchRule(costs=start)
    reader.read([Question("why", "Ada wrote")])
    assert reader.rule.costs is start
    reader.learned = LearnedCosts(start)
    for _ in range(2 * TABLE_EVERY):
        reader.read([Question("why", "Ada wrote")])
    assert reader.rule.costs.pace < 0.1
