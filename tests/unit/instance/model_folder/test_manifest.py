"""A model's folder: its manifest, and how often rows of each length ran."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from harness.models import make_manifest
from qa_service.errors import SetupError
from qa_service.instance.model_folder.costs_dir import (
    FIRST_KEPT,
    MAX_ROWS,
    SeenLengths,
    lengths_file,
)
from qa_service.instance.model_folder.manifest import (
    MANIFEST_FILE,
    ReadingConfig,
    fingerprint_of,
    load_manifest,
    prepared_file,
    save_manifest,
)

_MANIFEST = make_manifest(
    "tiny",
    source="someone/tiny",
    files={"model.onnx": "1" * 64},
    reading=ReadingConfig(null_threshold=0.5),
    versions={"torch": "2.13.0"},
)


def test_a_saved_manifest_loads_equal(tmp_path):
    save_manifest(tmp_path, _MANIFEST)
    assert load_manifest(tmp_path) == _MANIFEST
    assert (tmp_path / MANIFEST_FILE).read_text().startswith('{\n  "name": "tiny",\n')


@pytest.mark.parametrize(
    ("thresholds", "of_texts", "of_collections"),
    [
        ((None, None), None, None),
        ((None, 1.0), None, None),
        ((1.0, None), 0.5, 0.5),
        ((1.0, 3.0), 0.5, 1.5),
    ],
)
def test_collections_may_have_a_separate_threshold(thresholds, of_texts, of_collections):
    texts, collections = thresholds
    config = ReadingConfig(temperature=2.0, null_threshold=texts, collection_threshold=collections)
    assert config.null_log_score == of_texts
    assert config.collection_null_log_score == of_collections


def test_a_manifest_that_is_a_fifo_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / MANIFEST_FILE)
    with pytest.raises(SetupError, match="it is not a file"):
        load_manifest(tmp_path)
    assert fingerprint_of(tmp_path) == ""


@pytest.mark.parametrize(
    ("folder", "arguments"),
    [
        ("saved_models/builtin-base", "--model builtin-base"),
        ("saved_models/deepset--minilm", "--model deepset/minilm"),
        ("some/where/mine", "--model mine --output_dir some/where"),
    ],
)
def test_missing_manifest_names_the_command_for_that_name(tmp_path, monkeypatch, folder, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match=rf"make it with: python prepare_model\.py {arguments}$"):
        load_manifest(Path(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "tiny"}', b"\xff"])
def test_broken_manifest_names_the_command(tmp_path, content):
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(SetupError, match=r"make it again with: python prepare_model.py"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("program", "command"),
    [("/usr/bin/qa-server", "qa-prepare-model"), ("server.py", "python prepare_model.py")],
)
def test_a_file_that_is_missing_names_the_command_of_who_asks(monkeypatch, program, command):
    monkeypatch.setattr(sys, "argv", [program])
    flags = "--model someone/tiny --precision int8"
    words = rf"no model\.int8\.onnx in .*; make it with: {command} {flags}$"
    with pytest.raises(SetupError, match=words):
        prepared_file(Path("tiny"), _MANIFEST, "model.int8.onnx")


def test_an_unavailable_file_has_its_reason():
    manifest = msgspec.structs.replace(_MANIFEST, files={}, without={"model.onnx": "too large"})
    for name in ("model.onnx", "model.openvino_int8.onnx"):
        with pytest.raises(SetupError, match=f"^tiny has no {name}: too large$"):
            prepared_file(Path("tiny"), manifest, name)


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
