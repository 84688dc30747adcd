"""A model that comes as an ONNX graph: which graphs are taken, and what is said of others."""

import json
import shutil
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, processors

from qa_service.errors import SetupError
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest, prepared_file
from qa_service.preparation import exported, sources
from qa_service.preparation.graphs import compress_for_openvino
from qa_service.preparation.main import main
from qa_service.preparation.quantize import quantize
from qa_service.preparation.sources import find_source
from tests.programs import run_python
from tests.support import present
from tests.unit.preparation.graphs import write_product

WORDS = "[PAD] [UNK] [CLS] [SEP] a b who built it alan brown in the".split()  # noqa: SIM905
SCORES = np.random.default_rng(3).normal(size=(len(WORDS), 2)).astype(np.float32)


def write_graph(
    path,
    inputs=("input_ids", "attention_mask"),
    outputs=("start_logits", "end_logits"),
    kind=TensorProto.INT64,
    shape=("batch", "sequence"),
):
    """A model whose logits are each word's own, and 0 where the mask is."""
    nodes = [
        helper.make_node("Gather", ["scores", "input_ids"], ["both"]),
        helper.make_node("Cast", [inputs[-1]], ["is_read"], to=TensorProto.FLOAT),
        helper.make_node("Split", ["both"], ["start", "end"], axis=-1),
    ]
    for name, output in zip(("start", "end"), outputs, strict=True):
        nodes.append(helper.make_node("Squeeze", [name, "last"], [f"{name}_row"]))
        nodes.append(helper.make_node("Mul", [f"{name}_row", "is_read"], [output]))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [numpy_helper.from_array(SCORES, "scores"),
         numpy_helper.from_array(np.array([-1], np.int64), "last")],
    )  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


@pytest.fixture
def folder(tmp_path):
    """A whole one, as `optimum` writes it."""
    folder = tmp_path / "words"
    folder.mkdir()
    write_graph(folder / "onnx" / "model.onnx")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_it_is_prepared_and_gives_its_graphs_own_logits(folder, tmp_path):
    flags = ["--model", str(folder), "--output_dir", str(tmp_path / "out"), "--no-encoder"]
    assert main([*flags, "--precision", "fp32"]) == 0
    manifest = load_manifest(tmp_path / "out" / "words")
    assert manifest.inputs == ("input_ids", "attention_mask")
    assert (manifest.max_sequence_tokens, manifest.may_pad) == (64, True)
    assert manifest.without == {"model.safetensors": "it was made from an ONNX graph"}
    engine = make_engine("onnx", tmp_path / "out" / "words", manifest, EngineConfig())
    ids = np.array([[2, 6, 3, 9, 10, 3]])
    start, end = engine.logits(ids, np.ones_like(ids), np.zeros_like(ids))
    np.testing.assert_allclose([start[0], end[0]], SCORES[ids[0]].T)
    with pytest.raises(SetupError, match=r"no model.safetensors: it was made from an ONNX graph"):
        prepared_file(tmp_path / "out" / "words", manifest, "model.safetensors")


@pytest.mark.parametrize(("limit", "failing"), [(600, "its files"), (1500, "the model")])
def test_where_a_file_does_not_fit_nothing_is_left_but_a_sentence(
    folder, tmp_path, limit, failing, monkeypatch
):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # else modules are cut too, for later runs
    flags = ["--model", str(folder), "--output_dir", str(tmp_path / "out"), "--no-encoder"]
    limits = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    run = run_python(
        "-c",
        f"import resource, qa_service.preparation.main as it; {limits}; exit(it.main({flags}))",
    )
    assert run.returncode == 2
    assert f"{failing} cannot be written" in run.stderr
    assert "Traceback" not in run.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".words.lock"]


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"outputs": ("logits", "more")}, "it gives logits, more, not start_logits and end_logits"),
        ({"inputs": ("input_ids", "position_ids")}, "takes position_ids, which a server has not"),
        ({"inputs": ("input_ids",)}, "takes input_ids, without input_ids and attention_mask"),
        ({"kind": TensorProto.INT32}, "input_ids is int32, and a server needs int64"),
        ({"shape": (1, "sequence")}, "input_ids has a fixed size, 1; export the model with dyn"),
        ({"shape": ("batch", 384)}, "input_ids has a fixed size, 384"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_graph_that_a_server_cannot_run_is_refused_in_a_sentence(folder, graph, words):
    write_graph(folder / "onnx" / "model.onnx", **graph)
    with pytest.raises(SetupError, match=words) as raised:
        exported.load(find_source(str(folder)))
    assert "\n" not in str(raised.value)


def test_a_damaged_graph_is_refused(folder):
    path = folder / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SetupError, match=r"ONNX Runtime cannot load .*model\.onnx"):
        exported.load(find_source(str(folder)))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_what_the_graph_needs_beside_it_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(SetupError, match=f"is not complete: it has no {missing}"):
        find_source(str(folder))


def test_the_full_graph_is_taken_before_the_quantised_one(folder):
    onnx_dir = folder / "onnx"
    shutil.copy(onnx_dir / "model.onnx", onnx_dir / "model_quantized.onnx")
    (onnx_dir / "model.onnx_data").touch()
    source = find_source(str(folder))
    assert source.graph == onnx_dir / "model.onnx"
    assert [path.name for path in source.files()][-2:] == ["model.onnx", "model.onnx_data"]
    (onnx_dir / "model.onnx").rename(folder / "model.onnx")
    assert present(find_source(str(folder)).graph) == folder / "model.onnx"
    (folder / "model.onnx").unlink()
    assert present(find_source(str(folder)).graph).name == "model_quantized.onnx"


def test_weights_are_taken_before_the_graph_where_pytorch_is(folder, monkeypatch):
    (folder / "model.safetensors").touch()
    for version, needs_torch in (("2.13", True), ("", False)):
        monkeypatch.setattr(sources, "installed_version", lambda _, version=version: version)
        assert find_source(str(folder)).needs_torch is needs_torch


def test_a_graph_without_a_product_is_not_quantised(folder, tmp_path):
    for make in (partial(quantize, texts=[]), compress_for_openvino):
        with pytest.raises(SetupError, match="it has no product with a float32 weight"):
            make(folder / "onnx" / "model.onnx", tmp_path / "model.int8.onnx")


@pytest.mark.parametrize("opset", [17, 18])
def test_int8_is_written_in_the_graphs_own_version(tmp_path, opset):
    rows = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)
    fp32, int8 = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    write_product(fp32, rows, opset)
    texts: list[Any] = [{"x": rows}]
    quantize(fp32, int8, texts)
    session = onnxruntime.InferenceSession(str(int8), providers=["CPUExecutionProvider"])
    product = session.run(None, {"x": rows})[0]
    assert np.corrcoef(product.ravel(), (rows @ rows).ravel())[0, 1] > 0.999
