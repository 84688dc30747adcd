"""What is put together from shipped files, and the same made by transformers, peft and torch."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from qa_service.errors import SetupError
from qa_service.preparation import shipped
from qa_service.preparation.encoders import MINILM_DIR, MODELS_DIR
from qa_service.preparation.sources import find_source
from tests.support import WITHOUT_TORCH


@pytest.fixture(scope="module")
def model():
    return shipped.load(find_source("builtin"))


@pytest.fixture(scope="module")
def rows():
    """Two rows of words, the second half padded: int64 [2, 24]."""
    ids = np.random.default_rng(7).integers(1000, 30000, (2, 24))
    mask = np.ones_like(ids)
    mask[1, 12:] = 0
    return ids, mask


def run(path, rows):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(("input_ids", "attention_mask"), rows, strict=True)))


@pytest.mark.parametrize("write", ["write_graph", "write_plain_graph"])
def test_the_graphs_compute_what_numpy_does(model, rows, tmp_path, write):
    getattr(model, write)(tmp_path / "model.onnx")
    ours, theirs = run(tmp_path / "model.onnx", rows), model.logits(*rows, rows[1])
    is_read = rows[1] == 1
    for logits, expected in zip(ours, theirs, strict=True):
        assert np.abs(logits - expected)[is_read].max() < 1e-4


def test_padding_changes_no_logit(model, rows):
    ids, mask = rows
    alone = model.logits(ids[1:, :12], mask[1:, :12], mask[1:, :12])
    padded = model.logits(ids, mask, mask)
    for one, both in zip(alone, padded, strict=True):
        assert np.abs(one[0] - both[1, :12]).max() < 1e-4


def test_the_weights_are_those_that_peft_merges(model):
    pytest.importorskip("peft", reason=WITHOUT_TORCH)
    from peft import PeftModel
    from transformers import BertForQuestionAnswering

    encoder = BertForQuestionAnswering.from_pretrained(MINILM_DIR, dtype="float32")
    merged = PeftModel.from_pretrained(encoder, str(MODELS_DIR / "builtin")).merge_and_unload()
    expected = {name: value.numpy() for name, value in merged.state_dict().items()}
    assert model.weights.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(model.weights[name] - value).max() < 1e-6, name


def test_the_saved_folder_gives_the_same_logits_with_transformers(model, rows, tmp_path):
    torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
    transformers = pytest.importorskip("transformers")
    model.save(tmp_path)
    loaded = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    ids, mask = map(torch.from_numpy, rows)
    with torch.no_grad():
        output = loaded(input_ids=ids, attention_mask=mask)
    ours = model.logits(*rows, rows[1])
    for logits, expected in zip(ours, (output.start_logits, output.end_logits), strict=True):
        assert np.abs(logits - expected.numpy())[rows[1] == 1].max() < 1e-4
    saved = transformers.AutoTokenizer.from_pretrained(MINILM_DIR).backend_tokenizer
    text = "Who wrote the notes in Zürich 🗼?"
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert own.encode(text).ids == saved.encode(text).ids


@pytest.mark.long
def test_the_shipped_graphs_are_those_of_torchs_export(tmp_path):
    pytest.importorskip("torch", reason=WITHOUT_TORCH)
    from training.shipped_encoder import ship

    ship(MINILM_DIR, tmp_path)
    for name in (shipped.ANSWERS_GRAPH, shipped.PLAIN_ANSWERS_GRAPH, shipped.EMBEDDING_GRAPH):
        made, kept = onnx.load(str(tmp_path / name)), onnx.load(str(MINILM_DIR / name))
        assert [node.op_type for node in made.graph.node] == [n.op_type for n in kept.graph.node]
        recipes = [{t.name: t.doc_string for t in m.graph.initializer} for m in (made, kept)]
        assert recipes[0] == recipes[1]
    made_weights = load_file(tmp_path / "model.safetensors")
    for name, value in load_file(MINILM_DIR / "model.safetensors").items():
        assert np.array_equal(made_weights[name], value)


def test_a_weight_is_a_transpose_or_several_joined(tmp_path):
    parts = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
    graph = helper.make_graph([], "g", [], [])
    for name, dims, recipe in (
        ("joined", (3, 4), "a.T a.T"), ("plain", (3,), "b"), ("wrong", (4,), "b")
    ):  # fmt: skip
        tensor = TensorProto(name=name, dims=dims, doc_string=recipe, data_type=TensorProto.FLOAT)
        graph.initializer.append(tensor)
    path = tmp_path / "g.onnx"
    onnx.save(helper.make_model(graph), str(path))
    with pytest.raises(SetupError, match="wrong is not of the shape of its weights"):
        shipped.filled(path, parts)
    del graph.initializer[2]
    onnx.save(helper.make_model(graph), str(path))
    joined, plain = map(numpy_helper.to_array, shipped.filled(path, parts).graph.initializer)
    assert joined.tolist() == np.concatenate([parts["a"].T] * 2, axis=-1).tolist()
    assert plain.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("file", "content"),
    [("adapter_model.safetensors", b"\0" * 40), ("adapter_model.safetensors", None)],
)
def test_a_damaged_adapter_is_named(tmp_path, file, content):
    folder = shutil.copytree(MODELS_DIR / "builtin", tmp_path / "mine")
    if content is None:
        weights = load_file(folder / file)
        save_file({k: v for k, v in weights.items() if "qa_outputs" not in k}, folder / file)
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(SetupError, match="mine"):
        shipped.load(find_source(str(folder)))


def test_an_adapter_that_is_merged_otherwise_is_left_to_peft(tmp_path):
    folder = shutil.copytree(MODELS_DIR / "builtin", tmp_path / "mine")
    assert find_source(str(folder)).is_shipped
    config = json.loads((folder / "adapter_config.json").read_bytes())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    assert not find_source(str(folder)).is_shipped
    assert not find_source(str(MINILM_DIR)).is_shipped
