"""Counts of lengths, and what is kept of them for the next start."""

import pytest

from qa_service.instance.model_folder.costs_dir import (
    FIRST_KEPT,
    MAX_ROWS,
    SeenLengths,
    lengths_file,
)


def test_counts_are_kept_for_the_next_start(tmp_path):
    seen = SeenLengths(tmp_path)
    assert not seen
    for number in range(FIRST_KEPT):
        seen.count(128 if number % 4 else 64)
    again = SeenLengths(tmp_path)
    assert again
    assert again.most_seen(1) == [128, 64]
    assert again.count(64) == FIRST_KEPT // 4 + 1


def test_few_counted_rows_are_not_written(tmp_path):
    SeenLengths(tmp_path).add({64: FIRST_KEPT - 1})
    assert not lengths_file(tmp_path).exists()


def test_most_seen_leaves_out_rare_lengths():
    seen = SeenLengths()
    seen.add({64: 15, 80: 16, 96: 40, 112: 16})
    assert seen.most_seen(16) == [96, 80, 112]


def test_a_version_begins_with_the_counts_of_the_one_that_it_replaces(tmp_path):
    old, new = tmp_path / "1", tmp_path / "2"
    old.mkdir()
    new.mkdir()
    SeenLengths(old).add({64: FIRST_KEPT})
    replacing = SeenLengths(new, old)
    assert replacing.most_seen(1) == [64]
    replacing.add({80: 2 * FIRST_KEPT})
    assert SeenLengths(new, old).most_seen(1) == [80, 64]
    assert SeenLengths(old).most_seen(1) == [64]


def test_new_traffic_takes_the_place_of_old():
    seen = SeenLengths()
    seen.add({64: MAX_ROWS})
    for _ in range(MAX_ROWS):
        seen.count(80)
    assert seen.most_seen(1) == [80, 64]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"num_rows": {"a": 1}}'])
def test_a_damaged_file_counts_as_none(tmp_path, content):
    path = lengths_file(tmp_path)
    path.parent.mkdir()
    path.write_text(content)
    assert not SeenLengths(tmp_path)


def test_a_folder_that_cannot_be_written_costs_only_the_counts(tmp_path):
    lengths_file(tmp_path).parent.write_text("not a folder")
    seen = SeenLengths(tmp_path)
    seen.add({64: FIRST_KEPT})
    assert seen.count(64) == FIRST_KEPT + 1
