"""Cost tables, the rule made from them, and where they come from."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import SetupError
from qa_service.instance.batch_cost import BatchRule, CostTable, load_costs
from qa_service.instance.costs import find_costs
from qa_service.instance.learned_costs import KEPT_AFTER_RUNS, LearnedCosts, keep_learned
from qa_service.instance.model_folder.costs_dir import COSTS_DIR, kept_path
from qa_service.instance.reader.measuring import estimate_costs, measure_costs
from tests.support import FakeClock, present

TABLE = CostTable((10, 20), (1, 2, 4), ((1.0, 1.5, 2.0), (3.0, 6.0)), "a test")


@pytest.mark.parametrize(
    ("batch_size", "tokens", "cost_ms"),
    [
        (1, 10, 1.0), (4, 10, 2.0), (3, 10, 1.75),  # on the grid, and between its columns
        (1, 15, 2.0), (2, 15, 3.75),  # between its rows
        (8, 10, 4.0), (4, 20, 12.0),  # past what was measured: in proportion to the rows
        (1, 3, 1.0), (1, 40, 6.0), (2, 30, 9.0),  # shorter and longer than all
    ],
)  # fmt: skip
def test_costs_are_linear_between_and_beyond_the_grid(batch_size, tokens, cost_ms):
    assert TABLE.cost_ms(batch_size, tokens) == pytest.approx(cost_ms)


@pytest.mark.parametrize(
    "shape",
    [
        ((), (1,), ()), ((10, 10), (1,), ((1.0,), (1.0,))), ((10,), (2,), ((1.0,),)),
        ((10,), (1,), ()), ((10,), (1,), ((),)), ((10,), (1,), ((1.0, 2.0),)),
        ((10,), (1,), ((0.0,),)),
    ],
)  # fmt: skip
def test_a_malformed_cost_table_is_refused(shape, tmp_path):
    with pytest.raises(ValueError, match=r"must|needs"):
        CostTable(*shape)
    lengths, sizes, costs_ms = shape
    file = tmp_path / "table.json"
    file.write_bytes(
        msgspec.json.encode({"lengths": lengths, "batch_sizes": sizes, "costs_ms": costs_ms})
    )
    with pytest.raises(SetupError, match=r"table\.json cannot be read"):
        load_costs(file)


def test_a_table_is_printed_with_gaps_where_nothing_was_gained():
    assert str(TABLE).splitlines() == [
        "milliseconds of a batch, by tokens and rows (a test)",
        "tokens        1        2        4",
        "    10     1.00     1.50     2.00",
        "    20     3.00     6.00",
    ]


def test_the_rule_admits_what_is_cheaper_together():
    rule = BatchRule(4, 1000, costs=TABLE)
    assert rule.admits(1, 10, 10)
    assert not rule.admits(1, 20, 20)
    assert not rule.admits(1, 10, 20)
    assert not rule.admits(4, 10, 10)


def test_the_rule_bounds_what_the_first_waits_for_its_batch_members():
    assert BatchRule(4, 1000, 1.5, TABLE).admits(1, 10, 10)
    assert not BatchRule(4, 1000, 1.4, TABLE).admits(1, 10, 10)
    slow = msgspec.structs.replace(TABLE, pace=2.0)
    assert BatchRule(4, 1000, 3.0, slow).admits(1, 10, 10)
    assert not BatchRule(4, 1000, 2.9, slow).admits(1, 10, 10)


def test_an_instance_takes_its_share_of_waiting_requests_and_no_more():
    rule = BatchRule(4, 1000, costs=TABLE)
    assert not rule.admits(1, 10, 10, num_waiting=1)
    assert rule.admits(1, 10, 10, num_waiting=1.5)
    assert rule.admits(2, 10, 10, num_waiting=3)
    assert not rule.admits(2, 10, 10, num_waiting=2)


@given(st.integers(1, 9), st.integers(1, 99), st.integers(1, 99))
def test_without_a_table_only_the_bounds_count(batch_size, longest, tokens):
    within = batch_size < 4 and max(longest, tokens) * (batch_size + 1) <= 100
    assert BatchRule(4, 100).admits(batch_size, longest, tokens) == within
    assert BatchRule(4, 100).cost_s(batch_size, longest) == 0.0


@pytest.mark.parametrize("costs", [None, TABLE, msgspec.structs.replace(TABLE, pace=2.0)])
@pytest.mark.parametrize("max_batch_cost_ms", [1.0, 3.0, 500.0])
@pytest.mark.parametrize("tokens", [3, 10, 12, 15, 20, 40, 200])
def test_rows_are_as_many_as_join_one_after_another(costs, max_batch_cost_ms, tokens):
    rule = BatchRule(8, 100, max_batch_cost_ms, costs)
    joined = 1
    while rule.admits(joined, tokens, tokens):
        joined += 1
    assert rule.rows(tokens, 100) == joined
    assert rule.rows(tokens, 2) == min(joined, 2)


def rows(count, tokens):
    ids = np.zeros((count, tokens), np.int64)
    return ids, ids, ids


def measured(ms_of_shape, window_tokens, limits):
    """The table of a model whose runs take so long, by a clock that only they move."""
    clock = FakeClock()

    def logits(ids, mask, types):
        assert ids.shape == mask.shape == types.shape
        clock.pass_s(ms_of_shape(*ids.shape) / 1e3)
        return np.zeros(ids.shape, np.float32), np.zeros(ids.shape, np.float32)

    return measure_costs(logits, rows, window_tokens, limits, "a test", clock_s=clock.perf_counter)


def test_measuring_continues_while_larger_batches_pay():
    table = measured(lambda *_: 0.2, 32, BatchRule(8, 1000))
    assert (table.lengths, table.batch_sizes, table.runtime) == ((16, 32), (1, 2, 4, 8), "a test")
    assert table.costs_ms == ((0.2,) * 4,) * 2


def test_measuring_ends_where_larger_batches_do_not_pay_or_are_not_allowed():
    def ms_of_shape(rows, length):
        return 0.002 * (rows * length) ** 1.2

    table = measured(ms_of_shape, 100, BatchRule(8, 150))
    assert table.lengths == (16, 32, 64, 100)
    assert [len(row) for row in table.costs_ms] == [2, 2, 2, 1]


def test_measured_costs_include_the_change_of_shape():
    shapes = [(0, 0)]

    def ms_of_shape(*shape):
        is_new = shape != shapes[-1]
        shapes.append(shape)
        return 2.0 if is_new else 0.2

    table = measured(ms_of_shape, 32, BatchRule(4, 1000))
    assert min(map(min, table.costs_ms)) == 2.0


def test_a_slow_model_runs_a_shape_twice_and_the_faster_run_counts():
    runs = [shape for shape in [(1, 16), (2, 16)] for _ in range(3)]  # not known to be slow yet
    runs += [shape for shape in [(1, 32), (2, 32), (1, 64), (2, 64)] for _ in range(2)]
    done = []

    def ms_of_shape(*shape):
        done.append(shape)
        is_disturbed = len(done) % 2 == 0
        return shape[0] * (1000.0 if is_disturbed else 500.0)

    table = measured(ms_of_shape, 64, BatchRule(8, 1000))
    assert done == runs
    assert table.costs_ms == ((500.0, 1000.0),) * 3


@pytest.fixture
def path(tmp_path):
    return kept_path(tmp_path, b"cpu")


def test_a_table_is_measured_once_and_kept(tmp_path, path):
    measured = []

    def measure():
        measured.append(1)
        return TABLE

    for _ in range(2):
        assert find_costs("auto", path, measure) == TABLE
    assert len(measured) == 1
    find_costs("auto", kept_path(tmp_path, b"another cpu"), measure)
    find_costs("measure", path, measure)
    assert len(measured) == 3
    assert len(list((tmp_path / COSTS_DIR).iterdir())) == 2
    assert find_costs(str(path), path, measure) == TABLE
    assert find_costs("off", path, measure) is None
    path.write_text("{")
    assert find_costs("auto", path, measure) == TABLE


def test_an_estimate_is_kept_once_runs_have_corrected_it(path):
    def must_not():
        raise AssertionError

    assert find_costs("auto", path, must_not, lambda: TABLE) == TABLE
    assert not path.exists()
    learned = LearnedCosts(TABLE)
    for _ in range(KEPT_AFTER_RUNS):
        keep_learned(path, learned)
        assert not path.exists()
        learned.observe(1, 20, 3 * TABLE.cost_ms(1, 20))
    keep_learned(path, learned)
    kept = present(find_costs("auto", path, must_not, must_not))
    assert kept.pace == 1.0
    assert kept.cost_ms(1, 20) == pytest.approx(3 * TABLE.cost_ms(1, 20), rel=0.05)
    assert find_costs("measure", path, lambda: TABLE, must_not) == TABLE


@pytest.mark.parametrize(("overhead_ms", "token_ms"), [(0.5, 0.09), (0.0, 1.7)])
def test_a_few_runs_give_a_table_of_all_lengths_and_sizes(overhead_ms, token_ms):
    def ms_of(rows, tokens):
        return overhead_ms + token_ms * rows * tokens

    shapes = [(1, 40), (1, 384), (1, 78), (1, 30), (9, 28)]
    took = [(*shape, ms_of(*shape)) for shape in shapes]
    took[0] = (1, 40, 50 * ms_of(1, 40))  # it compiles
    table = estimate_costs(took, 384, BatchRule(64, 16384), "a test")
    assert table.lengths == (16, 32, 64, 128, 256, 384)
    assert table.batch_sizes == (1, 2, 4, 8, 16, 32, 64)
    for rows, tokens in [(1, 16), (1, 100), (1, 384), (8, 32), (2, 384)]:
        assert table.cost_ms(rows, tokens) == pytest.approx(ms_of(rows, tokens), rel=0.3)


def test_a_model_that_only_compiled_has_an_estimate_all_the_same():
    table = estimate_costs([(1, 40, 500.0)], 384, BatchRule(1, 384), "a test")
    assert table.batch_sizes == (1,)
    assert table.cost_ms(1, 40) == pytest.approx(500.0, rel=0.1)


def test_a_folder_that_cannot_be_written_costs_only_the_time(tmp_path, path, caplog):
    (tmp_path / COSTS_DIR).write_text("not a folder")
    caplog.set_level("INFO")
    assert find_costs("auto", path, lambda: TABLE) == TABLE
    assert "not kept" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"lengths": [384], "batch_sizes": [1], "costs_ms": [[30.0]]}', "fewer than 2 lengths"),
     ("", "cannot be read")],
)  # fmt: skip
def test_a_named_table_without_lengths_or_content_is_refused(tmp_path, path, content, words):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(SetupError, match=words):
        find_costs(str(tmp_path / "table.json"), path, lambda: TABLE)
    with pytest.raises(SetupError, match="cannot be read"):
        find_costs(str(tmp_path / "none.json"), path, lambda: TABLE)
