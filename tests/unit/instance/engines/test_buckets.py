"""Batches run in buckets; outputs that no run has written are noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import EngineFaultError
from qa_service.instance.arrays import SPAN_VALUES
from qa_service.instance.engines.base import MARK_BYTE, Engine, checked, marked
from qa_service.instance.engines.buckets import (
    RUNS_BEFORE_RECORDING,
    TEXT_MASK,
    Bucket,
    BucketedEngine,
    BucketGrid,
    Outputs,
    Program,
    stage,
)

INPUTS = ("input_ids", "attention_mask")
PAD = 9
NO_RESULTS = "without results"


@given(st.integers(1, 64), st.integers(1, 8192), st.integers(16, 512), st.data())
def test_every_batch_within_the_limits_has_a_bucket_that_is_not_much_larger(
    max_rows, max_tokens, window, data
):
    grid = BucketGrid(max_rows, max_tokens, window)
    tokens = data.draw(st.integers(1, window))
    rows = data.draw(st.integers(1, max(1, min(max_rows, max_tokens // tokens))))
    bucket = grid.bucket_for(rows, tokens)
    assert bucket in grid.buckets()
    assert rows <= bucket.rows <= min(max_rows, max(rows * 1.5, 3))
    assert tokens <= bucket.tokens <= min(window, tokens + 63 if tokens > 32 else 32)
    assert bucket.rows <= grid.most.rows
    assert bucket.tokens <= grid.most.tokens
    first = grid.first_buckets()
    assert len(first) <= 16
    assert any(its.rows >= rows and its.tokens >= tokens for its in first)
    assert all(its.rows <= grid.most.rows and its.tokens <= grid.most.tokens for its in first)


def test_buckets_come_largest_first_and_only_those_that_can_be_needed():
    buckets = BucketGrid(4, 200, 128).buckets()
    assert buckets[0] == Bucket(3, 96)
    assert Bucket(1, 128) in buckets
    assert Bucket(2, 128) in buckets  # for 2 rows of 97 to 100 tokens
    assert Bucket(3, 128) not in buckets
    assert len(buckets) == len(set(buckets))


def bucketed(make, inputs=INPUTS, **named):
    grid = BucketGrid(4, 4096, 64, may_pad=named.pop("may_pad", True))
    return BucketedEngine(grid, inputs, PAD, make, device="cuda", runtime="test", **named)


class Adder(Program):
    """Gives back what it was staged: ids as start logits, all added as end logits."""

    def __init__(self, bucket, num_inputs=2):
        self.staging = np.full((num_inputs, bucket.rows, bucket.tokens), -7, np.int64)
        self._logits = np.empty((2, bucket.rows, bucket.tokens), np.float32)

    def run(self):
        self._logits[0] = self.staging[0]
        self._logits[1] = self.staging.sum(axis=0)
        spans = np.zeros((self.staging.shape[1], SPAN_VALUES), np.float32)
        spans[:, :4] = self.staging[-1, :, :4]
        return Outputs(self._logits, spans)


def test_a_batch_is_padded_to_its_bucket_and_its_logits_are_cut_back():
    made = []
    engine = bucketed(lambda bucket: made.append(bucket) or Adder(bucket))
    assert made == []
    rng = np.random.default_rng(0)
    kept = []
    for shape in ((4, 64), (1, 3), (3, 40), (2, 40), (6, 70)):
        ids, mask = rng.integers(10, 99, (2, *shape))
        start, end = engine.logits(ids, mask, mask)
        kept.append(((start, end), (ids, ids + mask)))
    for got, wanted in kept:  # none is overwritten by a later run
        np.testing.assert_array_equal(got, wanted)
    assert made[-1] == Bucket(6, 70)
    assert len(made) == len(set(made)) == 5


class Recorder:
    """An engine whose programs are recorded, and what was made for it and proved."""

    def __init__(self, *, fails=(), may_pad=True):
        self.made, self.proved, self.ran, self._fails = [], [], [], fails
        self.engine = bucketed(self._make, may_pad=may_pad, records=True)
        self.engine.check_shapes_with(self._check)

    def run(self, rows, tokens):
        batch = np.ones((rows, tokens), np.int64)
        np.testing.assert_array_equal(self.engine.logits(batch, batch, batch)[0], batch)

    def _make(self, bucket):
        self.made.append((bucket.rows, bucket.tokens))
        if bucket in self._fails:
            raise RuntimeError("cannot be recorded")
        program = Adder(bucket)
        run = program.run
        program.run = lambda: self.ran.append((bucket.rows, bucket.tokens)) or run()
        return program

    def _check(self, run, rows, tokens):
        batch = np.full((rows, tokens), 3)
        np.testing.assert_array_equal(run(batch, batch, batch)[0], batch)
        self.proved.append((rows, tokens))


FIRST = [(4, 64), (1, 64)]


def test_a_start_records_the_first_buckets_and_the_rest_follows_while_nothing_waits():
    recorder = Recorder()
    assert recorder.made == FIRST
    recorder.run(1, 20)
    recorder.run(3, 20)
    recorder.run(3, 20)
    assert recorder.made == FIRST  # both ran in larger ones
    recorder.engine.prepare_next()
    recorder.engine.prepare_next()
    assert recorder.made[2:] == [(3, 32), (1, 32)]  # the most needed come first
    while recorder.engine.prepare_next():
        pass
    every = [(rows, tokens) for rows in (1, 2, 3, 4) for tokens in (32, 64)]
    assert sorted(recorder.made) == sorted(recorder.engine.shapes) == every
    assert sorted([*FIRST, *recorder.proved]) == every


def test_a_bucket_that_many_batches_need_is_recorded_though_there_is_always_work():
    recorder = Recorder()
    for _ in range(RUNS_BEFORE_RECORDING):
        recorder.run(1, 20)
    assert recorder.made == FIRST
    recorder.run(1, 20)
    recorder.run(1, 20)
    assert recorder.made == [*FIRST, (1, 32)]


def test_a_recording_that_fails_ends_a_start_and_while_serving_is_left_out(caplog):
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        Recorder(fails=[Bucket(1, 64)])
    recorder = Recorder(fails=[Bucket(1, 32)])
    while recorder.engine.prepare_next():
        pass
    recorder.run(1, 32)
    assert recorder.made.count((1, 32)) == 1
    assert (1, 32) not in recorder.engine.shapes
    assert "batches of 1 rows of 32 tokens run in a larger shape: cannot be" in caplog.text


def test_rows_that_may_not_be_padded_never_run_in_a_larger_bucket():
    recorder = Recorder(may_pad=False)
    for tokens in (20, 12, 16):
        recorder.run(2, tokens)
    made = [(2, 20), (2, 12), (2, 16)]
    assert recorder.made == made
    assert recorder.ran == [shape for shape in made for _ in ("its proof", "the batch")]


def test_a_batch_over_the_limits_is_recorded_when_it_comes():
    recorder = Recorder()
    recorder.run(6, 70)
    assert recorder.made[-1] == (6, 70)


def test_the_texts_mask_is_staged_where_spans_are_chosen():
    make = lambda bucket: Adder(bucket, num_inputs=3)  # noqa: E731
    engine = bucketed(make, (*INPUTS, TEXT_MASK), chooses_spans=True)
    batch = np.arange(15).reshape(3, 5)
    best_spans, logits = engine.best_spans(batch, batch, batch, batch + 100)
    assert engine.chooses_spans
    assert best_spans.dtype == np.float32
    assert best_spans[:, :4].tolist() == (batch + 100)[:, :4].tolist()
    later, _ = engine.logits(batch + 1, batch, batch)
    assert logits[0].tolist() == batch.tolist()
    assert later.tolist() == (batch + 1).tolist()


class Wide(Adder):
    """Gives outputs that a batch's part could be cut from, of another shape than its bucket's."""

    def __init__(self, bucket, wide):
        super().__init__(bucket, num_inputs=3)
        self._wide = wide

    def run(self):
        outputs = super().run()
        wide = {self._wide: np.repeat(getattr(outputs, self._wide), 2, axis=1)}
        return outputs._replace(**wide)


@pytest.mark.parametrize("wide", ["logits", "best_spans"])
def test_an_output_of_another_shape_than_the_buckets_is_a_fault(wide):
    make = lambda bucket: Wide(bucket, wide)  # noqa: E731
    engine = bucketed(make, (*INPUTS, TEXT_MASK), chooses_spans=True)
    batch = np.arange(15).reshape(3, 5)
    with pytest.raises(EngineFaultError, match=r"where .* was asked for"):
        engine.best_spans(batch, batch, batch, batch)


def test_bucket_padding_is_masked_except_each_rows_first_token():
    staging = np.full((2, 3, 5), -7, np.int64)
    batch = np.full((2, 4), 3)
    stage(staging, INPUTS, {"input_ids": batch, "attention_mask": batch // 3}, PAD)
    assert staging[0].tolist() == [[3, 3, 3, 3, PAD], [3, 3, 3, 3, PAD], [PAD] * 5]
    assert staging[1].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]


def written(dtype=np.float32):
    return np.arange(12, dtype=dtype).reshape(3, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_output_that_was_written_comes_back_as_a_copy_in_float32(dtype):
    output = written(dtype)
    found = checked(output, (3, 4))
    output[:] = 7
    assert (found.dtype, found.tolist()) == (np.dtype(np.float32), written().tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("where", [np.s_[:], np.s_[1], np.s_[2, 3]], ids=["all", "row", "value"])
def test_an_output_that_was_not_written_is_a_fault(dtype, where):
    output = written(dtype)
    output.view(np.uint8).reshape(3, 4, -1)[where] = MARK_BYTE
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        checked(output, (3, 4))


def test_new_memory_is_marked_all_over():
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        checked(marked(3, 4)[2:, 3:], (1, 1))


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (12,)])
def test_an_output_of_another_shape_is_a_fault(shape):
    with pytest.raises(EngineFaultError, match=r"of shape \(3, 4\) where"):
        checked(written(), shape)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, np.inf - np.inf])
def test_a_models_own_nan_is_no_fault_of_the_engine(value):
    """The request alone fails: its logits are not finite."""
    output = written()
    output[1, 2] = value
    assert not np.isfinite(checked(output, (3, 4))).all()


class Forgetful(Engine):
    """Returns its outputs; runs only once."""

    def __init__(self):
        self.outputs, self.has_run = marked(2, 1, 3), False

    def _run(self, ids, mask, types):
        self.outputs.view(np.uint8)[:] = MARK_BYTE
        if not self.has_run:
            self.outputs[:] = ids
        self.has_run = True
        return self.outputs


def test_an_engine_that_returns_without_running_is_found():
    engine, ids = Forgetful(), np.array([[1, 2, 3]])
    assert [output.tolist() for output in engine.logits(ids, ids, ids)] == [ids.tolist()] * 2
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        engine.logits(ids, ids, ids)
