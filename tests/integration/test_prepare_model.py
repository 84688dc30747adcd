"""prepare_model.py on real, tiny models: what it writes, what it refuses, what it survives."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer

from harness.server import ROOT
from qa_service.engine_catalogue import OPENVINO_INT8_FILE
from qa_service.errors import SetupError
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.preparation import graphs, quantize, verify
from qa_service.preparation.main import main
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.source_model import quiet_libraries
from qa_service.preparation.sources import Source
from tests.integration.architectures import (
    MAX_SEQUENCE_TOKENS,
    make_tiny_model,
    torch,
    transformers,
)
from tests.programs import run_python
from tests.support import Lazy, needs_torch

pytestmark = [pytest.mark.slow, needs_torch]
peft, safetensors = Lazy("peft"), Lazy("safetensors.torch")
loading = Lazy("qa_service.preparation.loading")
KINDS = ("bert", "roberta", "distilbert")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with a source model of each kind."""
    folder = tmp_path_factory.mktemp("sources")
    for kind in KINDS:
        make_tiny_model(kind, folder / kind)
    return folder


@pytest.fixture(scope="module")
def own_graphs(sources, tmp_path_factory):
    """Two of them with graphs in place of weights: preparing those does not load PyTorch."""
    output_dir = tmp_path_factory.mktemp("own_graphs")
    for kind in ("bert", "roberta"):
        left_out = shutil.ignore_patterns("model.safetensors")
        folder = shutil.copytree(sources / kind, output_dir / kind, ignore=left_out)
        (folder / "onnx").mkdir()
        graph = folder / "onnx" / "model.onnx"
        loading.load(Source(kind, kind, sources / kind)).write_plain_graph(graph)
    return output_dir


@pytest.fixture(scope="module")
def prepared(sources, tmp_path_factory):
    """A folder with a prepared model of each kind."""
    output_dir = tmp_path_factory.mktemp("saved_models")
    for kind in KINDS:
        _make(sources / kind, output_dir)
    return output_dir


def _make(source: Path, output_dir: Path, **flags: Any) -> Path:
    """Prepares a model without asking it whether it abstains, which takes a third of the time."""
    flags = {"can_abstain": False, **flags}
    return prepare(PrepareArgs(model=str(source), output_dir=output_dir, **flags))


def _flags(model: Path | str, output_dir: Path) -> list[str]:
    flags = ["--model", str(model), "--output_dir", str(output_dir), "--no-encoder"]
    return [*flags, "--precision", "fp32"]


def _run_offline(model: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program with the hub's cache in a folder, and the hub out of reach."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    return run_python("prepare_model.py", *_flags(model, folder / "out"), env=env)


def _operators(folder: Path, name: str = "model.onnx") -> list[str]:
    return [node.op_type for node in onnx.load(folder / name).graph.node]


def _mtimes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}


@pytest.mark.parametrize("kind", KINDS)
def test_folder_holds_what_the_server_needs(prepared, kind):
    manifest = load_manifest(prepared / kind)
    files = {
        *("config.json", "known_answers.json", "model.onnx", "model.safetensors"),
        "tokenizer.json",
    }
    assert manifest.files.keys() == files
    assert {path.name for path in (prepared / kind).iterdir()} == files | {"manifest.json"}
    assert (manifest.name, manifest.source) == (kind, kind)
    assert manifest.max_sequence_tokens == MAX_SEQUENCE_TOKENS
    assert manifest.pad_token_id == (1 if kind == "roberta" else 0)
    types = ("token_type_ids",) if kind == "bert" else ()
    assert manifest.inputs == ("input_ids", "attention_mask", *types)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 3), (1, MAX_SEQUENCE_TOKENS), (5, 17)])
def test_engines_give_the_source_models_logits(sources, prepared, kind, rows, width):
    manifest = load_manifest(prepared / kind)
    ids = np.random.default_rng(rows).integers(5, 60, (rows, width))
    mask = (np.arange(width) < width - 3 * np.arange(rows)[:, None]).astype(np.int64)
    ids[mask == 0] = manifest.pad_token_id
    types = mask * (np.arange(width) > width // 3)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    source = transformers.AutoModelForQuestionAnswering.from_pretrained(sources / kind)
    with torch.inference_mode():
        wanted = source(**{name: torch.from_numpy(given[name]) for name in manifest.inputs})
    for engine_type in ("onnx", "pytorch"):
        engine = make_engine(engine_type, prepared / kind, manifest, EngineConfig())
        for ours, theirs in zip(
            engine.logits(ids, mask, types), (wanted.start_logits, wanted.end_logits), strict=True
        ):
            np.testing.assert_allclose(ours[mask == 1], theirs.numpy()[mask == 1], atol=1e-4)


def test_a_models_own_graph_is_prepared_alike_without_pytorch(own_graphs, prepared, tmp_path):
    kinds = ("bert", "roberta")
    flags = [_flags(own_graphs / kind, tmp_path) for kind in kinds]
    code = f"""
import sys, qa_service.preparation.main as it
print(*(it.main(flags) for flags in {flags}), *sys.modules)
"""
    run = run_python("-c", code)
    *codes, modules = run.stdout.splitlines()[-1].split(maxsplit=2)
    assert codes == ["0", "0"], run.stderr
    assert "torch" not in modules.split()
    for kind in kinds:
        _check_alike(tmp_path / kind, prepared / kind)


def _check_alike(one: Path, other: Path) -> None:
    manifests = [load_manifest(folder) for folder in (one, other)]
    ids = np.random.default_rng(7).integers(5, 60, (1, MAX_SEQUENCE_TOKENS))
    rows = ids, np.ones_like(ids), np.zeros_like(ids)
    for name in ("inputs", "pad_token_id", "max_sequence_tokens", "may_pad", "reading"):
        assert getattr(manifests[0], name) == getattr(manifests[1], name)
    ours, theirs = (
        make_engine("onnx", folder, manifest, EngineConfig()).logits(*rows)
        for folder, manifest in zip((one, other), manifests, strict=True)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert _operators(one).count("Attention") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_fused(prepared, kind):
    operators = _operators(prepared / kind)
    assert operators.count("Attention") == 2
    assert "SkipLayerNormalization" not in operators


def test_tokenizer_neither_cuts_nor_pads(sources, tmp_path):
    source = tmp_path / "limited"
    make_tiny_model("bert", source)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["truncation"] = {
        "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    target = _make(source, tmp_path / "out")
    saved = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert saved.truncation is None
    assert saved.padding is None
    assert len(saved.encode("when was it built " * 9).ids) > 36


def test_a_second_run_changes_no_file(sources, prepared, capsys):
    before = _mtimes(prepared / "bert")
    _make(sources / "bert", prepared)
    assert "up to date" in capsys.readouterr().out
    assert _mtimes(prepared / "bert") == before


@pytest.mark.parametrize("has_changed", ["a file", "the reading"])
def test_folder_that_is_not_up_to_date_is_made_again(sources, prepared, tmp_path, has_changed):
    """What else makes it so is in `test_prepare.py`."""
    source = shutil.copytree(sources / "distilbert", tmp_path / "distilbert")
    target = shutil.copytree(prepared / "distilbert", tmp_path / "out" / "distilbert")
    before = load_manifest(target)
    if has_changed == "a file":
        (target / "model.onnx").write_bytes(b"not an ONNX file")
    else:
        (source / "reading.json").write_text('{"null_threshold": 1.5}')
    _make(source, target.parent, can_abstain=None if has_changed == "the reading" else False)
    after = load_manifest(target)
    assert after.files == before.files
    assert after.can_abstain == (has_changed == "the reading")
    assert (after.fingerprint == before.fingerprint) == (has_changed == "a file")
    left = sorted(path.name for path in target.parent.iterdir())
    assert left == [".distilbert.lock", "distilbert"]


def _write_no_trained_head(source):
    transformers.BertModel(transformers.BertConfig.from_pretrained(source)).save_pretrained(source)


def _write_head_of_three_labels(source):
    config = json.loads((source / "config.json").read_text())
    config["id2label"] = {"0": "start", "1": "end", "2": "type"}
    (source / "config.json").write_text(json.dumps(config))


def _write_larger_vocabulary(source):
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_tokens([f"more{number}" for number in range(100)])
    tokenizer.save(str(source / "tokenizer.json"))


def _write_code_for_the_loader(source):
    (source / "model.safetensors").unlink()
    touch = f"c__builtin__\nopen\n(V{source}/ran\nVw\ntR."
    (source / "pytorch_model.bin").write_text(touch)


_BROKEN = {
    "qa_outputs": _write_no_trained_head,
    "was not trained for extractive": _write_head_of_three_labels,
    "more tokens than its model": _write_larger_vocabulary,
    "transformers cannot load": _write_code_for_the_loader,
    "Error while deserializing": lambda source: (source / "model.safetensors").write_bytes(b"no"),
}


@pytest.mark.parametrize("words", _BROKEN)
def test_broken_model_is_refused_in_one_line(tmp_path, words, capsys):
    source = tmp_path / "broken"
    make_tiny_model("bert", source)
    _BROKEN[words](source)
    capsys.readouterr()  # transformers shows a progress bar until `main` has run once
    assert main(_flags(source, tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (source / "ran").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".broken.lock"]


def test_adapter_over_a_local_directory_is_merged_into_it(sources, tmp_path):
    adapter = tmp_path / "second"
    base = transformers.AutoModelForQuestionAnswering.from_pretrained(sources / "bert")
    lora = peft.LoraConfig(
        target_modules=["query"], modules_to_save=["qa_outputs"], init_lora_weights=False
    )
    adapted = peft.get_peft_model(base, lora)
    adapted.save_pretrained(adapter)
    target = _make(adapter, tmp_path / "out")
    ids = torch.tensor([[2, 9, 3, 7, 8, 3]])
    with torch.inference_mode():
        wanted = adapted.eval()(input_ids=ids).start_logits
    manifest = load_manifest(target)
    assert manifest.source == "second"
    assert manifest.inputs == ("input_ids", "attention_mask")  # what peft hands on
    engine = make_engine("onnx", target, manifest, EngineConfig())
    ones = np.ones(ids.shape, np.int64)
    start, _ = engine.logits(ids.numpy(), ones, 0 * ones)
    np.testing.assert_allclose(start, wanted.numpy(), atol=1e-4)


def test_adapter_without_its_head_is_refused(sources, tmp_path):
    adapter = tmp_path / "adapter"
    encoder = transformers.AutoModelForQuestionAnswering.from_pretrained(sources / "bert")
    lora = peft.LoraConfig(task_type="QUESTION_ANS", r=2, target_modules=["query"])
    source = Source("adapted", "adapted", sources / "bert", adapter)
    with quiet_libraries():
        peft.get_peft_model(encoder, lora).save_pretrained(adapter)
        loading.load(source)
    weights = safetensors.load_file(adapter / "adapter_model.safetensors")
    for part in ("qa_outputs", "lora_B"):
        kept = {name: weight for name, weight in weights.items() if part not in name}
        safetensors.save_file(kept, adapter / "adapter_model.safetensors")
        with quiet_libraries(), pytest.raises(SetupError, match="is broken"):
            loading.load(source)


def test_old_weights_are_saved_as_safetensors(tmp_path):
    source = tmp_path / "old"
    model = make_tiny_model("bert", source)
    (source / "model.safetensors").unlink()
    torch.save(model.state_dict(), source / "pytorch_model.bin")
    target = _make(source, tmp_path / "out")
    assert "model.safetensors" in load_manifest(target).files


def test_graph_that_cannot_be_fused_is_kept(sources, tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("no such pattern")

    monkeypatch.setattr("onnxruntime.transformers.optimizer.optimize_model", broken)
    target = _make(sources / "bert", tmp_path)
    assert "left attention unfused" in capsys.readouterr().out
    assert "Attention" not in _operators(target)


def test_wrong_graph_is_found_out(sources, tmp_path, monkeypatch):
    def break_weights(path, *_):
        model = onnx.load(path)
        bias = next(i for i in model.graph.initializer if i.name.endswith("qa_outputs.bias"))
        bias.CopyFrom(onnx.numpy_helper.from_array(np.array([0.5, 0.0], np.float32), bias.name))
        onnx.save(model, path)
        return 0

    monkeypatch.setattr(graphs, "fuse", break_weights)
    target = _make(sources / "bert", tmp_path)
    manifest = load_manifest(target)
    assert "differ from the source's by 0.5" in manifest.without["model.onnx"]
    files = {"config.json", "known_answers.json", "model.safetensors", "tokenizer.json"}
    assert manifest.files.keys() == files
    with pytest.raises(
        SetupError, match=r"^bert has no model\.onnx: the onnx engine's file is wro"
    ):
        make_engine("onnx", target, manifest, EngineConfig())
    with pytest.raises(SetupError, match="which this model lacks"):
        _make(sources / "bert", tmp_path, precision="int8")


def test_int8_is_added_to_fp32_and_kept(sources, tmp_path, capsys):
    arguments = _flags(sources / "roberta", tmp_path)
    assert main(arguments) == 0
    before = _mtimes(tmp_path / "roberta")
    assert main([*arguments, "--precision", "int8"]) == 0
    assert "% of the answers that fp32 gives" in capsys.readouterr().out
    after = _mtimes(tmp_path / "roberta")
    made = {"model.int8.onnx", OPENVINO_INT8_FILE} if find_spec("openvino") else {"model.int8.onnx"}
    assert after.keys() - before.keys() - {"costs"} == made
    assert after["model.onnx"] == before["model.onnx"]
    operators = _operators(tmp_path / "roberta", "model.int8.onnx")
    assert (operators.count("MatMulInteger"), operators.count("MultiHeadAttention")) == (8, 2)
    for more in ([], ["--precision", "int8"]):
        assert main([*arguments, *more]) == 0
        assert "up to date" in capsys.readouterr().out
    assert _mtimes(tmp_path / "roberta") == after


@pytest.fixture
def broken_int8(monkeypatch):
    """Has int8 files for ONNX Runtime give no answers."""

    def break_weights(fp32, int8, texts):
        model = onnx.load(fp32)
        head = next(i for i in model.graph.initializer if "qa_outputs" in i.name and i.dims == [2])
        head.CopyFrom(onnx.numpy_helper.from_array(np.full(2, np.nan, np.float32), head.name))
        onnx.save(model, int8)

    monkeypatch.setattr(quantize, "quantize", break_weights)


@pytest.mark.usefixtures("broken_int8")
def test_int8_that_answers_otherwise_is_refused(sources, tmp_path, capsys):
    arguments = _flags(sources / "bert", tmp_path)
    assert main([*arguments, "--precision", "int8"]) == 2
    assert "serve it in fp32" in capsys.readouterr().err
    assert "model.int8.onnx" not in _mtimes(tmp_path / "bert")
    assert main(arguments) == 0
    assert "up to date" in capsys.readouterr().out


@pytest.mark.usefixtures("broken_int8")
def test_a_model_that_cannot_be_quantised_is_prepared_without_int8(sources, tmp_path, capsys):
    arguments = ["--model", str(sources / "bert"), "--output_dir", str(tmp_path), "--no-encoder"]
    assert main(arguments) == 0
    assert re.search(r"without model\.int8\.onnx: .*serve it in fp32", capsys.readouterr().out)
    files = _mtimes(tmp_path / "bert")
    assert "model.int8.onnx" not in files
    assert files.keys() >= load_manifest(tmp_path / "bert").files.keys()


def test_graph_that_cannot_be_quantised_is_one_line(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not an ONNX file")
    with pytest.raises(SetupError, match="cannot be quantised") as caught:
        quantize.quantize(tmp_path / "model.onnx", tmp_path / "model.int8.onnx", [])
    assert "\n" not in str(caught.value)


def test_interrupt_leaves_the_old_folder(sources, prepared, tmp_path, monkeypatch, capsys):
    arguments = _flags(sources / "roberta", tmp_path)
    shutil.copytree(prepared / "roberta", tmp_path / "roberta")
    before = _mtimes(tmp_path / "roberta")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("qa_service.preparation.loading.export_onnx", interrupted)
    assert main([*arguments, "--can_abstain"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert _mtimes(tmp_path / "roberta") == before
    assert not (tmp_path / ".roberta.new").exists()


_STALLED_RUN = """
import sys, time
from qa_service.preparation import graphs
from qa_service.preparation.main import main

def stall(*_):
    print("fusing", flush=True)
    time.sleep(600)

graphs.fuse = stall
main(sys.argv[1:])
"""


def test_killed_run_is_cleared_up_by_the_next(own_graphs, tmp_path):
    arguments = _flags(own_graphs / "bert", tmp_path)
    command = [sys.executable, "-c", _STALLED_RUN, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        assert any(line.strip() == "fusing" for line in run.stdout)
        run.kill()
    assert (tmp_path / ".bert.new").exists()
    with pytest.raises(SetupError, match="no prepared model"):
        load_manifest(tmp_path / "bert")
    assert main(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bert.lock", "bert"]


def test_model_in_a_copied_hub_cache_needs_no_network(own_graphs, tmp_path):
    cached = tmp_path / "hub" / "hub" / "models--someone--tiny-squad2"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.copytree(own_graphs / "bert", cached / "snapshots" / ("0" * 40))
    run = _run_offline("someone/tiny-squad2", tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    manifest = load_manifest(tmp_path / "out" / "someone--tiny-squad2")
    assert manifest.source == "someone/tiny-squad2"
    assert manifest.can_abstain


def test_a_model_that_neither_its_files_nor_its_name_describe_is_asked_if_it_abstains(
    builtin_model,
):
    manifest = load_manifest(builtin_model)
    engine = make_engine("onnx", builtin_model, manifest, EngineConfig(precision="int8"))
    kept = []

    def logits(*rows):
        kept.append(engine.logits(*rows))
        return kept[-1]

    def never_abstains(ids, mask, types):
        """The same rows again, but for the token of the null answer."""
        start, end = kept.pop(0)
        assert start.shape == ids.shape
        start[:, 0] = end[:, 0] = -100.0
        return start, end

    assert verify.can_abstain(builtin_model, manifest, logits)
    assert not verify.can_abstain(builtin_model, manifest, never_abstains)
    assert not kept
