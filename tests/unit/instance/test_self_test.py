"""How an instance proves itself: what it runs, and what it finds wrong."""

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from harness.models import make_manifest
from qa_service.engine_catalogue import ROWS
from qa_service.errors import EngineFaultError, WrongAnswerError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines.base import Engine, marked
from qa_service.instance.model_folder.known_answers import (
    MEASURED_SLACK,
    MIN_TOLERANCE,
    ROUNDED_SLACK,
    VOCABULARY,
    row_lengths,
    tolerance_of,
)
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.reader import Reader
from qa_service.instance.reader.windows import WindowBuilder
from qa_service.instance.self_test import SelfTest
from qa_service.preparation import known as preparation
from qa_service.preparation.known import known_answers
from tests.unit.instance.tiny_reader import PAD_TOKEN_ID, MadeUpModel, tiny_reader

NUM_TESTS = 40
"""While it serves: each row has its turn twice."""
KIND = "bert"
PAD = PAD_TOKEN_ID[KIND]


class MadeUpEngine(Engine):
    """A made-up model behind an engine's face; `spoil` changes its logits.

    Attributes:
        prepared: The shapes that it says it has prepared.
        ran: The shape of each run.
    """

    def __init__(self, spoil=lambda ids, start, end: (start, end), shapes=()):
        self.model, self.spoil, self.prepared, self.ran = MadeUpModel(PAD), spoil, shapes, []
        self.has_forgotten = False

    @property
    def shapes(self):
        return self.prepared

    def forget_kept(self):
        self.has_forgotten = True
        return True

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
    assert 1 in {rows for rows, _ in engine.ran}
    assert max(rows for rows, _ in engine.ran) > 4
    assert engine.ran[-2:] == [(4, 32), (1, 64)]
    assert {row.name for row in known.rows} <= set(test.largest)
    assert max(test.largest.values()) < 1e-5


def test_rows_are_padded_only_where_they_may_be(make):
    engine = MadeUpEngine()
    known, test = make(engine, may_pad=False)
    test.check()
    assert sorted(engine.ran) == sorted((1, len(row.ids)) for row in known.rows)
    for _ in range(NUM_TESTS):  # while it serves
        test.check_next()
    assert {num_rows for num_rows, _ in engine.ran} == {1}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_has_no_more_rows_than_the_options_allow(make, size):
    engine = MadeUpEngine()
    _, test = make(engine, max_batch_size=size)
    test.check()
    assert max(rows for rows, _ in engine.ran) == size


def scaled(ids, start, end):
    return start * 1.5, end


def shifted_by_a_row(ids, start, end):
    """Each row's result is the one's before it."""
    return np.roll(start, 1, axis=0), np.roll(end, 1, axis=0)


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (scaled, "alone"),
        (lambda ids, start, end: (start + (len(ids) > 1), end), "in a batch of"),
        (shifted_by_a_row, "in a batch of"),
        (
            lambda ids, start, end: (
                shifted_by_a_row(ids, start, end) if len(ids) == 2 else (start, end)
            ),
            "in a batch of 2",
        ),
        (
            lambda ids, start, end: (start, end - (ids.shape == (3, 32))),
            "in the shape of 3 rows of 32",
        ),
        (lambda ids, start, end: (start, end + np.inf), "alone"),
        (
            lambda ids, start, end: (start, np.where(np.arange(ids.shape[1]) == 1, np.nan, end)),
            "alone",
        ),
    ],
    ids=["scaled", "together", "shifted", "in twos", "shape", "infinite", "one not a number"],
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


def test_a_server_that_runs_gives_each_row_in_turn_in_batches_of_drawn_sizes(make):
    engine = MadeUpEngine()
    known, test = make(engine)
    rows = [*known.vocabulary, *known.rows]
    for row in rows:
        test.check_next()
        assert row.name in test.largest
    assert {1, 2, 3} <= {num_rows for num_rows, _ in engine.ran}
    longest = max(num_rows * tokens for num_rows, tokens in engine.ran)
    assert longest <= 2 * 64
    for _ in range(NUM_TESTS):
        test.check_next()


def test_what_is_drawn_is_the_same_each_time(make):
    engines = MadeUpEngine(), MadeUpEngine()
    for engine in engines:
        _, test = make(engine)
        for _ in range(NUM_TESTS):
            test.check_next()
    assert engines[0].ran == engines[1].ran


def exchanged(ids, start, end):
    return start[::-1], end[::-1]


def second_half_zeros(ids, start, end):
    start[(len(ids) + 1) // 2 :] = end[(len(ids) + 1) // 2 :] = 0.0
    return start, end


@pytest.mark.parametrize(
    "spoil",
    [exchanged, second_half_zeros,
     lambda ids, start, end: (start + (2 <= len(ids) <= 8), end)],
)  # fmt: skip
def test_what_is_wrong_in_batches_alone_is_found_while_it_serves(make, spoil):
    engine = MadeUpEngine()
    _, test = make(engine)
    test.check()
    engine.spoil = spoil
    with pytest.raises(WrongAnswerError, match=r"in a batch of [2-9]"):
        for _ in range(NUM_TESTS):
            test.check_next()
    assert engine.has_forgotten


def test_shapes_that_are_prepared_while_it_serves_are_tested_in_turn(make):
    engine = MadeUpEngine()
    _, test = make(engine, max_batch_size=1)
    test.check_next()
    assert len(engine.ran) == 1
    engine.prepared = [(1, 48), (1, 64), (3, 32)]
    for _ in range(4):
        test.check_next()
    assert engine.ran[2::2] == [(1, 48), (1, 64), (3, 32), (1, 48)]


def backwards(encode_batch):
    return lambda self, pairs: encode_batch(
        self, [(question[::-1], text) for question, text in pairs]
    )


def test_a_tokenizer_that_reads_questions_backwards_does_not_pass(make, monkeypatch):
    _, test = make(MadeUpEngine())
    monkeypatch.setattr(WindowBuilder, "encode_batch", backwards(WindowBuilder.encode_batch))
    with pytest.raises(WrongAnswerError, match=r"the tokenizer works wrongly: of .* are known"):
        test.check()


def test_a_tokenizer_that_fails_has_not_given_the_known_tokens(make, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such word")

    _, test = make(MadeUpEngine())
    monkeypatch.setattr(WindowBuilder, "encode_batch", fail)
    with pytest.raises(WrongAnswerError, match="in words: no such word"):
        test.check()


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
    monkeypatch.setattr(preparation, "ROWS_AT_ONCE", 3)
    tiny_reader(tmp_path, KIND)
    engine = MadeUpEngine()
    reading = ReadingConfig(window_tokens=24, window_overlap_tokens=4)
    manifest = make_manifest(KIND, pad_token_id=PAD, reading=reading)
    known = known_answers(tmp_path, manifest, engine.logits)
    batches = engine.ran[len(known.rows) :]
    assert batches[0] == (3, 16)
    assert max(rows for rows, _ in batches) == 3
    assert {tokens for _, tokens in batches} == {16, 24}
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
    with pytest.raises(WrongAnswerError, match="in the shape of 4 rows of 48 tokens"):
        test.check_shape(MadeUpEngine(exchanged).logits, 4, 48)  # its rows differ


@pytest.mark.parametrize("tokens", row_lengths(64))
def test_a_shape_is_proved_by_a_row_of_its_full_length(make, tokens):
    def wrong_at_the_last_token(ids, start, end):
        start[:, -1] += 1.0
        return start, end

    _, test = make(MadeUpEngine())
    with pytest.raises(WrongAnswerError, match=rf"\({tokens} tokens\) in the shape of 1 rows"):
        test.check_shape(MadeUpEngine(wrong_at_the_last_token).logits, 1, tokens)


def tolerance(differences, kind=("onnx", "int8"), device="cpu"):
    return tolerance_of(make_manifest("m", differences=differences), kind, device)


def test_tolerance_is_the_prepared_difference_times_the_slack():
    measured = {"onnx int8": {"usual": 0.2, "far off": 0.6, VOCABULARY: 0.3}}
    found = tolerance(measured)
    assert found("far off") == pytest.approx(0.6 * ROUNDED_SLACK)
    assert found("usual") == found("not measured") == pytest.approx(0.3 * ROUNDED_SLACK)
    assert found(f"{VOCABULARY}, row 3") == pytest.approx(0.3 * ROUNDED_SLACK)
    words = tolerance({"onnx int8": {"usual": 0.2, "other": 0.1, VOCABULARY: 0.5}})
    assert words(f"{VOCABULARY}, row 3") == pytest.approx(0.5 * ROUNDED_SLACK)
    assert words("usual") == pytest.approx(0.2 * ROUNDED_SLACK)
    wrong_when_prepared = tolerance({"onnx fp32": {"a": 7.0}}, ("onnx", "fp32"))
    assert wrong_when_prepared("a") == 10 * ROWS["onnx", "fp32"].tolerance
    exact = tolerance({"onnx fp32": {"a": 1e-7, "b": 1e-4, "c": 1e-7}}, ("onnx", "fp32"))
    assert exact("a") == MIN_TOLERANCE
    assert exact("b") == pytest.approx(1e-4 * MEASURED_SLACK)


def test_on_another_device_or_unmeasured_the_catalogue_has_the_tolerance():
    measured = {"onnx fp16": {"a": 1e-7}}
    for kind, device in ((("onnx", "fp16"), "cuda"), (("pytorch", "bf16"), "cpu")):
        assert tolerance(measured, kind, device)("a") == ROWS[kind].tolerance > 0
