"""A model's versions on disk, and what is asked for of them."""

import json
import shutil
from pathlib import Path

import pytest

from harness.models import write_manifest, write_version
from qa_service.errors import SetupError
from qa_service.instance.model_folder.costs_dir import keep
from qa_service.instance.model_folder.manifest import ReadingConfig, check_files, load_manifest
from qa_service.server.models.on_disk import choose_versions, find_versions

FILES = ("config.json", "tokenizer.json")


@pytest.fixture
def model(tmp_path):
    for number in (3, 4, 10):
        write_version(tmp_path / "m", number)
    return tmp_path / "m"


def test_numbered_folders_are_found_as_versions_in_order(model):
    found = find_versions(model)
    assert list(found) == [3, 4, 10]
    assert found[4].path == model / "4"
    assert len({version.fingerprint for version in found.values()}) == 3


def test_a_prepared_folder_is_version_1(model):
    assert list(find_versions(model / "10")) == [1]


def test_folders_that_are_no_versions_are_ignored(model):
    (model / "11").mkdir()  # being copied: it has no manifest yet
    (model / "notes").mkdir()
    (model / "007").mkdir()
    (model / "5").write_text("a file")
    broken = write_version(model, 12)
    (broken / "manifest.json").write_text('{"name": "m"')
    assert list(find_versions(model)) == [3, 4, 10]


@pytest.mark.parametrize("name", ["nothing", "m/notes"])
def test_a_folder_without_versions_raises_setup_error(tmp_path, name):
    (tmp_path / "m" / "notes").mkdir(parents=True)
    with pytest.raises(SetupError, match=r"cannot be read: No such file|no prepared model in"):
        find_versions(tmp_path / name)


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("owner/name", "--model owner/name, which writes saved_models/owner--name"),
        ("name", "--model name, which writes saved_models/name"),
        ("saved_models/builtin", "--model builtin"),
        ("saved_models/owner--name", "--model owner/name"),
        ("made/name", "--model name --output_dir made"),
        ("source", "--model source"),
    ],
)
def test_a_path_without_a_prepared_model_names_the_command_that_prepares_it(
    tmp_path, monkeypatch, path, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved_models").mkdir()
    (tmp_path / "made").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").touch()
    with pytest.raises(SetupError) as caught:
        find_versions(Path(path))
    assert str(caught.value).endswith(f" {command}")


@pytest.mark.parametrize(
    ("versions", "named", "numbers"),
    [("latest:1", (), [10]), ("latest:2", (), [4, 10]), ("latest:9", (), [3, 4, 10]),
     ("all", (), [3, 4, 10]), ([4], (), [4]), ("latest:1", (3, 10), [3, 10])],
)  # fmt: skip
def test_versions_are_chosen_by_policy_and_by_number(model, versions, named, numbers):
    chosen = choose_versions(find_versions(model), versions, named)
    assert [version.number for version in chosen] == numbers


@pytest.mark.parametrize(
    ("versions", "named", "message"),
    [
        ([5], (), "there is no version 5; there are 3, 4, 10"),
        ("all", (5,), "there is no version 5; there are 3, 4, 10"),
        ("newest", (), '"newest" is not "latest:N", "all" or a list of numbers'),
    ],
)
def test_choosing_a_missing_version_says_which_exist(model, versions, named, message):
    with pytest.raises(SetupError) as raised:
        choose_versions(find_versions(model), versions, named)
    assert str(raised.value) == message


class TestFiles:
    def test_complete_files_are_accepted(self, model):
        check_files(model / "3", load_manifest(model / "3"), (*FILES, "not_in_the_manifest"))

    @pytest.mark.parametrize(("harm", "why"), [
        (lambda path: path.write_text(path.read_text()[:-1]), "is not what its manifest says"),
        (lambda path: path.write_text(json.dumps({"version": 4})), "is not what its manifest says"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ], ids=["truncated", "another", "missing"])  # fmt: skip
    def test_damaged_files_are_named(self, model, harm, why):
        harm(model / "3" / "tokenizer.json")
        with pytest.raises(SetupError, match=rf"3/tokenizer\.json {why}"):
            check_files(model / "3", load_manifest(model / "3"), FILES)

    def test_changed_files_change_the_fingerprint(self, model):
        before = find_versions(model)[3].fingerprint
        (model / "3" / "config.json").write_text('{"changed": true}')
        write_manifest(model / "3")
        assert find_versions(model)[3].fingerprint != before


@pytest.mark.parametrize(
    ("engine", "precision", "num_bytes"),
    [("onnx", "fp32", 110), ("onnx", "int8", 1010), ("openvino", "bf16", 110),
     ("openvino", "int8", 10010), ("pytorch", "bf16", 1000010), ("instant", "fp32", 10)],
)  # fmt: skip
def test_model_size_counts_the_files_of_its_engine_and_precision(
    tmp_path, engine, precision, num_bytes
):
    sizes = {"config.json": 4, "tokenizer.json": 6, "model.onnx": 100, "model.int8.onnx": 1000,
             "model.openvino_int8.onnx": 10_000, "model.safetensors": 1_000_000}  # fmt: skip
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    write_manifest(tmp_path)
    found = find_versions(tmp_path)[1]
    shutil.rmtree(tmp_path)  # no file is looked at any more: the loop asks
    assert found.loaded_bytes(engine, precision) == num_bytes


def test_a_finding_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "costs" / "found.json"
    keep(path, ReadingConfig())
    assert [entry.name for entry in path.parent.iterdir()] == ["found.json"]
    path.unlink()
    path.mkdir()  # it cannot be put in the place of a folder
    keep(path, ReadingConfig())
    assert [entry.name for entry in path.parent.iterdir()] == ["found.json"]
