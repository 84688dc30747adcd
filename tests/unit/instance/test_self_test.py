"""How an instance proves itself: what it runs, and what it finds wrong."""

import math

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from harness.models import make_manifest
from qa_service.engine_catalogue import ROWS
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines.base import Engine
from qa_service.instance.engines.outputs import EngineFaultError, marked
from qa_service.instance.model_folder.known_answers import (
    MEASURED_SLACK,
    MIN_TOLERANCE,
    ROUNDED_SLACK,
    VOCABULARY,
    tolerance_of,
)
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.reader import Reader
from qa_service.instance.self_test import SelfTest, WrongAnswerError
from qa_service.preparation import known as preparation
from qa_service.preparation.known import known_answers
from tests.unit.instance.tiny_reader import MadeUpModel, tiny_reader
from tests.unit.instance.tiny_tokenizers import PAD_TOKEN_ID

KIND = "bert"
PAD = PAD_TOKEN_ID[KIND]


class MadeUpEngine(Engine):
    """A made-up model behind an engine's face; `spoil` changes its logits.

    Attributes:
        ran: The shape of each run.
    """

    def __init__(self, spoil=lambda ids, start, end: (start, end), shapes=()):
        self.model, self.spoil, self.shapes, self.ran = MadeUpModel(PAD), spoil, shapes, []

    def _run(self, ids, mask, types):
        self.ran.append(ids.shape)
        return self.spoil(ids, *self.model(ids, mask, types))


@pytest.fixture
def make(tmp_path):
    """Makes the self-test of an engine, whose source is the made-up model."""
    reading = ReadingConfig(window_tokens=64, window_overlap_tokens=16)
    tiny_reader(tmp_path, KIND)

    def make(engine, *, tolerance=0.01, may_pad=True, **rule):
        manifest = make_manifest(KIND, pad_token_id=PAD, reading=reading, may_pad=may_pad)
        known = known_answers(tmp_path, manifest, MadeUpModel(PAD))
        reader = Reader(tmp_path, manifest, engine.logits, BatchRule(**rule))
        tolerances = lambda _: tolerance  # noqa: E731
        return known, SelfTest(
            known, reader, engine, manifest, tolerances=tolerances, name="onnx fp32"
        )

    return make


def test_a_right_engine_passes_alone_together_and_in_every_prepared_shape(make):
    engine = MadeUpEngine(shapes=[(4, 32), (1, 64)])
    known, test = make(engine)
    test.check()
    alone = {1} & {rows for rows, _ in engine.ran}
    assert alone
    assert max(rows for rows, _ in engine.ran) > 4
    assert engine.ran[-2:] == [(4, 32), (1, 64)]
    assert set(test.largest) == {row.name for row in known.rows}
    assert max(test.largest.values()) < 1e-5


def test_rows_are_padded_only_where_they_may_be(make):
    engine = MadeUpEngine()
    known, test = make(engine, may_pad=False)
    test.check()
    assert sorted(engine.ran) == sorted((1, len(row.ids)) for row in known.rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_has_no_more_rows_than_the_options_allow(make, size):
    engine = MadeUpEngine()
    _, test = make(engine, max_batch_size=size)
    test.check()
    assert max(rows for rows, _ in engine.ran) == size


def scaled(ids, start, end):
    return start * 1.5, end


def wrong_together(ids, start, end):
    return (start + (len(ids) > 1), end)


def shifted_by_a_row(ids, start, end):
    """Each row's result is the one's before it."""
    return np.roll(start, 1, axis=0), np.roll(end, 1, axis=0)


def wrong_in_a_shape(ids, start, end):
    return start, end - (ids.shape == (3, 32))


def not_a_number(ids, start, end):
    end[0, 1] = np.nan
    return start, end


def infinite(ids, start, end):
    return start, end + np.inf


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (scaled, "alone"),
        (wrong_together, "in a batch of"),
        (shifted_by_a_row, "in a batch of"),
        (wrong_in_a_shape, "in the shape of 3 rows of 32 tokens"),
        (infinite, "alone"),
    ],
)
def test_a_wrong_logits_error_names_the_row_and_the_difference(make, spoil, where):
    _, test = make(MadeUpEngine(spoil, shapes=[(3, 32)]))
    with pytest.raises(WrongAnswerError) as caught:
        test.check()
    words = str(caught.value)
    assert words.startswith("onnx fp32 computes wrongly: asked ")
    assert where in words
    assert "is known; the largest difference is " in words
    assert "\n" not in words


def test_a_nan_fails_the_self_test(make):
    known, test = make(MadeUpEngine(not_a_number))
    with pytest.raises(WrongAnswerError, match="nan"):
        for _ in known.vocabulary:
            test.check_next()


def test_a_self_test_passes_within_tolerance_and_fails_beyond(make):
    spoil = lambda ids, start, end: (start + 0.2, end)  # noqa: E731
    _, test = make(MadeUpEngine(spoil), tolerance=0.25)
    test.check()
    _, test = make(MadeUpEngine(spoil), tolerance=0.15)
    with pytest.raises(WrongAnswerError, match=r"difference is 0\.2"):
        test.check()


def test_an_engine_that_fails_has_not_given_its_known_answers(make):
    def fail(ids, start, end):
        raise MemoryError("std::bad_alloc\nand more")

    _, test = make(MadeUpEngine(fail))
    with pytest.raises(WrongAnswerError, match=r"cannot run .* \(\d+ tokens\) alone: std::bad_all"):
        test.check()


def test_a_run_without_new_output_fails_the_self_test(make):
    _, test = make(MadeUpEngine(lambda ids, start, end: marked(2, *ids.shape)))
    with pytest.raises(EngineFaultError, match="without results"):
        test.check()


def test_a_server_that_runs_gives_its_rows_in_turn_and_begins_again(make):
    engine = MadeUpEngine()
    known, test = make(engine)
    rows = [*known.vocabulary, *known.rows]
    for _ in range(2 * len(rows)):
        test.check_next()
    assert engine.ran == 2 * [(1, len(row.ids)) for row in rows]


def test_the_rows_hold_the_whole_of_a_small_vocabulary(make):
    known, _ = make(MadeUpEngine())
    seen = {number for row in known.vocabulary for number in row.ids}
    assert len(seen) > 100
    assert all(row.name.startswith(VOCABULARY) for row in known.vocabulary)
    assert len({row.name for row in known.vocabulary}) == len(known.vocabulary) > 1


def test_of_a_large_vocabulary_they_hold_the_frequent_words(monkeypatch):
    words = ["[PAD]", "[unused0]", "[UNK]", "[unused993]", "the", "of", "<unused7>", "rare"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    assert preparation.frequent_words(tokenizer) == [4, 5, 7]
    monkeypatch.setattr(preparation, "MAX_WORDS", 2)
    assert preparation.frequent_words(tokenizer) == [4, 5]


def test_the_source_is_asked_short_rows_of_the_vocabulary_together_and_unpadded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(preparation, "ROW_TOKENS", 24)
    monkeypatch.setattr(preparation, "ROWS_AT_ONCE", 3)
    tiny_reader(tmp_path, KIND)
    engine = MadeUpEngine()
    known = known_answers(tmp_path, make_manifest(KIND, pad_token_id=PAD), engine.logits)
    batches = engine.ran[len(known.rows) :]
    assert batches[0] == (3, 24)
    assert max(rows for rows, _ in batches) == 3
    assert {tokens for _, tokens in batches[:-1]} == {24}
    assert sum(rows * tokens for rows, tokens in batches) == sum(
        len(row.ids) for row in known.vocabulary
    )


def test_known_questions_keep_all_logits_and_vocabulary_rows_some(make, monkeypatch):
    monkeypatch.setattr(preparation, "NUM_PLACES", 5)
    known, _ = make(MadeUpEngine())
    assert all(row.places == list(range(len(row.ids))) for row in known.rows)
    assert all(5 <= len(row.places) <= 7 < len(row.ids) for row in known.vocabulary)


def test_a_shape_is_checked_by_what_was_prepared_for_it(make):
    engine = MadeUpEngine()
    _, test = make(MadeUpEngine())
    test.check_shape(engine.logits, 2, 32)
    assert engine.ran == [(2, 32)]
    with pytest.raises(WrongAnswerError, match="in the shape of 1 rows of 64 tokens"):
        test.check_shape(MadeUpEngine(scaled).logits, 1, 64)


def tolerance(differences, kind=("onnx", "int8"), device="cpu"):
    return tolerance_of(make_manifest("m", differences=differences), kind, device)


def test_tolerance_is_the_prepared_difference_times_the_slack():
    measured = {"onnx int8": {"usual": 0.2, "far off": 0.6, VOCABULARY: 0.3}}
    found = tolerance(measured)
    assert found("far off") == pytest.approx(0.6 * ROUNDED_SLACK)
    assert found("usual") == found("not measured") == pytest.approx(0.3 * ROUNDED_SLACK)
    assert found(f"{VOCABULARY}, row 3") == pytest.approx(0.3 * ROUNDED_SLACK)
    wrong_when_prepared = tolerance({"onnx fp32": {"a": 7.0}}, ("onnx", "fp32"))
    assert wrong_when_prepared("a") == 10 * ROWS["onnx", "fp32"].tolerance
    exact = tolerance({"onnx fp32": {"a": 1e-7, "b": 1e-4, "c": 1e-7}}, ("onnx", "fp32"))
    assert exact("a") == MIN_TOLERANCE
    assert exact("b") == pytest.approx(1e-4 * MEASURED_SLACK)


def test_on_another_device_or_unmeasured_the_catalogue_has_the_tolerance():
    measured = {"onnx fp16": {"a": 1e-7}}
    for kind, device in ((("onnx", "fp16"), "cuda"), (("pytorch", "bf16"), "cpu")):
        assert tolerance(measured, kind, device)("a") == ROWS[kind].tolerance > 0


def test_every_row_of_the_catalogue_has_a_tolerance():
    assert all(0 < row.tolerance < math.inf for row in ROWS.values())
