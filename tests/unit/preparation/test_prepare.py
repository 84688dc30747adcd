"""What preparing decides: what a folder lacks, and how logits are read."""

import json
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

import msgspec
import pytest

from harness.models import make_manifest
from qa_service.errors import SetupError
from qa_service.files import sha256_of
from qa_service.instance.model_folder.manifest import ReadingConfig, load_manifest, save_manifest
from qa_service.preparation import prepare as preparing
from qa_service.preparation.folder import link_files
from qa_service.preparation.main import main
from qa_service.preparation.prepare import (
    PrepareArgs,
    choose_reading,
    fingerprint,
    is_up_to_date,
    missing_files,
    refuse_foreign,
)
from qa_service.preparation.sources import Source
from tests.programs import run_python
from tests.support import needs_torch


@pytest.fixture
def target(tmp_path, source):
    """A folder that is up to date for the fingerprint "f"."""
    folder = tmp_path / "out" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    files = {"model.onnx": sha256_of(folder / "model.onnx")}
    save_manifest(folder, make_manifest("tiny", fingerprint="f", files=files))
    return folder


@needs_torch
def test_fingerprint_changes_with_everything_that_matters(source, monkeypatch):
    seen = {fingerprint(source, ReadingConfig())}
    assert seen == {fingerprint(source, ReadingConfig())}
    seen.add(fingerprint(source, ReadingConfig(temperature=2.0)))
    seen.add(fingerprint(replace(source, label="other"), ReadingConfig()))
    (source.model_dir / "README.md").write_text("has no say")
    seen.add(fingerprint(source, ReadingConfig()))
    assert len(seen) == 3
    (source.model_dir / "model.safetensors").write_bytes(b"other weights")
    seen.add(fingerprint(source, ReadingConfig()))
    adapter = source.model_dir.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    seen.add(fingerprint(Source("tiny", "tiny", source.model_dir, adapter), ReadingConfig()))
    monkeypatch.setattr(preparing, "package_versions", lambda **_: {"torch": "3.0.0"})
    seen.add(fingerprint(source, ReadingConfig()))
    monkeypatch.setattr(preparing, "_FORMAT_VERSION", 0)
    seen.add(fingerprint(source, ReadingConfig()))
    assert len(seen) == 7


def test_only_a_whole_folder_of_the_right_fingerprint_is_up_to_date(target):
    assert is_up_to_date(target, "f")
    assert not is_up_to_date(target, "g")
    (target / "model.onnx").write_bytes(b"grapf")
    assert not is_up_to_date(target, "f")
    (target / "model.onnx").unlink()
    assert not is_up_to_date(target, "f")
    assert not is_up_to_date(target.parent, "f")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_folder_has_the_files_of_the_old_one_but_the_one_to_make(
    target, tmp_path, monkeypatch, has_links
):
    (target / "model.int8.onnx").write_bytes(b"an earlier one")

    def refuse(source, copy):
        raise PermissionError

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    link_files(target, tmp_path / "new", besides="model.int8.onnx")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "manifest.json", "model.onnx"
    ]  # fmt: skip
    new = tmp_path / "new" / "model.onnx"
    assert new.read_bytes() == b"graph"
    assert new.samefile(target / "model.onnx") == has_links


def test_the_encoder_is_prepared_meanwhile_and_its_fault_is_the_programs(
    tmp_path, monkeypatch, capfd
):
    """The model's is left out here."""
    monkeypatch.setattr("qa_service.preparation.main.prepare", lambda _: None)
    flags = ["--output_dir", str(tmp_path)]
    assert main(flags) == 0
    manifest = (tmp_path / "encoder" / "manifest.json").read_bytes()
    (tmp_path / "encoder" / "manifest.json").unlink()
    assert main(flags) == 2
    assert "encoder is no encoder; move it away" in capfd.readouterr().err
    (tmp_path / "encoder" / "manifest.json").write_bytes(manifest)
    assert main([*flags, "--model", "encoder"]) == 0
    assert f"{tmp_path / 'encoder'} is up to date" in capfd.readouterr().out


def test_missing_files_are_those_that_the_precision_needs(target, monkeypatch):
    monkeypatch.setattr(
        preparing, "installed_version", lambda package: "1" if package == "openvino" else ""
    )
    asked = PrepareArgs(precision="int8", tensorrt=True)
    manifest = load_manifest(target)
    assert missing_files(manifest, asked) == [
        "model.int8.onnx", "model.openvino_int8.onnx", "model.plain.onnx",
    ]  # fmt: skip
    assert missing_files(manifest, PrepareArgs(precision="fp32")) == []
    files = manifest.files | {"model.int8.onnx": "1"}
    manifest = msgspec.structs.replace(manifest, files=files)
    for precision in ("int8", "auto"):
        assert missing_files(manifest, PrepareArgs(precision=precision)) == [
            "model.openvino_int8.onnx"
        ]
    monkeypatch.setattr(preparing, "installed_version", lambda _: "")
    assert missing_files(manifest, PrepareArgs(precision="int8")) == []


def test_auto_does_not_retry_a_precision_that_failed(target, monkeypatch):
    monkeypatch.setattr(preparing, "installed_version", lambda _: "")
    without = {"model.int8.onnx": "serve it in fp32"}
    manifest = msgspec.structs.replace(load_manifest(target), without=without)
    assert missing_files(manifest, PrepareArgs(precision="auto")) == []
    assert missing_files(manifest, PrepareArgs(precision="int8")) == ["model.int8.onnx"]


def test_folder_of_another_model_is_left_alone(target, source):
    refuse_foreign(target, source)
    refuse_foreign(target / "nothing", source)
    with pytest.raises(SetupError, match="was made from tiny"):
        refuse_foreign(target, replace(source, label="someone/tiny"))
    with pytest.raises(SetupError, match="is no prepared model"):
        refuse_foreign(target.parent, source)
    (target / "manifest.json").write_text("{}")
    refuse_foreign(target, source)


@needs_torch
def test_prepared_model_is_not_made_from_itself(source, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/qa-prepare-model"])
    flags = ["--output_dir", str(source.model_dir.parent), "--no-encoder"]
    assert main(["--model", str(source.model_dir), *flags]) == 2
    error = capsys.readouterr().err
    assert "would replace the model that it is made from" in error
    assert error.startswith("qa-prepare-model: ")
    assert error.count("\n") == 1


def test_all_missing_packages_are_named_with_the_command(source, tmp_path, monkeypatch):
    real = metadata.version

    def version(name: str) -> str:
        if name in ("onnx", "peft", "torch", "onnxruntime", "onnxruntime-gpu"):
            raise metadata.PackageNotFoundError(name)
        return "5.23" if name == "transformers" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(SetupError, match=r"needs onnx, onnxruntime: pip .*\[cpu\]"):
        preparing.prepare(PrepareArgs(output_dir=tmp_path))
    with pytest.raises(SetupError, match=r"needs torch, peft, onnx, onnxruntime: .*\[cpu,models\]"):
        preparing.prepare(PrepareArgs(model=str(source.model_dir), output_dir=tmp_path / "out"))


def test_deciding_that_nothing_is_to_do_loads_no_framework():
    code = (
        "import json, sys, prepare_model; from qa_service.preparation.sources import find_source;"
        "find_source('builtin'); print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(run_python("-c", code).stdout))
    assert not {"torch", "transformers", "onnxruntime", "peft"} & loaded


def _threshold(source: Source, **flags: Any) -> float | None:
    return choose_reading(source, **flags)[0].null_threshold


@pytest.mark.parametrize(
    "label",
    ["deepset/bert-base-cased-squad2", "x/roberta-squad_v2", "x/SQuAD-v2", "squad-2.0", "squadv2"],
)
def test_a_model_named_squad2_can_abstain(source, label):
    reading, words = choose_reading(replace(source, label=label))
    assert reading == ReadingConfig(null_threshold=0.0)
    assert "guessed from its name; or give --no-can_abstain" in words


@pytest.mark.parametrize("label", ["bert-squad", "squad1", "squad-20k", "squad_2023", "squash2"])
def test_a_model_named_otherwise_cannot_abstain(source, label):
    reading, words = choose_reading(replace(source, label=label))
    assert reading == ReadingConfig()
    assert "never abstains" in words


def test_flags_go_before_the_file_and_the_file_before_the_name(source):
    assert _threshold(source, can_abstain=True) == 0.0
    assert _threshold(source, null_threshold=-1.5) == -1.5
    source = replace(source, label="x-squad2")
    source.reading_file.write_text('{"null_threshold": null, "window_tokens": 256}')
    assert choose_reading(source)[0] == ReadingConfig(window_tokens=256)
    assert _threshold(source, can_abstain=True) == 0.0
    source.reading_file.write_text('{"null_threshold": 2.5}')
    assert _threshold(source) == 2.5
    assert _threshold(source, can_abstain=True) == 2.5
    assert _threshold(source, can_abstain=True, null_threshold=0.0) == 0.0
    assert _threshold(source, can_abstain=False) is None


def test_a_threshold_of_the_flags_is_that_of_collections_too(source):
    source.reading_file.write_text('{"null_threshold": 2.5, "collection_threshold": 4.0}')
    own, _ = choose_reading(source)
    assert own.collection_null_log_score == 4.0
    chosen, _ = choose_reading(source, null_threshold=1.0)
    assert chosen.collection_null_log_score == 1.0


def test_contradicting_flags_are_refused(source):
    with pytest.raises(SetupError, match="makes no sense"):
        _threshold(source, can_abstain=False, null_threshold=0.0)


@pytest.mark.parametrize("content", ["", "[]", '{"window_tokens": "many"}'])
def test_broken_reading_file_is_refused(source, content):
    source.reading_file.write_text(content)
    with pytest.raises(SetupError, match=r"cannot read .*reading\.json"):
        _threshold(source)
